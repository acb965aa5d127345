"""How much may be recorded, for what the agent costs to stay within its budget.

Down at once, as soon as the cost has been over the budget for a few seconds, to the first level whose expected cost fits;
up only where the level above has been expected to fit, with room to spare, for a while. Who goes up and has to come down
again soon waits twice as long the next time, up to an hour: however the load swings, levels change a few times and then
hardly ever.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..core.errors import ConfigError
from ..core.settings.values import parse_duration
from .levels import ALL, NOTHING, REQUESTS_ONLY

# An agent that takes no more of one core is over no budget, whatever it costs a request: of the few requests of an idle
# service each pays for the exports of a whole minute. [ratio]
FREE_SHARE = 0.01
# Over the budget for so long: down. [seconds]
PATIENCE_SECONDS = 3.0
# Within this part of the budget for so long: up. [ratio, seconds]
ROOM = 0.7
CALM_SECONDS, MAX_CALM_SECONDS = 60.0, 3600.0
# Who is over the budget again so soon went up in vain. [seconds]
RELAPSE_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Budget:
    """What the agent may cost a request: the larger of the two.

    Args:
        share: Of the mean time of a request. [ratio]
        absolute_ns: However short requests are. [nanoseconds]
    """

    share: float = 0.01
    absolute_ns: float = 100_000.0

    @classmethod
    def parse(cls, text: str, key: str) -> Budget | None:
        """Read `1%`, `100us` or both, separated by a comma; None for `0` or `none`: no budget.

        Raises:
            ConfigError: *text* is none of these.
        """
        if text.lower() in {"0", "none"}:
            return None
        share = absolute_ns = 0.0
        for part in text.split(","):
            if part.strip().endswith("%"):
                share = _percent(part.strip()[:-1], text, key)
            else:
                absolute_ns = _nanoseconds(part, text, key)
        if not share and not absolute_ns:
            raise ConfigError(_wrong(text, key))
        return cls(share, absolute_ns)

    def allows_ns(self, duration_ns: float) -> float:
        """Return what a request may cost that takes so long, in nanoseconds."""
        return max(self.share * duration_ns, self.absolute_ns)

    def __str__(self) -> str:
        parts = (f"{100 * self.share:.3g} % of its time", f"{self.absolute_ns / 1000:.3g} us")
        return " or ".join(part for part, wanted in zip(parts, (self.share, self.absolute_ns), strict=True) if wanted)


def _percent(number: str, text: str, key: str) -> float:
    try:
        share = float(number) / 100
    except ValueError:
        share = math.nan
    if not 0 < share <= 1:
        raise ConfigError(_wrong(text, key))
    return share


def _nanoseconds(part: str, text: str, key: str) -> float:
    try:
        return parse_duration(part, key).total_seconds() * 1e9
    except ConfigError as error:
        raise ConfigError(_wrong(text, key)) from error


def _wrong(text: str, key: str) -> str:
    return (
        f"{key} is {text!r}; write a share of a request's time, a time, or both, of which the larger holds, such as "
        "1%,100us; or 0 for no budget"
    )


class Look(NamedTuple):
    """What a stretch of time was like.

    Args:
        now: Its end, by a monotonic clock. [seconds]
        costs_ns: What a request costs or would cost, by level; at the last, which records nothing, 0. [nanoseconds]
        duration_ns: How long requests take. [nanoseconds]
        rate: How many there are. [1/s]
    """

    now: float
    costs_ns: Sequence[float]
    duration_ns: float
    rate: float


class Governor:
    """Decides the level.

    Args:
        budget: What the agent may cost.

    Attributes:
        level: What may be recorded; a position in `AGENT_LEVELS`.
    """

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.level = ALL
        self._calm_seconds = CALM_SECONDS
        # Since when the budget has been exceeded, since when there has been room, and when there last was a rise.
        self._over: float | None = None
        self._room: float | None = None
        self._rose = -math.inf

    def look(self, look: Look) -> bool:
        """Take in how things are; say whether that changes the level."""
        fitting, roomy = (self._first_fit(look, part) for part in (1.0, ROOM))
        self._over = None if fitting <= self.level else look.now if self._over is None else self._over
        self._room = None if roomy >= self.level else look.now if self._room is None else self._room
        if self._over is not None and look.now - self._over >= PATIENCE_SECONDS:
            self._fall(fitting, look.now)
        elif self._room is not None and look.now - self._room >= self._calm_seconds:
            self._rise(roomy, look.now)
        else:
            return False
        return True

    def rest(self, now: float) -> bool:
        """Where nothing is recorded, and so nothing known, count requests again after a while; say whether that is now."""
        self._room = now if self._room is None else self._room
        if self.level != NOTHING or now - self._room < self._calm_seconds:
            return False
        self._rise(REQUESTS_ONLY, now)
        return True

    def _fall(self, level: int, now: float) -> None:
        relapsed = now - self._rose < RELAPSE_SECONDS
        self._calm_seconds = min(2 * self._calm_seconds, MAX_CALM_SECONDS) if relapsed else CALM_SECONDS
        self._go(level)

    def _rise(self, level: int, now: float) -> None:
        self._rose = now
        self._go(level)

    def _go(self, level: int) -> None:
        self.level = level
        self._over = self._room = None

    def _first_fit(self, look: Look, part: float) -> int:
        """Return the first level whose cost is within *part* of what it may be."""
        allowed_ns, free_ns = part * self._budget.allows_ns(look.duration_ns), part * FREE_SHARE * 1e9
        return next(
            level for level, cost in enumerate(look.costs_ns) if cost <= allowed_ns or cost * look.rate <= free_ns
        )
