"""Canary comparison of running services: the versions that serve at the same time, and their alarm state.

The comparison itself is in `analysis.regression.canary`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ...analysis.regression.canary import compare_versions, is_serving, versions_to_compare
from ...analysis.regression.policy import TailPolicy, WatchPolicy
from ...analysis.regression.scoring import AlarmRules, AlarmState, TailScore, advance_alarm
from ...analysis.regression.statistic import MinuteHistograms, Row, TailCounts
from ...store import Group
from .series import append_minutes, count_minutes, longest_window, make_cause, minutes_before


def canary_cause(whole: Group, *versions: str) -> str:
    return make_cause("canary", whole.service, *versions, environment=whole.environment)


def version_group(whole: Group, version: str) -> Group:
    return replace(whole, dimension="version", value=version)


@dataclass(slots=True)
class VersionPair:
    whole: Group
    old: str
    new: str
    progress: AlarmState
    since: int
    last_score: TailScore | None = None

    @property
    def key(self) -> str:
        return canary_cause(self.whole, self.old, self.new)


@dataclass(slots=True)
class ServiceVersions:
    whole: Group
    rows: tuple[Row, ...]
    policy: TailPolicy
    watching: WatchPolicy
    pair: VersionPair | None = None
    strictness: float = 1.0
    _recent: dict[str, TailCounts] = field(default_factory=dict[str, TailCounts])

    @property
    def cause(self) -> str:
        return canary_cause(self.whole)

    def advance(
        self,
        minutes: Mapping[Group, MinuteHistograms],
        seen: Mapping[str, int],
        span: tuple[int, int],
        loaded: Mapping[str, AlarmState],
    ) -> None:
        self._count(minutes, seen, span)
        versions = versions_to_compare(self.serving(), seen)
        if versions is None:
            self.pair = None
            return
        old, new = versions
        if self.pair is None or (self.pair.old, self.pair.new) != (old, new):
            pair = VersionPair(self.whole, old, new, AlarmState(at=span[0]), max(seen[old], seen[new]))
            self.pair = replace(pair, progress=loaded.get(pair.key, pair.progress))
        self._score_pair(self.pair, span)

    def serving(self) -> set[str]:
        return {version for version, recent in self._recent.items() if is_serving(self.watching, recent.requests)}

    def _count(self, minutes: Mapping[Group, MinuteHistograms], seen: Mapping[str, int], span: tuple[int, int]) -> None:
        for version in seen:
            counts = minutes.get(version_group(self.whole, version))
            before = self._recent.get(version)
            if counts is None and before is None:
                continue
            counted = count_minutes(self.rows, counts, *span)
            self._recent[version] = append_minutes(before, counted, longest_window(self.policy))
        self._recent = {version: recent for version, recent in self._recent.items() if recent.requests.any()}

    def _score_pair(self, pair: VersionPair, span: tuple[int, int]) -> None:
        policy = self.policy
        rules = AlarmRules.of_canary(policy, self.strictness)
        old, new = self._recent[pair.old], self._recent[pair.new]
        start = max(old.start, new.start, pair.since)
        for at in range(max(span[0], pair.progress.at) + 1, span[1] + 1):
            sides = [
                minutes_before(histograms, at, min(longest_window(policy), at - start)) for histograms in (old, new)
            ]
            if at <= start or not all(len(side) and side.requests[-1] for side in sides):
                pair.progress = replace(pair.progress, at=at)
                continue
            cold = max(pair.since + policy.canary.cold - sides[0].start, 0)
            pair.last_score = compare_versions(policy, self.rows, sides[0], sides[1], cold=cold)
            pair.progress, _ = advance_alarm(rules, pair.progress, at, pair.last_score)
