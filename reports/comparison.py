"""Two sets of requests beside each other: how much slower, by which stage, and whether they are alike at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..core.confidence import FailureDifference, compare_failures, has_enough_samples
from ..core.histogram import Histogram
from ..core.names import STATUS_ERROR
from ..store import Reader, Selection
from .answers import Answers, answers
from .difference import Difference, Outcome, difference, judge
from .thresholds import Threshold

QUANTILES = (0.5, 0.9, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class StageChange:
    """One stage.

    Args:
        stage: Which one.
        a_seconds: What the requests of A at the percentile spend in it.
        b_seconds: The same of B.
        share: Of the change of the latency there; against it where it is negative.
        own: Its own time at that percentile, of all requests: those without it spent none.
    """

    stage: str
    a_seconds: float
    b_seconds: float
    share: float
    own: Difference


@dataclass(frozen=True, slots=True)
class Judged:
    """What became of a threshold.

    Args:
        threshold: Which.
        outcome: `unknown` where there are too few requests to tell.
        difference: What it was held against; None where the sides have nothing of the kind in common.
    """

    threshold: Threshold
    outcome: Outcome
    difference: Difference | FailureDifference | None


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two.

    Args:
        name: What a person calls it.
        selection: Its requests.
        requests: How many they are; 0 until they were counted.
        has_window: Whether it is a time of a store; a file is compared whole.
    """

    name: str
    selection: Selection
    requests: int = 0
    has_window: bool = False


@dataclass(frozen=True, slots=True)
class Contrast:
    """A comparison.

    Args:
        a: What is compared with.
        b: What is new.
        latency: Of whole requests, by percentile.
        quantile: Where stages are looked at. [0..1]
        stages: Those either side has, the one that grew most first.
        failures: Which shares of them failed.
        answers: What requests that answer token by token were like, by measure.
        mixes: In what the requests themselves differ: dimension, value, its shares in A and in B.
        judged: The thresholds.
        min_requests: How many requests were asked for on either side.
    """

    a: Side
    b: Side
    latency: Sequence[Difference]
    quantile: float
    stages: Sequence[StageChange]
    failures: FailureDifference
    answers: Mapping[str, Answers]
    mixes: Sequence[tuple[str, str, float, float]]
    judged: Sequence[Judged]
    min_requests: int

    @property
    def at(self) -> Difference:
        """The latency at the percentile that stages are looked at."""
        return next(each for each in self.latency if each.quantile == self.quantile)

    @property
    def blamed(self) -> StageChange | None:
        """The stage that moved most in the direction of a clear change; None without one."""
        return max(self.stages, key=lambda each: each.share, default=None) if self.at.is_clear else None

    @property
    def too_few(self) -> bool:
        """Whether either side has fewer requests than were asked for."""
        return min(self.a.requests, self.b.requests) < self.min_requests

    @property
    def outcome(self) -> Outcome:
        """What all thresholds come to."""
        found = {each.outcome for each in self.judged}
        if "failed" in found and not self.too_few:
            return "failed"
        return "unknown" if self.too_few or "unknown" in found else "passed"


def contrast(  # noqa: PLR0917 - two sides, and what is asked of them
    read: Reader,
    a: Side,
    b: Side,
    quantile: float | None,
    thresholds: Sequence[Threshold],
    min_requests: int = 0,
    *,
    strict: bool = False,
) -> Contrast:
    """Compare *a* with *b*, both of which have requests in *read*.

    Args:
        read: Where they are.
        a: What is compared with.
        b: What is new.
        quantile: Where to look at stages; None for the highest of p50, p90 and p99 that so many requests can tell.
        thresholds: What must not be exceeded.
        min_requests: With how few requests on either side nothing is to be told.
        strict: See `judge`.
    """
    sides = _Sides(read, a.selection, b.selection)
    count = min(sides.a.count, sides.b.count)
    at = quantile or next((each for each in (0.99, 0.9) if has_enough_samples(count, each)), 0.5)
    wanted = sorted({*QUANTILES, at, *(each.quantile for each in thresholds if each.is_of_requests)})
    changes = read.compare(a.selection, b.selection, at).to_dict("records")
    stages = [
        StageChange(row["stage"], row["a_seconds"], row["b_seconds"], row["share"], sides.of_stage(row["stage"], at))
        for row in changes
    ]
    judged: list[Judged] = []
    for each in thresholds:
        found = sides.measured(each)
        judged.append(Judged(each, judge(each, found, strict=strict) if found else "unknown", found))
    mixed = read.mix(a.selection, b.selection).to_dict("records")
    mixes = [(row["dimension"], row["value"], row["a_share"], row["b_share"]) for row in mixed if row["changed"]]
    return Contrast(
        replace(a, requests=sides.a.count),
        replace(b, requests=sides.b.count),
        [difference(sides.a, sides.b, each) for each in wanted],
        at,
        stages,
        sides.failures,
        sides.answers,
        mixes,
        judged,
        min_requests,
    )


class _Sides:
    """The distributions of both sides."""

    def __init__(self, read: Reader, a: Selection, b: Selection) -> None:
        self.a, self.b = read.latency(a), read.latency(b)
        self._stages_a, self._stages_b = read.stage_latency(a), read.stage_latency(b)
        failed = [read.latency(replace(side, status=STATUS_ERROR)).count for side in (a, b)]
        self.failures = compare_failures(failed[0], self.a.count, failed[1], self.b.count)
        self.answers = answers(read, a, b)

    def measured(self, threshold: Threshold) -> Difference | FailureDifference | None:
        """Return what *threshold* is about; None where the sides have nothing of the kind in common."""
        if threshold.is_of_errors:
            return self.failures
        if threshold.stage:
            return self.of_stage(threshold.stage, threshold.quantile)
        if threshold.measure:
            found = self.answers.get(threshold.measure)
            return found.at(threshold.quantile) if found else None
        return difference(self.a, self.b, threshold.quantile)

    def of_stage(self, stage: str, quantile: float) -> Difference:
        """Return the change of a stage's own time."""
        before, after = (
            _of_all(self._stages_a.get(stage), self.a.count),
            _of_all(self._stages_b.get(stage), self.b.count),
        )
        return difference(before, after, quantile)


def _of_all(found: Histogram | None, requests: int) -> Histogram:
    """Return *found* with all *requests*: those without the stage spent no time in it."""
    return replace(found, zero=found.zero + max(requests - found.count, 0)) if found else Histogram(zero=requests)
