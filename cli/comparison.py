"""Comparison of two sets of requests: latency and stages at percentiles, tokens, failures and thresholds.

Times to and between tokens have several definitions (`core.names.DEFINITIONS`), which are never mixed: the comparison
uses the definition that most requests of both sides have in common.

Thresholds of `stagelens compare`: `p99:+10%,stage:queue:+5ms,ttft:p50:+20ms,errors:+1%`.

[stage:NAME:|ttft:|tpot:][pNN:]+LIMIT      LIMIT in %, us, ms or s; pNN may be omitted after a name and defaults to p99
errors:+LIMIT                              LIMIT in % of all requests: +1% allows an increase from 2 % to 3 %
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal, TypeAlias

from ..analysis.comparison import FailureDifference, QuantileComparison, compare_failures, compare_quantile
from ..analysis.profile import FunctionGrowth, grown_functions
from ..core.errors import ConfigError
from ..core.histogram import Histogram, has_enough_samples
from ..core.names import FIRST_TOKEN, OUTPUT_TOKEN, STATUS_ERROR
from ..dashboard.ui.format import percentile
from ..store import Reader, Selection

# Measures of streaming requests: time to first token, and time per output token.
MEASURES = MappingProxyType({"ttft": FIRST_TOKEN, "tpot": OUTPUT_TOKEN})

_ERRORS = "errors"
_DEFAULT_QUANTILE = 0.99
_SECONDS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
_PERCENTILE = re.compile(r"p(\d{1,2}(?:\.\d{1,6})?)")
_LIMIT = re.compile(r"\+(\d{1,12}(?:\.\d{1,12})?)\s*(%|us|µs|ms|s)")
_EXAMPLES = "p99:+10%, p50:+2ms, stage:queue:+5ms, stage:forward:p50:+10%, ttft:p99:+10% or errors:+1%"
QUANTILES = (0.5, 0.9, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class Threshold:
    """Maximum increase of a latency, a stage time or the error rate from A to B."""

    text: str
    stage: str
    measure: str
    quantile: float
    limit: float
    is_relative: bool

    @property
    def subject(self) -> str:
        if self.is_of_errors:
            return _ERRORS
        return f"{self.stage or self.measure.upper()} {percentile(self.quantile)}".lstrip()

    @property
    def is_of_requests(self) -> bool:
        return not (self.stage or self.measure)

    @property
    def is_of_errors(self) -> bool:
        return self.measure == _ERRORS

    def allowed(self, before: float) -> float:
        return self.limit * before if self.is_relative else self.limit


def read_thresholds(text: str) -> list[Threshold]:
    """Parse comma-separated thresholds.

    >>> [threshold.subject for threshold in read_thresholds("p99:+10%,stage:queue:+5ms,stage:forward:p50:+1%,ttft:p90:+5ms")]
    ['p99', 'queue p99', 'forward p50', 'TTFT p90']
    """
    thresholds = [_threshold(part.strip()) for part in text.split(",") if part.strip()]
    if not thresholds:
        raise _threshold_error(text, "it is empty")
    return thresholds


def read_percentile(text: str) -> float:
    """Return the quantile, between 0 and 1, of a percentile such as `p99.9`."""
    match = _PERCENTILE.fullmatch(text.strip())
    if match is None or not 0 < float(match[1]) < 100:  # noqa: PLR2004 - per cent
        msg = f"{text!r} is not a percentile between p0 and p100"
        raise ConfigError(msg)
    if float(match[1]) < 1:
        msg = f"{text!r} is below p1, but percentiles are in percent: write p{float(match[1]) * 100:.6g}"
        raise ConfigError(msg)
    return float(match[1]) / 100


def _threshold(text: str) -> Threshold:
    *about, limit = text.split(":")
    if [part.strip() for part in about] == [_ERRORS]:
        return _error_threshold(text, limit)
    stage = measure = ""
    if about[:1] == ["stage"]:
        stage, about = (about[1].strip() if len(about) > 1 else ""), about[2:]
        if not stage:
            raise _threshold_error(text, "it has no stage")
    elif about and about[0].strip() in MEASURES:
        measure, about = about[0].strip(), about[1:]
    if len(about) > 1 or not (about or stage or measure):
        raise _threshold_error(text, f"{':'.join(about)!r} is not a percentile" if about else "it has no measure")
    match = _LIMIT.fullmatch(limit.strip())
    if match is None:
        raise _threshold_error(text, f"{limit!r} is not a limit such as +10%, +500us, +5ms or +1s")
    number, unit = float(match[1]), match[2]
    limit_seconds = number / 100 if unit == "%" else number * _SECONDS[unit]
    return Threshold(text, stage, measure, _quantile(text, about), limit_seconds, unit == "%")


def _error_threshold(text: str, limit: str) -> Threshold:
    match = _LIMIT.fullmatch(limit.strip())
    if match is None or match[2] != "%":
        raise _threshold_error(text, f"{limit!r} is not a share of requests such as +1%")
    return Threshold(text, "", _ERRORS, _DEFAULT_QUANTILE, float(match[1]) / 100, is_relative=False)


def _quantile(text: str, about: list[str]) -> float:
    try:
        return read_percentile(about[0]) if about else _DEFAULT_QUANTILE
    except ConfigError as error:
        raise _threshold_error(text, str(error)) from None


def _threshold_error(text: str, why: str) -> ConfigError:
    return ConfigError(f"--fail-on {text!r}: {why}; write thresholds such as {_EXAMPLES}, separated by commas")


Outcome: TypeAlias = Literal["passed", "failed", "unknown"]


def evaluate_threshold(
    threshold: Threshold, comparison: QuantileComparison | FailureDifference, *, strict: bool
) -> Outcome:
    """Return whether *comparison* exceeds *threshold*; with *strict*, whether the estimate alone does, however few the requests."""
    before = comparison.a if isinstance(comparison, FailureDifference) else comparison.a_value or 0.0
    beyond = comparison.difference > threshold.allowed(before)
    if strict:
        return "failed" if beyond else "passed"
    if math.isinf(comparison.low):
        return "unknown"
    return "failed" if beyond and comparison.low > 0 else "passed"


@dataclass(frozen=True, slots=True)
class StageChange:
    stage: str
    a_seconds: float
    b_seconds: float
    share: float
    own: QuantileComparison


@dataclass(frozen=True, slots=True)
class ThresholdResult:
    threshold: Threshold
    outcome: Outcome
    difference: QuantileComparison | FailureDifference | None


@dataclass(frozen=True, slots=True)
class Side:
    name: str
    selection: Selection
    requests: int = 0
    has_window: bool = False


@dataclass(frozen=True, slots=True)
class RunComparison:
    a: Side
    b: Side
    latency: Sequence[QuantileComparison]
    quantile: float
    stages: Sequence[StageChange]
    failures: FailureDifference
    token_times: Mapping[str, TokenTimes]
    mixes: Sequence[tuple[str, str, float, float]]
    threshold_results: Sequence[ThresholdResult]
    min_requests: int
    functions: Sequence[FunctionGrowth] = ()

    @property
    def at(self) -> QuantileComparison:
        return next(comparison for comparison in self.latency if comparison.quantile == self.quantile)

    @property
    def largest_change(self) -> StageChange | None:
        return max(self.stages, key=lambda change: change.share, default=None) if self.at.has_changed else None

    @property
    def blamed_function(self) -> FunctionGrowth | None:
        change = self.largest_change if self.at.kind == "regression" else None
        stage = change.stage if change else None
        return next((function for function in self.functions if function.stage == stage and function.is_cause), None)

    @property
    def too_few(self) -> bool:
        return min(self.a.requests, self.b.requests) < self.min_requests

    @property
    def outcome(self) -> Outcome:
        outcomes = {result.outcome for result in self.threshold_results}
        if "failed" in outcomes and not self.too_few:
            return "failed"
        return "unknown" if self.too_few or "unknown" in outcomes else "passed"


def compare_sides(  # noqa: PLR0917 - two sides and their options
    read: Reader,
    a: Side,
    b: Side,
    quantile: float | None,
    thresholds: Sequence[Threshold],
    min_requests: int = 0,
    *,
    strict: bool = False,
) -> RunComparison:
    """Compare *a* with *b*, which have requests in *read*; without *quantile* stages at the highest of p50, p90 and p99."""
    sides = _Distributions(read, a.selection, b.selection)
    count = min(sides.a.count, sides.b.count)
    at = quantile or next((quantile for quantile in (0.99, 0.9) if has_enough_samples(count, quantile)), 0.5)
    wanted = sorted({*QUANTILES, at, *(threshold.quantile for threshold in thresholds if threshold.is_of_requests)})
    changes = read.compare(a.selection, b.selection, at).to_dict("records")
    stages = [
        StageChange(row["stage"], row["a_seconds"], row["b_seconds"], row["share"], sides.of_stage(row["stage"], at))
        for row in changes
    ]
    results: list[ThresholdResult] = []
    for threshold in thresholds:
        measured = sides.measured(threshold)
        outcome = evaluate_threshold(threshold, measured, strict=strict) if measured else "unknown"
        results.append(ThresholdResult(threshold, outcome, measured))
    mixed = read.mix(a.selection, b.selection).to_dict("records")
    mixes = [(row["dimension"], row["value"], row["a_share"], row["b_share"]) for row in mixed if row["changed"]]
    return RunComparison(
        replace(a, requests=sides.a.count),
        replace(b, requests=sides.b.count),
        [compare_quantile(sides.a, sides.b, quantile) for quantile in wanted],
        at,
        stages,
        sides.failures,
        sides.token_times,
        mixes,
        results,
        min_requests,
        _grown_functions(read, a.selection, b.selection, at),
    )


def _grown_functions(read: Reader, a: Selection, b: Selection, quantile: float) -> list[FunctionGrowth]:
    before, after = (read.profile(side, (quantile,)) for side in (a, b))
    return grown_functions(before[0], after[0]) if before and after else []


class _Distributions:
    def __init__(self, read: Reader, a: Selection, b: Selection) -> None:
        self.a, self.b = read.latency(a), read.latency(b)
        self._stages_a, self._stages_b = read.stage_latency(a), read.stage_latency(b)
        failed = [read.latency(replace(side, status=STATUS_ERROR)).count for side in (a, b)]
        self.failures = compare_failures(failed[0], self.a.count, failed[1], self.b.count)
        self.token_times = token_times(read, a, b)

    def measured(self, threshold: Threshold) -> QuantileComparison | FailureDifference | None:
        if threshold.is_of_errors:
            return self.failures
        if threshold.stage:
            return self.of_stage(threshold.stage, threshold.quantile)
        if threshold.measure:
            times = self.token_times.get(threshold.measure)
            return times.at(threshold.quantile) if times else None
        return compare_quantile(self.a, self.b, threshold.quantile)

    def of_stage(self, stage: str, quantile: float) -> QuantileComparison:
        sides = ((self._stages_a, self.a), (self._stages_b, self.b))
        before, after = (_with_absent_requests(of.get(stage, Histogram()), requests.count) for of, requests in sides)
        return compare_quantile(before, after, quantile)


def _with_absent_requests(histogram: Histogram, requests: int) -> Histogram:
    return replace(histogram, zero=histogram.zero + max(requests - histogram.count, 0))


@dataclass(frozen=True, slots=True)
class TokenTimes:
    """Time to first token, or time per output token, of both sides."""

    measure: str
    definition: str
    a: Histogram
    b: Histogram
    excluded: tuple[int, int]

    def at(self, quantile: float) -> QuantileComparison | None:
        return compare_quantile(self.a, self.b, quantile) if self.definition else None


def token_times(read: Reader, a: Selection, b: Selection) -> dict[str, TokenTimes]:
    histograms = ((name, read.streams(a, metric), read.streams(b, metric)) for name, metric in MEASURES.items())
    return {name: _common_times(name, of_a, of_b) for name, of_a, of_b in histograms if of_a or of_b}


def _common_times(measure: str, a: Mapping[str, Histogram], b: Mapping[str, Histogram]) -> TokenTimes:
    common = {definition: min(a[definition].count, b[definition].count) for definition in a.keys() & b.keys()}
    chosen = max(common, key=lambda definition: (common[definition], definition), default="")
    of_a, of_b = a.get(chosen, Histogram()), b.get(chosen, Histogram())
    excluded = (
        sum(histogram.count for histogram in a.values()) - of_a.count,
        sum(histogram.count for histogram in b.values()) - of_b.count,
    )
    return TokenTimes(measure, chosen, of_a, of_b, excluded)
