"""Minute by minute: whether to say that the last hours are strange, and when that is over."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from .policy import Ease, Fire, Window
from .scoring import Judgement

Turn = Literal["", "fired", "resolved"]


@dataclass(frozen=True, slots=True)
class Progress:
    """Where one series stands; all that must survive a restart beside its reference.

    Args:
        at: The last minute that was judged. [minutes since the epoch]
        since: The first minute that counts: what was before it is over, as with a version that is gone, or was accepted.
        runs: For how long each window has been over its level. [minutes]
        slow: The same for the level that takes patience. [minutes]
        released: The same for the level after a release. [minutes]
        calm: For how long the score has been low. [minutes]
        quiet: For how long it has been below what may precede a release. [minutes]
        released_at: The last release that counts, None if there is none. [minutes since the epoch]
        fired_at: Since when it fires, None while it does not. [minutes since the epoch]

    While it fires its reference stays as it is, or it would learn to live with it. After a version that is gone, or a level
    that was accepted, a new `Progress` begins.
    """

    at: int = 0
    since: int = 0
    runs: tuple[int, ...] = ()
    slow: tuple[int, ...] = ()
    released: tuple[int, ...] = ()
    calm: int = 0
    quiet: int = 0
    released_at: int | None = None
    fired_at: int | None = None

    def to_json(self) -> str:
        """Return it as text."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Progress:
        """Read what `to_json` wrote."""
        raw: dict[str, Any] = json.loads(text)
        raw.update({name: tuple(raw[name]) for name in ("runs", "slow", "released")})
        return cls(**raw)


@dataclass(frozen=True, slots=True)
class Rules:
    """What it takes to fire.

    Args:
        windows: Those that are judged.
        fire: For how long which score.
        ease: What the stages are worth.
    """

    windows: tuple[Window, ...]
    fire: Fire
    ease: Ease


def step(
    rules: Rules, progress: Progress, at: int, judged: Judgement, *, release: bool = False
) -> tuple[Progress, Turn]:
    """Go on by one minute.

    Args:
        rules: What it takes.
        progress: Where the series stood.
        at: The minute. [minutes since the epoch]
        judged: How strange the hours up to it are.
        release: Whether a new version began to serve in this minute.

    Returns:
        Where it stands now, and what happened. Where nothing could be judged, nothing has changed: no data is no good news.
    """
    fire = rules.fire
    if judged.best is None:
        return replace(progress, at=at), ""
    released_at = at if release and progress.quiet >= fire.before else progress.released_at
    age = math.inf if released_at is None else at - released_at
    fresh = fire.begin <= age <= fire.end
    went_on = replace(
        progress,
        at=at,
        runs=_runs(rules, progress.runs, judged, 1.0),
        slow=_runs(rules, progress.slow, judged, fire.slow),
        # A window that began before the release says nothing of it.
        released=_runs(rules, progress.released, judged, fire.released, longest=age if fresh else 0),
        calm=progress.calm + 1 if judged.score < fire.calm else 0,
        quiet=progress.quiet + 1 if judged.score < fire.quiet else 0,
        released_at=released_at,
    )
    return _turn(rules, went_on)


def _turn(rules: Rules, progress: Progress) -> tuple[Progress, Turn]:
    if progress.fired_at is None and _long_enough(rules, progress):
        return replace(progress, fired_at=progress.at), "fired"
    if progress.fired_at is not None and progress.calm >= rules.fire.calm_for:
        return replace(progress, fired_at=None), "resolved"
    return progress, ""


def _long_enough(rules: Rules, progress: Progress) -> bool:
    return (
        any(run >= window.patience for run, window in zip(progress.runs, rules.windows, strict=True))
        or any(run >= rules.fire.slow_for for run in progress.slow)
        or any(run >= window.after_release for run, window in zip(progress.released, rules.windows, strict=True))
    )


def _runs(
    rules: Rules, before: tuple[int, ...], judged: Judgement, part: float, longest: float = math.inf
) -> tuple[int, ...]:
    """Return for how many minutes each window has had *part* of the score it needs; those longer than *longest* have not."""
    eased = rules.ease.needed(judged.key)
    found: list[int] = []
    for run, window, score in zip(before or (0,) * len(rules.windows), rules.windows, judged.scores, strict=True):
        over = score >= part * (1.0 if window.alone else eased) and window.length <= longest
        found.append(run + 1 if over else 0)
    return tuple(found)
