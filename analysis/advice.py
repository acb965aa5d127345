"""Advice: which stages of a service are worth optimizing, for what cause, and how much can be gained.

A finding states that a stage takes enough time to be worth optimizing. The reachable latency is not part of a finding, because
it needs a what-if query that sorts all requests again. The catalog of optimizations is `advice.yaml`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml

from ..core import hardware as measures
from ..core.histogram import has_enough_samples
from ..core.stages import BY_KEY, OTHER, UNEXPLAINED
from .breakdown import Measures
from .costs import cost_by_stage
from .replicas import ReplicaOutlier

_FILE = Path(__file__).parent / "advice.yaml"
# Quantities by which advice is ranked.
RANKS = ("p99", "p50", "cost")
# Findings below this share of the ranked quantity are left out.
MIN_GAIN = 0.03
# A list of many services contains findings with at least this share of the ranked quantity.
WORTH = 0.2
# Unattributed share from which it is a finding of its own.
_MUCH_OVERHEAD = 0.15
# A stage with a smaller share of the median occurs only in the tail.
_RARE = 0.10
# Ratio of p99 to p50 from which a stage counts as slow for some requests only.
_UNEVEN = 3.0
# Two ratios within this factor have the same cause.
_ALIKE = 1.35
# Ratio from which a stage counts as slow in only one version or route.
_ALONE = 2.0
# If limiting a stage to its median gains less, the percentile is not high because of some requests only. [ratio]
_EVEN = 0.01
Cause = Literal[
    "bursts",
    "saturation",
    "cold_starts",
    "repeated_loads",
    "uneven_work",
    "rare_work",
    "steady_work",
    "slow_decoding",
    "long_responses",
    "slow_tokens",
    "slow_calls",
    "missing_stages",
    "endpoint_work",
    "framework_work",
    "unrecorded_stages",
    "model_work",
]


@dataclass(frozen=True, slots=True)
class Option:
    """Optimization of the catalog; every field is a few words.

    Args:
        name: Name of the optimization.
        does: Effect of the optimization.
        gain: Possible gain, an upper bound.
        accuracy: Effect on the results.
        complexity: `low`, `medium` or `high`.
        hardware: Additional hardware.
        reversible: How to revert it.
        source: Source of the description.
    """

    name: str
    does: str
    gain: str
    accuracy: str
    complexity: str
    hardware: str
    reversible: str
    source: str


@dataclass(frozen=True, slots=True)
class Family:
    """Family of optimizations for one kind of stage time.

    Args:
        key: Name of the family in addresses and events.
        name: Display name.
        stages: Stages to which the family applies.
        options: Optimizations, the first to try first.
        own_stages: Whether the family also applies to custom stages of the user.
    """

    key: str
    name: str
    stages: tuple[str, ...]
    options: tuple[Option, ...]
    own_stages: bool = False


@cache
def families() -> tuple[Family, ...]:
    """Return all optimization families of the catalog."""
    entries: list[dict[str, Any]] = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
    return tuple(_family(entry) for entry in entries)


def family_of(stage: str) -> Family | None:
    """Return the family for *stage*; None if the catalog has none.

    >>> family_of("queue").key, family_of("my_rerank").key
    ('batching', 'cpu')
    """
    own = stage not in BY_KEY
    return next((each for each in families() if stage in each.stages or (own and each.own_stages)), None)


def _family(entry: dict[str, Any]) -> Family:
    options = tuple(Option(**option) for option in entry["options"])
    own_stages = bool(entry.get("own_stages"))
    return Family(str(entry["key"]), str(entry["name"]), tuple(entry["stages"]), options, own_stages=own_stages)


@dataclass(frozen=True, slots=True)
class Facts:
    """Measured facts of one service.

    Args:
        service: Name of the service.
        measures: Measures of its requests.
        means: Mean time by stage; median stage times if unknown. [seconds]
        failed_calls: Number of failed calls to other services. [count]
        response_tokens: Response length at p50 and p99; None without token counts. [tokens]
    """

    service: str
    measures: Measures
    means: Mapping[str, float] = field(default_factory=dict[str, float])
    failed_calls: int = 0
    response_tokens: tuple[float, float] | None = None

    def median(self, stage: str) -> float:
        """Return the time [seconds] of *stage* at p50."""
        return self.measures.median_stages.get(stage, 0.0)

    def tail(self, stage: str) -> float:
        """Return the time [seconds] of *stage* at p99."""
        return self.measures.tail_stages.get(stage, 0.0)


@dataclass(frozen=True, slots=True)
class StageFinding:
    """Stage time of a service that is worth working on.

    Args:
        facts: Facts of the service.
        stage: Key of the stage.
        family: Optimizations for the stage.
    """

    facts: Facts
    stage: str
    family: Family

    @property
    def key(self) -> str:
        """Name of the finding in events."""
        return f"{self.family.key}:{self.stage}"

    @property
    def cause(self) -> Cause:
        """Cause of the stage time, as far as the facts show it."""
        causes: dict[str, Cause] = {
            "batching": "bursts" if self._is_rare else "saturation",
            "cold-start": "cold_starts" if self._is_rare else "repeated_loads",
            "cpu": "uneven_work" if self.slowdown else "rare_work" if self._is_rare else "steady_work",
            "endpoint": "endpoint_work",
            "framework": "framework_work",
            "decode": self._decode_cause,
            "dependency": "slow_calls",
            "instrumentation": "missing_stages",
            "recording": "unrecorded_stages",
        }
        return causes.get(self.family.key, "model_work")

    @property
    def slowdown(self) -> float | None:
        """Ratio of p99 to p50 of the stage if it is slow for some requests only, else None."""
        median, tail = self.facts.median(self.stage), self.facts.tail(self.stage)
        return tail / median if median > 0 and tail / median >= _UNEVEN else None

    @property
    def _is_rare(self) -> bool:
        p50 = self.facts.measures.p50
        return bool(p50) and self.facts.median(self.stage) < _RARE * p50

    @property
    def _decode_cause(self) -> Cause:
        lengths, median = self.facts.response_tokens, self.facts.median(self.stage)
        if lengths is None or not median or not lengths[0]:
            return "slow_decoding"
        longer, slower = lengths[1] / lengths[0], self.facts.tail(self.stage) / median
        return "long_responses" if slower <= longer * _ALIKE else "slow_tokens"

    def weight(self, rank: str) -> float:
        """Return the estimated gain without a what-if query: share of p99, of p50 or of the cost [ratio]."""
        facts = self.facts
        if rank == "cost":
            return cost_by_stage(1.0, facts.means or facts.measures.median_stages).get(self.stage, 0.0)
        whole, own = (
            (facts.measures.p50, facts.median(self.stage))
            if rank == "p50"
            else (facts.measures.p99, facts.tail(self.stage))
        )
        return own / whole if whole else 0.0

    def expected(self, rank: str) -> float:
        """Return the sort weight: for p99 the share that the stage adds in the tail, else `weight` [ratio]."""
        if rank != "p99":
            return self.weight(rank)
        p99, facts = self.facts.measures.p99, self.facts
        return max(facts.tail(self.stage) - facts.median(self.stage), 0.0) / p99 if p99 else 0.0


def replica_advice(slow: ReplicaOutlier) -> str:
    """Return what to do about a replica that is slower than the others, in the imperative, by the reason its machine shows."""
    differs = {each.measure for each in slow.hardware}
    name = slow.name
    if measures.GPU_HOT in differs:
        return f"Cool the GPU of {name}, or move it to another machine"
    if not differs.isdisjoint({measures.GPU_CLOCK, measures.GPU_CAPPED}):
        return f"Raise the clock or power limit of the GPU of {name}, or move it to another machine"
    if measures.THROTTLED in differs:
        return f"Raise the CPU limit of {name}"
    if measures.HOST_CPU in differs:
        return f"Move {name} to a less busy machine"
    return f"Take {name} out of the traffic, and restart or replace it"


def quantile_of(rank: str) -> float:
    """Return the percentile that *rank* needs; for cost, which is a mean, the median."""
    return 0.99 if rank == "p99" else 0.5


def findings(facts: Facts, rank: str) -> list[StageFinding]:
    """Return the findings that apply, largest expected gain first, without those below `MIN_GAIN` of *rank*.

    With too few requests for the percentile of *rank*, there are none.
    """
    if not has_enough_samples(facts.measures.requests, quantile_of(rank)):
        return []
    stages = {*facts.measures.median_stages, *facts.measures.tail_stages, *facts.means} - {OTHER}
    found = [made for stage in stages if (made := _finding(facts, stage)) is not None]
    worth = [each for each in found if each.weight(rank) >= MIN_GAIN]
    return sorted(worth, key=lambda each: (-each.expected(rank), -each.weight(rank), each.key))


def largest_findings(services: Iterable[Facts], rank: str) -> list[StageFinding]:
    """Return the largest finding of each service if its gain is at least `WORTH`, largest first."""
    tops = [top for facts in services for top in findings(facts, rank)[:1] if top.expected(rank) >= WORTH]
    return sorted(tops, key=lambda each: (-each.expected(rank), each.facts.service))


def _finding(facts: Facts, stage: str) -> StageFinding | None:
    family = family_of(stage)
    if family is None or (stage in UNEXPLAINED and not _has_gap(facts)):
        return None
    return StageFinding(facts, stage, family)


def _has_gap(facts: Facts) -> bool:
    """Return whether too much time has no known cause."""
    p50, p99 = facts.measures.p50, facts.measures.p99
    median, tail = sum(map(facts.median, UNEXPLAINED)), sum(map(facts.tail, UNEXPLAINED))
    shares = [median / p50 if p50 else 0.0, tail / p99 if p99 else 0.0]
    return max(shares) > _MUCH_OVERHEAD


def slow_alone(seconds: Mapping[str, float | None]) -> tuple[str, str] | None:
    """Return the only version or route in which a stage is slow, and the next one; None if several are.

    Args:
        seconds: Stage time by version or route; None if unknown.

    >>> slow_alone({"1.0": 0.1, "2.0": 0.25, "3.0": None}), slow_alone({"1.0": 0.1, "2.0": 0.15})
    (('2.0', '1.0'), None)
    """
    known = sorted((each, value) for value, each in seconds.items() if each is not None)
    if len(known) > 1 and known[-1][0] >= _ALONE * known[-2][0]:
        return known[-1][1], known[-2][1]
    return None


@dataclass(frozen=True, slots=True)
class ReachableLatency:
    """Reachable latency at one percentile.

    Args:
        name: Name of the percentile: `p99`.
        before: Measured latency. [seconds]
        usual: Latency with the stage limited to its median in every request. [seconds]
        without: Latency without the stage, the lower bound. [seconds]
    """

    name: str
    before: float
    usual: float
    without: float

    @property
    def ceiling(self) -> float:
        """Largest possible relative gain [ratio]."""
        return self._gain(self.without)

    @property
    def is_uneven(self) -> bool:
        """Whether limiting the stage to its median lowers the percentile; if not, only a faster stage lowers it."""
        return self._gain(self.usual) > _EVEN

    @property
    def after(self) -> float:
        """Latency with the stage limited to its median; if that has no effect, without the stage [seconds]."""
        return self.usual if self.is_uneven else self.without

    @property
    def gain(self) -> float:
        """Relative gain of `after` [ratio]."""
        return self._gain(self.after)

    def _gain(self, seconds: float) -> float:
        return 1 - seconds / self.before if self.before else 0.0


@dataclass(frozen=True, slots=True)
class Mark:
    """Newest user mark of a piece of advice.

    Args:
        state: State set by the user.
        at: Time of the mark.
        until: End of a snooze; None for other states.
    """

    state: Literal["open", "dismissed", "snoozed", "done"]
    at: datetime
    until: datetime | None = None

    def hides(self, now: datetime) -> bool:
        return self.state in ("dismissed", "done") or (self.until is not None and now < self.until)


@dataclass(frozen=True, slots=True)
class Advice:
    """Finding with its reachable latency and user mark.

    Args:
        finding: Finding on which the advice is based.
        reach: Reachable latency; None if it is unknown.
        mark: Newest user mark; None without one.
    """

    finding: StageFinding
    reach: ReachableLatency | None
    mark: Mark | None

    def is_hidden(self, now: datetime) -> bool:
        """Return whether the user's mark hides the advice at the time *now*."""
        return self.mark is not None and self.mark.hides(now)

    def gain(self, rank: str) -> float:
        """Return the expected gain of the quantity *rank* as a ratio."""
        return self.finding.weight(rank) if rank == "cost" or self.reach is None else self.reach.gain

    def ceiling(self, rank: str) -> float:
        """Return the upper bound of the gain of the quantity *rank* as a ratio."""
        return self.finding.weight(rank) if rank == "cost" or self.reach is None else self.reach.ceiling

    def is_uneven(self, rank: str) -> bool:
        """Return whether the quantity *rank* is high because the stage is slow for some requests only."""
        return rank != "cost" and self.reach is not None and self.reach.is_uneven


def worthwhile(found: Iterable[Advice], rank: str) -> list[Advice]:
    """Return the advice with a possible gain of at least `MIN_GAIN`.

    Advice on stages that are slow for some requests only comes first, then the largest gain.
    """
    worth = (each for each in found if each.ceiling(rank) >= MIN_GAIN)
    return sorted(worth, key=lambda each: (not each.is_uneven(rank), -each.gain(rank)))
