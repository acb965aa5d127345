"""Advice: which stages of a service are worth optimizing, for what cause, and how much can be gained.

The reachable latency is not part of a finding, because it needs a what-if query. `advice.yaml` is the catalog of optimizations.
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
from ..core.stages import BY_KEY, OTHER, UNEXPLAINED, label
from .breakdown import Measures
from .costs import cost_by_stage
from .replicas import ReplicaOutlier

_FILE = Path(__file__).parent / "advice.yaml"
# Quantities by which advice is ranked: `ttft` and `tpot` are p99 of the time to the first token and per output token.
RANKS = ("p99", "p50", "ttft", "tpot", "cost")
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
# A median below this share of the latency is noise: no ratio to it means anything.
_NOISE = 0.01
# Two ratios within this factor have the same cause.
_ALIKE = 1.35
# Ratio from which a stage counts as slow in only one version or route.
_ALONE = 2.0
_MEDIAN = 0.5
# If limiting a stage to its median gains less, the percentile is not high because of some requests only. [ratio]
_EVEN = 0.01


@dataclass(frozen=True, slots=True)
class Option:
    """Optimization of the catalog; `advice.yaml` describes the fields."""

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
    """Optimizations for one kind of stage time, and for *own_stages* of the user; the first of *causes* applies if none is known."""

    key: str
    name: str
    stages: tuple[str, ...]
    causes: Mapping[str, Mapping[str, str]]
    options: tuple[Option, ...]
    own_stages: bool = False


@cache
def families() -> tuple[Family, ...]:
    entries: list[dict[str, Any]] = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
    return tuple(_family(**entry) for entry in entries)


def _family(*, stages: list[str], options: list[dict[str, Any]], **rest: Any) -> Family:
    return Family(stages=tuple(stages), options=tuple(Option(**option) for option in options), **rest)


def family_of(stage: str) -> Family | None:
    """Return the family for *stage*; None if the catalog has none.

    >>> family_of("queue").key, family_of("my_rerank").key
    ('batching', 'cpu')
    """
    is_custom = stage not in BY_KEY
    return next((family for family in families() if stage in family.stages or (is_custom and family.own_stages)), None)


@dataclass(frozen=True, slots=True)
class Facts:
    """Measured facts of one service; times in seconds, *response_tokens* at p50 and p99.

    With a *metric*, *measures* are those of that time instead of the latency. *called* is what slow requests called, as a sentence.
    """

    service: str
    measures: Measures
    means: Mapping[str, float] = field(default_factory=dict[str, float])
    failed_calls: int = 0
    response_tokens: tuple[float, float] | None = None
    metric: Literal["", "TTFT", "TPOT"] = ""
    called: str = ""

    def median(self, stage: str) -> float:
        return self.measures.median_stages.get(stage, 0.0)

    def tail(self, stage: str) -> float:
        return self.measures.tail_stages.get(stage, 0.0)

    def name(self, percentile: str) -> str:
        """Return the name of a percentile of the measured time: `p99`, or `TTFT p99`."""
        return f"{self.metric} {percentile}".lstrip()


@dataclass(frozen=True, slots=True)
class StageFinding:
    """Stage time of a service that is worth working on."""

    facts: Facts
    stage: str
    family: Family

    @property
    def key(self) -> str:
        """Name of the finding in events."""
        return f"{self.family.key}:{self.stage}"

    @property
    def cause(self) -> str:
        match self.family.key:
            case "batching":
                return "bursts" if self._is_rare else "saturation"
            case "cold-start":
                return "cold_starts" if self._is_rare else "repeated_loads"
            case "cpu":
                return "uneven_work" if self.more else "rare_work" if self._is_rare else "steady_work"
            case "decode":
                return self._decode_cause
            case "pace":
                return (
                    "slow_pace"
                    if self.facts.tail(self.stage) > self.facts.median(self.stage) * _ALIKE
                    else "steady_pace"
                )
            case _:
                return next(iter(self.family.causes))

    @property
    def title(self) -> str:
        """Advice in the imperative: the same words on every page and in the API."""
        title = self.family.causes[self.cause]["title"]
        return title.format(work=label(self.stage).lower(), direction="from" if self.stage == "d2h" else "to")

    @property
    def more(self) -> float | None:
        """Additional time of slow requests if the stage is slow for some requests only, else None [seconds]."""
        median, tail = self.facts.median(self.stage), self.facts.tail(self.stage)
        is_significant = median > _NOISE * (self.facts.measures.p50 or 0.0)
        return tail - median if is_significant and tail >= _UNEVEN * median else None

    @property
    def _is_rare(self) -> bool:
        p50 = self.facts.measures.p50
        return bool(p50) and self.facts.median(self.stage) < _RARE * p50

    @property
    def _decode_cause(self) -> str:
        lengths, median, tail = self.facts.response_tokens, self.facts.median(self.stage), self.facts.tail(self.stage)
        if lengths is None or not median or not lengths[0]:
            return "slow_decoding"
        return "long_responses" if tail / median <= lengths[1] / lengths[0] * _ALIKE else "slow_tokens"

    def weight(self, rank: str) -> float:
        """Return the estimated gain without a what-if query: share of p99, of p50 or of the cost."""
        facts = self.facts
        if rank == "cost":
            return cost_by_stage(1.0, facts.means or facts.measures.median_stages).get(self.stage, 0.0)
        whole, gap_seconds = (
            (facts.measures.p50, facts.median(self.stage))
            if rank == "p50"
            else (facts.measures.p99, facts.tail(self.stage))
        )
        return gap_seconds / whole if whole else 0.0

    def expected(self, rank: str) -> float:
        """Return the sort weight: for a tail the share that the stage adds in it, else `weight`."""
        if quantile_of(rank) == _MEDIAN:
            return self.weight(rank)
        p99, facts = self.facts.measures.p99, self.facts
        return max(facts.tail(self.stage) - facts.median(self.stage), 0.0) / p99 if p99 else 0.0


def replica_advice(slow: ReplicaOutlier) -> str:
    differs = {difference.measure for difference in slow.hardware}
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
    return _MEDIAN if rank in ("p50", "cost") else 0.99


def findings(facts: Facts, rank: str) -> list[StageFinding]:
    """Return the findings with at least `MIN_GAIN` of *rank*, largest expected gain first; none with too few requests."""
    if not has_enough_samples(facts.measures.requests, quantile_of(rank)):
        return []
    stages = {*facts.measures.median_stages, *facts.measures.tail_stages, *facts.means} - {OTHER}
    candidates = [stage_finding for stage in stages if (stage_finding := _finding(facts, stage)) is not None]
    worth = [finding for finding in candidates if finding.weight(rank) >= MIN_GAIN]
    return sorted(worth, key=lambda finding: (-finding.expected(rank), -finding.weight(rank), finding.key))


def largest_findings(services: Iterable[Facts], rank: str) -> list[StageFinding]:
    """Return the largest finding of each service if its gain is at least `WORTH`, largest first."""
    tops = [top for facts in services for top in findings(facts, rank)[:1] if top.expected(rank) >= WORTH]
    return sorted(tops, key=lambda finding: (-finding.expected(rank), finding.facts.service))


def _finding(facts: Facts, stage: str) -> StageFinding | None:
    pace = next(family for family in families() if family.key == "pace") if facts.metric == "TPOT" else None
    family = pace or family_of(stage)
    if family is None or (stage in UNEXPLAINED and not _has_gap(facts)):
        return None
    return StageFinding(facts, stage, family)


def _has_gap(facts: Facts) -> bool:
    p50, p99 = facts.measures.p50, facts.measures.p99
    median, tail = sum(map(facts.median, UNEXPLAINED)), sum(map(facts.tail, UNEXPLAINED))
    shares = [median / p50 if p50 else 0.0, tail / p99 if p99 else 0.0]
    return max(shares) > _MUCH_OVERHEAD


def slow_alone(seconds: Mapping[str, float | None]) -> tuple[str, str] | None:
    """Return the only version or route in which a stage is slow, and the next one; None if several are.

    >>> slow_alone({"1.0": 0.1, "2.0": 0.25, "3.0": None}), slow_alone({"1.0": 0.1, "2.0": 0.15})
    (('2.0', '1.0'), None)
    """
    by_seconds = sorted((stage_seconds, value) for value, stage_seconds in seconds.items() if stage_seconds is not None)
    if len(by_seconds) > 1 and by_seconds[-1][0] >= _ALONE * by_seconds[-2][0]:
        return by_seconds[-1][1], by_seconds[-2][1]
    return None


@dataclass(frozen=True, slots=True)
class ReachableLatency:
    """Latency at one percentile: measured, with the stage limited to its median in every request, and without the stage [seconds]."""

    name: str
    before: float
    usual: float
    without: float

    @classmethod
    def within(
        cls, finding: StageFinding, quantile: float, usual: float = 0.0, without: float = 0.0
    ) -> ReachableLatency:
        """Return the prediction *usual* and *without*, but not less than the breakdown at *quantile* allows."""
        facts, stage, median = finding.facts, finding.stage, finding.facts.median(finding.stage)
        at_median = quantile == _MEDIAN
        before = (facts.measures.p50 if at_median else facts.measures.p99) or 0.0
        removed = median if at_median else facts.tail(stage)
        lowest = max(before - removed, 0.0), before - max(removed - median, 0.0)
        without = min(max(without, lowest[0]), before)
        name = facts.name("p50" if at_median else "p99")
        return cls(name, before, min(max(usual, lowest[1], without), before), without)

    @property
    def ceiling(self) -> float:
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
        return self._gain(self.after)

    def _gain(self, seconds: float) -> float:
        return 1 - seconds / self.before if self.before else 0.0


@dataclass(frozen=True, slots=True)
class Mark:
    """Newest user mark of a piece of advice."""

    state: Literal["open", "dismissed", "snoozed", "done"]
    at: datetime
    until: datetime | None = None

    def hides(self, now: datetime) -> bool:
        return self.state in ("dismissed", "done") or (self.until is not None and now < self.until)


@dataclass(frozen=True, slots=True)
class Advice:
    """Finding with its reachable latency and user mark."""

    finding: StageFinding
    reach: ReachableLatency | None
    mark: Mark | None

    def is_hidden(self, now: datetime) -> bool:
        return self.mark is not None and self.mark.hides(now)

    def gain(self, rank: str) -> float:
        return self.finding.weight(rank) if rank == "cost" or self.reach is None else self.reach.gain

    def ceiling(self, rank: str) -> float:
        return self.finding.weight(rank) if rank == "cost" or self.reach is None else self.reach.ceiling

    def is_uneven(self, rank: str) -> bool:
        """Return whether the quantity *rank* is high because the stage is slow for some requests only."""
        return rank != "cost" and self.reach is not None and self.reach.is_uneven


def worthwhile(advice: Iterable[Advice], rank: str) -> list[Advice]:
    """Return advice with a gain of at least `MIN_GAIN`: first on stages that are slow for some requests only, then the largest gain."""
    worth = (option for option in advice if option.ceiling(rank) >= MIN_GAIN)
    return sorted(worth, key=lambda option: (not option.is_uneven(rank), -option.gain(rank)))
