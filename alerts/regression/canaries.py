"""Two versions of a service that serve together, compared minute by minute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ...store import Group, MinuteCounts
from . import canary
from .alarm import Progress, Rules, step
from .policy import TailPolicy
from .scoring import Judgement
from .series import cause_of, count, joined, longest, until
from .tally import Row, Tally
from .watching_policy import Watching


def cause_of_pair(whole: Group, *versions: str) -> str:
    """Return the cause of the incident of the versions of *whole*, or under what that of two of them is kept."""
    return cause_of("canary", whole.service, *versions, environment=whole.environment)


def of_version(whole: Group, version: str) -> Group:
    """Return the part of *whole* that is of *version*."""
    return replace(whole, dimension="version", value=version)


@dataclass(slots=True)
class Pair:
    """Two versions that serve together.

    Args:
        whole: The service whose versions they are.
        old: The version that was first.
        new: The canary.
        progress: How the comparison stands.
        since: The first minute in which both served.
        judged: What was found last.
    """

    whole: Group
    old: str
    new: str
    progress: Progress
    since: int
    judged: Judgement | None = None

    @property
    def key(self) -> str:
        """What its progress is kept under."""
        return cause_of_pair(self.whole, self.old, self.new)


@dataclass(slots=True)
class Canaries:
    """The versions of one service.

    Args:
        whole: The service.
        rows: What is asked.
        policy: What matters.
        watching: From when on two versions are compared.
        pair: The two that are compared, if two serve together.
    """

    whole: Group
    rows: tuple[Row, ...]
    policy: TailPolicy
    watching: Watching
    pair: Pair | None = None
    _recent: dict[str, Tally] = field(default_factory=dict[str, Tally])

    @property
    def cause(self) -> str:
        """The cause of its incident."""
        return cause_of_pair(self.whole)

    def go_on(
        self,
        found: Mapping[Group, MinuteCounts],
        seen: Mapping[str, int],
        span: tuple[int, int],
        kept: Mapping[str, Progress],
    ) -> None:
        """Count and judge the minutes of *span*.

        Args:
            found: What the store counted.
            seen: The versions of the service, and the minute each was first seen in.
            span: The first minute, and that after the last.
            kept: How comparisons stood when this process began.
        """
        self._count(found, seen, span)
        serving = sorted(self.serving() & set(seen), key=lambda version: (seen[version], version))
        if len(serving) < 2:  # noqa: PLR2004 - a pair
            self.pair = None
            return
        old, new = serving[-2:]
        if self.pair is None or (self.pair.old, self.pair.new) != (old, new):
            begun = Pair(self.whole, old, new, Progress(at=span[0]), max(seen[old], seen[new]))
            self.pair = replace(begun, progress=kept.get(begun.key, begun.progress))
        self._judge(self.pair, span)

    def serving(self) -> set[str]:
        """Return the versions that have served of late."""
        minutes = round(self.watching.together.total_seconds() / 60)
        least = max(self.watching.share * minutes, 1)
        return {version for version, each in self._recent.items() if (each.requests[-minutes:] > 0).sum() >= least}

    def _count(self, found: Mapping[Group, MinuteCounts], seen: Mapping[str, int], span: tuple[int, int]) -> None:
        for version in seen:
            counts = found.get(of_version(self.whole, version))
            before = self._recent.get(version)
            if counts is None and before is None:
                continue
            counted = count(self.rows, counts, *span)
            self._recent[version] = joined(before, counted, longest(self.policy))
        self._recent = {version: each for version, each in self._recent.items() if each.requests.any()}

    def _judge(self, pair: Pair, span: tuple[int, int]) -> None:
        policy = self.policy
        rules = Rules(policy.canary.windows, policy.fire, policy.stage_key.ease)
        old, new = self._recent[pair.old], self._recent[pair.new]
        begun = max(old.start, new.start, pair.since)
        for at in range(max(span[0], pair.progress.at) + 1, span[1] + 1):
            sides = [until(each, at, min(longest(policy), at - begun)) for each in (old, new)]
            if at <= begun or not all(len(side) and side.requests[-1] for side in sides):
                pair.progress = replace(pair.progress, at=at)
                continue
            pair.judged = canary.compare(policy, self.rows, sides[0], sides[1])
            pair.progress, _ = step(rules, pair.progress, at, pair.judged)
