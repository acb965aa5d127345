"""Attributes that slow requests share: values that are more frequent among slow requests than among all others.

Each text, and of numbers each range from the first or to the last band, is tested: does it have more slow requests than its share
of the requests explains?

- Against confusion with time, the expected number is the sum over steps of time: the slow requests of the step, times the share of
  the value at that time (Mantel-Haenszel).
- Slow requests come in bursts, and so do the requests of a tenant. Each request of a step with s slow ones therefore has the weight
  1 / (1 + correlation (s - 1)), as in samples of clusters, and the excess must be spread over several steps.
- Without a cause, the probability of k weighted slow requests with the value, e expected of S, is at most exp(-S KL(k/S, e/S))
  (Chernoff-Hoeffding; with weights up to 1 because cumulants are convex). This exponent, a log-likelihood ratio, also ranks the
  causes: a cause has a larger one than a value that merely contains it, and than a part of it.
- Probabilities are multiplied by the number of values and ranges that were tested (Bonferroni).

Time itself is tested in the requests that the first cause does not have: a period with more slow requests than the other times.

Sources: N. Mantel, W. Haenszel, JNCI 22 (1959), 719-748; L. Kish, Survey Sampling, 5.4 (design effect); W. Hoeffding, JASA 58
(1963), 13-30, theorem 1; P. McCullagh, J. A. Nelder, Generalized Linear Models, 2nd ed., 4.5 (dispersion, for periods);
O. S. Miettinen, Am. J. Epidemiology 99 (1974), 325-332 (attributable fraction).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from ..core.attributes import attribute, band_end, bytes_label, value_label
from ..core.histogram import bucket_bounds, bucket_middle, has_enough_samples
from ..core.stages import OTHER
from .comparison import QUANTILES

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

# Probability of a false claim, over all attributes; the same again for time.
ALPHA = 0.01
# Minimum effect: rate of slow requests relative to the others, and slow requests above the expected number, as a share of all.
MIN_RATIO, MIN_EXCESS = 2.0, 0.15
# Number of slow requests that are enough for a percentile.
_MIN_SLOW = 50
# Minimum number of requests on both sides, and of slow requests with the value.
_MIN_REQUESTS = 5
# Minimum number of steps over which an excess is spread, and of the steps of a period, which is at least 1/20 of the window.
_MIN_STEPS, _PERIODS = 3, 20
# Share of the requests of a version that are in a period, and of those of the period that are of the version, to name the version.
_OF_VERSION, _OF_PERIOD = 0.9, 0.75
# Maximum number of steps for periods; their pairs are tested.
_MAX_STEPS = 120
# Correlation of two slow requests of a step: 0.05 to 0.2 give the same results in `benchmarks/explain.py`.
_CORRELATION = 0.15
# Minimum number of requests of a stratum, in which the share of a value is taken; steps are combined until they have them.
_MIN_STRATUM = 200
# Key of the attribute of time.
WHEN = "time"

# Phrase after "Requests"; others are "with <label> <value>".
_PHRASES = {
    "request_size": "with a request size of {}",
    "response_size": "with a response size of {}",
    "batch_size": "with a batch size of {}",
    "input_tokens": "with {} input tokens",
    "output_tokens": "with {} output tokens",
    "concurrency": "that arrived at {} concurrent requests",
    "queue_length": "that found {} jobs in the queue",
    "caller": "from caller {}",
    "replica": "on replica {}",
    "version": "of version {}",
    "environment": "in environment {}",
    "model": "to model {}",
    "model_version": "to model version {}",
    "route": "to route {}",
    "device": "on device {}",
    WHEN: "from {}",
}


@dataclass(frozen=True, slots=True)
class AttributeCounts:
    """Requests by attribute, value, step of time (t, in Unix seconds) and latency bucket (k); the values of an attribute partition them."""

    scale: int
    index: Ints
    starts: Ints
    requests: Mapping[str, Mapping[str, Ints]]


@dataclass(frozen=True, slots=True)
class SlowRequests:
    """Selected requests: latency in [low, high) seconds and time in [start, end) Unix seconds, in whole buckets and steps."""

    low: float
    high: float
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class SharedCause:
    """Value or range of an attribute that marks slow requests; shares are ratios, and *missing* is that of requests without the attribute.

    *values* of a range are all bands in ascending order, of `WHEN` start and end [Unix seconds]. *explained* is the share of the slow
    requests that would not be slow if the value had the rate of all others at the same time. *p_value* is corrected for the number of
    tests. *with_ms* and *without_ms* are latencies at the percentile; None with too few requests. *same_as* is the label of the
    stronger cause that has the same slow requests.
    """

    key: str
    values: tuple[str, ...]
    value: str
    requests: int
    slow: int
    share_all: float
    share_slow: float
    explained: float
    p_value: float
    score: float
    with_ms: float | None
    without_ms: float | None
    missing: float
    same_as: str = ""

    @property
    def label(self) -> str:
        """Attribute and value, such as `request size 1 MB and more`."""
        return f"{attribute(self.key).label} {self.value}"

    @property
    def lift(self) -> float:
        """Factor by which the value is more frequent among slow requests than among all."""
        return self.share_slow / self.share_all

    @property
    def phrase(self) -> str:
        """The requests with the value, such as `Requests with a request size of 1 MB and more`."""
        if self.key == "cold":
            return f"Requests {'with' if self.values == ('1',) else 'without'} a cold start"
        if self.values == ("",):
            return f"Requests without {attribute(self.key).label}"
        return "Requests " + _PHRASES.get(self.key, f"with {attribute(self.key).label} {{}}").format(self.value)


@dataclass(frozen=True, slots=True)
class SharedCauses:
    """Result of `find_causes`: *causes*, strongest first, then those that are the same requests as one of them.

    *percentile*, to a bucket, is *asked* or a lower one with enough slow requests; requests from *threshold* seconds on are slow.
    *compared* has the labels of the attributes without a result; *sentence* is the first cause, or that there is none.
    """

    asked: float
    percentile: float
    threshold: float
    requests: int
    slow: int
    causes: tuple[SharedCause, ...]
    compared: tuple[str, ...]
    sentence: str

    @property
    def reason(self) -> str:
        """Why a lower percentile than the asked one is used; "" if it is not."""
        needed = math.ceil(_MIN_SLOW / (1 - self.asked) - 1e-6)
        return f"p{self.asked * 100:.6g} needs {needed:,} requests" if self.percentile != self.asked else ""


@np.errstate(divide="ignore", invalid="ignore")
def find_causes(counts: AttributeCounts, slow: SlowRequests | float = 0.99) -> SharedCauses:
    """Return the causes that slow requests share.

    *slow* is the percentile from which on requests are slow, replaced by a lower one with too few requests; or selected requests, which
    are compared with all others.
    """
    wanted = 0.99 if isinstance(slow, SlowRequests) else slow
    tables = [
        value_table
        for key, values in counts.requests.items()
        if values and (value_table := _Table.of(key, values)).counts.any()
    ]
    whole = max(
        (table.counts.sum(axis=0) for table in tables),
        key=lambda step_counts: int(step_counts.sum()),
        default=np.zeros((0, 0), np.int64),
    )
    total = int(whole.sum())
    if not tables:
        return SharedCauses(wanted, wanted, 0.0, 0, 0, (), (), "")
    percentile = highest_percentile(total, wanted)
    is_selection = isinstance(slow, SlowRequests)
    cut = _selected(counts, whole, slow) if isinstance(slow, SlowRequests) else _tail(whole, percentile)
    tables = [table for table in tables if len(table.values) > 1]
    candidates = _of_attributes(tables, cut)
    period = (
        None if is_selection else _period(whole, candidates[0].outside if candidates else whole, cut, counts.starts)
    )
    if period is not None:
        candidates = sorted([*candidates, _as_version(period, tables)], key=lambda candidate: -candidate.score)
    causes = _describe(candidates, cut, counts, percentile)
    named = {cause.key for cause in causes}
    compared = tuple(attribute(table.key).label for table in tables if table.key not in named)
    threshold = bucket_bounds(int(counts.index[cut.buckets.start]), counts.scale)[0]
    now_ms = _quantile_ms(whole.sum(axis=0), percentile, counts)
    sentence = _sentence(causes, len(compared), percentile, now_ms, is_selection=is_selection)
    return SharedCauses(wanted, percentile, threshold, total, int(cut.slow(whole).sum()), causes, compared, sentence)


def highest_percentile(requests: int, wanted: float) -> float:
    """Return *wanted*, or the highest lower percentile with enough slow requests to compare."""
    lower = [quantile for quantile in QUANTILES if quantile < wanted]
    return next(
        (quantile for quantile in (wanted, *lower) if requests * (1 - quantile) >= _MIN_SLOW - 1e-9),
        lower[-1] if lower else wanted,
    )


@dataclass(frozen=True, slots=True)
class _Table:
    """Counts of an attribute, shape (values, t, k); size bands come first, in ascending order."""

    key: str
    values: tuple[str, ...]
    bands: int
    counts: Ints

    @classmethod
    def of(cls, key: str, values: Mapping[str, Ints]) -> _Table:
        is_number = attribute(key).is_number
        bands = sorted((value for value in values if is_number and value.isdecimal()), key=int)
        texts = sorted(value for value in values if value not in bands)
        order = (*bands, *texts)
        return cls(key, order, len(bands), np.stack([values[value] for value in order]))

    def members(self) -> NDArray[np.bool_]:
        """Return the sets of values to test, shape (sets, values): each text, and all ranges from the first or to the last band."""
        single_values = np.eye(len(self.values), dtype=bool)
        upwards = np.triu(single_values | True)[1 : self.bands] & (np.arange(len(self.values)) < self.bands)
        downwards = np.tril(single_values | True)[: max(self.bands - 1, 0)]
        return np.concatenate([single_values[self.bands :], upwards, downwards])


@dataclass(frozen=True, slots=True)
class _Cut:
    """Slow requests: steps and buckets. `is_pooled` compares with the other steps rather than within each step."""

    steps: slice
    buckets: slice
    is_pooled: bool = False

    def slow(self, counts: Ints) -> Ints:
        slow_counts = np.zeros(counts.shape[:-1], np.int64)
        slow_counts[..., self.steps] = counts[..., self.steps, self.buckets].sum(axis=-1)
        return slow_counts


def _tail(whole: Ints, percentile: float) -> _Cut:
    beyond = whole.sum(axis=0)[::-1].cumsum()[::-1]
    distance = np.abs(np.log(beyond / beyond[0] / (1 - percentile)))
    return _Cut(slice(None), slice(int(distance.argmin()), None))


def _selected(counts: AttributeCounts, whole: Ints, slow: SlowRequests) -> _Cut:
    ends = np.append(counts.starts[1:], np.inf)
    steps = _slice((counts.starts < slow.end) & (ends > slow.start))
    middles = np.array([bucket_middle(int(bucket), counts.scale) for bucket in counts.index])
    buckets = _slice((middles >= slow.low) & (middles < slow.high))
    inside = whole[steps]
    return _Cut(steps, buckets, is_pooled=bool(2 * inside[:, buckets].sum() > inside.sum()))


def _slice(chosen: NDArray[np.bool_]) -> slice:
    at = np.flatnonzero(chosen)
    return slice(int(at[0]), int(at[-1]) + 1) if len(at) else slice(0, 0)


@dataclass(frozen=True, slots=True)
class SetScores:
    is_testable: NDArray[np.bool_]
    slow: Floats
    score: Floats
    ratio: Floats
    explained: Floats
    excess: Floats
    spread: Floats

    def is_large(self, steps: int) -> NDArray[np.bool_]:
        is_spread = self.spread >= min(_MIN_STEPS, (steps + 1) / 2)
        return is_spread & (self.ratio >= MIN_RATIO) & (self.excess >= MIN_EXCESS) & (self.slow >= _MIN_REQUESTS)


def score_sets(members: NDArray[np.bool_], requests: Ints, slow: Ints, *, is_pooled: bool = False) -> SetScores:
    """Test sets of values of an attribute: *members* (sets, values), all and slow requests (values, t).

    If *is_pooled*, the expected share of a set is that of all steps, instead of that of each step.
    """
    sets = members.astype(np.float64)
    n = (sets @ requests).sum(axis=1)
    at = slow.sum(axis=0) > 0
    of_step = slow[:, at].sum(axis=0).astype(np.float64)
    weight = 1 / (1 + _CORRELATION * (of_step - 1))
    of_set, of_step = sets @ slow[:, at] * weight, of_step * weight
    first, of_strata = _strata(requests.sum(axis=0))
    strata = np.add.reduceat(requests, first, axis=1)
    share = ((sets @ strata) / np.maximum(strata.sum(axis=0), 1))[:, of_strata[at]]
    if is_pooled:
        share = np.broadcast_to((n / requests.sum())[:, None], share.shape)
    expected = share * of_step
    k, total = of_set.sum(axis=1), max(of_step.sum(), 1.0)
    score = np.where(k > expected.sum(axis=1), total * _divergence(k / total, expected.sum(axis=1) / total), 0.0)
    # Mantel-Haenszel ratio of the rates.
    ratio = np.nan_to_num((of_set * (1 - share)).sum(axis=1) / ((of_step - of_set) * share).sum(axis=1), nan=1.0)
    explained = k / total * (1 - 1 / np.maximum(ratio, 1.0))
    excess = of_set - expected
    is_testable = np.minimum(n, requests.sum() - n) >= _MIN_REQUESTS
    return SetScores(is_testable, k, score, ratio, explained, excess.sum(axis=1) / total, _spread(excess))


def _spread(excess: Floats) -> Floats:
    """Return the number of equal steps that would have the same sum and sum of squares as the steps of the last axis."""
    return np.nan_to_num(excess.sum(axis=-1) ** 2 / (excess**2).sum(axis=-1))


def _strata(requests: Ints) -> tuple[Ints, Ints]:
    """Return the first step of each stratum, and the stratum of each step, so that each has `_MIN_STRATUM` requests."""
    before = requests.cumsum() - requests
    return np.unique(before // _MIN_STRATUM, return_index=True, return_inverse=True)[1:]


def _filled_steps(requests: Ints) -> int:
    return min(int(np.count_nonzero(requests)), max(1, int(requests.sum()) // _MIN_STRATUM))


def _divergence(observed: Floats, expected: Floats) -> Floats:
    inside = np.where(observed > 0, observed * np.log(observed / expected), 0.0)
    return inside + np.where(observed < 1, (1 - observed) * np.log((1 - observed) / (1 - expected)), 0.0)


@dataclass(frozen=True, slots=True)
class _Found:
    key: str
    values: tuple[str, ...]
    value: str
    inside: Ints
    outside: Ints
    explained: float
    p_value: float
    score: float
    missing: float = 0.0


def _of_attributes(tables: Sequence[_Table], cut: _Cut) -> list[_Found]:
    """Return the values and ranges that mark slow requests, strongest first; of numbers, only the best range."""
    steps = max((_filled_steps(table.counts.sum(axis=(0, 2))[cut.steps]) for table in tables), default=0)
    tested = [(table, table.members()) for table in tables]
    scored = [
        (
            table,
            members,
            score_sets(members, table.counts.sum(axis=-1), cut.slow(table.counts), is_pooled=cut.is_pooled),
        )
        for table, members in tested
    ]
    tests = sum(int(scores.is_testable.sum()) for _, _, scores in scored)
    candidates: list[_Found] = []
    for table, members, scores in scored:
        holds = scores.is_testable & scores.is_large(steps) & (tests * np.exp(-scores.score) <= ALPHA)
        order = [int(index) for index in np.argsort(-scores.score, kind="stable") if holds[index]]
        candidates += (
            _found(table, members[index], scores, index, tests) for index in (order[:1] if table.bands else order)
        )
    return sorted(candidates, key=lambda candidate: -candidate.score)


def _found(table: _Table, chosen: NDArray[np.bool_], scores: SetScores, index: int, tests: int) -> _Found:
    values = tuple(value for value, is_in in zip(table.values, chosen, strict=True) if is_in)
    missing = table.counts[table.values.index("")].sum() / table.counts.sum() if "" in table.values else 0.0
    return _Found(
        table.key,
        values,
        _value_text(table, values),
        table.counts[chosen].sum(axis=0),
        table.counts[~chosen].sum(axis=0),
        float(scores.explained[index]),
        min(1.0, tests * math.exp(-float(scores.score[index]))),
        float(scores.score[index]),
        float(missing),
    )


def _period(whole: Ints, rest: Ints, cut: _Cut, starts: Ints) -> _Found | None:
    filled = np.flatnonzero(whole.sum(axis=-1))
    width = -(-(int(filled[-1]) + 1 - int(filled[0])) // _MAX_STEPS)
    at = np.arange(int(filled[0]), int(filled[-1]) + 1, width)
    n, k = (np.add.reduceat(step_counts, at).astype(np.float64) for step_counts in (rest.sum(axis=-1), cut.slow(rest)))
    first, last = np.triu_indices(len(at) + 1, max(_MIN_STEPS, len(at) // _PERIODS))
    if not len(first):
        return None
    inside_n, inside_k = (sums[last] - sums[first] for sums in (np.append(0.0, n.cumsum()), np.append(0.0, k.cumsum())))
    share, share_slow = inside_n / n.sum(), inside_k / k.sum()
    score = np.where((share_slow > share) & (share <= 1 / 2), k.sum() * _divergence(share_slow, share), 0.0)
    best = int(score.argmax())
    rate, other_rate = inside_k[best] / inside_n[best], (k.sum() - inside_k[best]) / (n.sum() - inside_n[best])
    is_inside = np.arange(len(at)) >= first[best]
    is_inside &= np.arange(len(at)) < last[best]
    fitted = n * np.where(is_inside, rate, other_rate)
    dispersed = score[best] / max(1.0, ((k - fitted) ** 2).sum() / fitted.sum())
    excess = (k - n * other_rate)[is_inside]
    explained = excess.sum() / cut.slow(whole).sum()
    p_value = len(first) * math.exp(-dispersed)
    is_large = rate >= MIN_RATIO * other_rate and explained >= MIN_EXCESS and inside_k[best] >= _MIN_REQUESTS
    if not is_large or p_value > ALPHA or _spread(excess) < _MIN_STEPS:
        return None
    begin, end, begin_all, end_all = (
        _time(starts, min(int(step), len(starts)))
        for step in (at[first[best]], at[0] + last[best] * width, 0, len(starts))
    )
    chosen = ((starts >= begin) & (starts < end))[:, None]
    text = _period_text(begin, end, end_all - begin_all)
    values = (str(begin), str(end))
    return _Found(WHEN, values, text, whole * chosen, whole * ~chosen, float(explained), p_value, float(dispersed))


def _as_version(period: _Found, tables: Sequence[_Table]) -> _Found:
    """Return *period*, or the version that served in it and nearly never before or after.

    A version that replaces another one is not tested within steps of time, because they hardly serve at the same time.
    """
    inside, whole = period.inside.sum(), period.inside + period.outside
    chosen = period.inside.any(axis=1)
    for table in tables:
        for value, counts in zip(table.values, table.counts, strict=True):
            served = counts[chosen].sum()
            is_version = table.key == "version" and value
            if is_version and served >= _OF_VERSION * counts.sum() and served >= _OF_PERIOD * inside:
                return replace(
                    period, key=table.key, values=(value,), value=value, inside=counts, outside=whole - counts
                )
    return period


def _time(starts: Ints, step: int) -> int:
    """Return the start of *step*; beyond the last step its end, as long after its start as the step before."""
    return int(starts[step]) if step < len(starts) else int(2 * starts[-1] - starts[-2])


def _describe(
    candidates: Sequence[_Found], cut: _Cut, counts: AttributeCounts, percentile: float
) -> tuple[SharedCause, ...]:
    causes: list[SharedCause] = []
    distinct: list[tuple[_Found, str]] = []
    for candidate in candidates:
        same_as = next((label for other, label in distinct if _is_same(candidate, other, cut)), "")
        causes.append(_cause(candidate, cut, counts, percentile, same_as))
        if not same_as:
            distinct.append((candidate, causes[-1].label))
    return tuple(sorted(causes, key=lambda cause: bool(cause.same_as)))


def _is_same(candidate: _Found, stronger: _Found, cut: _Cut) -> bool:
    """Return whether *candidate* marks no slow requests beyond those of *stronger*.

    Requests are not counted by two attributes at once, but a step of s slow requests has a covariance of s (p_both - p p_stronger).
    """
    if WHEN in (candidate.key, stronger.key):
        return False
    k, other, outside = (cut.slow(counts) for counts in (candidate.inside, stronger.inside, stronger.outside))
    of_step = other + outside
    weight = 1 / (1 + _CORRELATION * np.maximum(of_step - 1, 0))
    total = (weight * of_step).sum()
    p, p_stronger = (weight * k).sum() / total, (weight * other).sum() / total
    both = p * p_stronger + (weight * (k - p * of_step) * (other - p_stronger * of_step)).sum() / total
    # Share among the slow requests outside, against the share among all requests.
    both = min(max(both, p + p_stronger - 1, 0.0), p, p_stronger)
    beyond = (p - both) / max(1 - p_stronger, 1e-9)
    return bool(beyond < MIN_RATIO * candidate.inside.sum() / (candidate.inside.sum() + candidate.outside.sum()))


def _cause(candidate: _Found, cut: _Cut, counts: AttributeCounts, percentile: float, same_as: str) -> SharedCause:
    inside, outside = candidate.inside.sum(axis=0), candidate.outside.sum(axis=0)
    slow, slow_outside = (int(cut.slow(side_counts).sum()) for side_counts in (candidate.inside, candidate.outside))
    return SharedCause(
        key=candidate.key,
        values=candidate.values,
        value=candidate.value,
        requests=int(inside.sum()),
        slow=slow,
        share_all=int(inside.sum()) / int(inside.sum() + outside.sum()),
        share_slow=slow / (slow + slow_outside),
        explained=candidate.explained,
        p_value=candidate.p_value,
        score=candidate.score,
        with_ms=_quantile_ms(inside, percentile, counts),
        without_ms=_quantile_ms(outside, percentile, counts),
        missing=candidate.missing,
        same_as=same_as,
    )


def _quantile_ms(counted: Ints, percentile: float, counts: AttributeCounts) -> float | None:
    """Return the latency at *percentile* in milliseconds, interpolated in its bucket; None with too few requests."""
    total = int(counted.sum())
    if not has_enough_samples(total, percentile):
        return None
    reached = counted.cumsum()
    rank = max(percentile * total, 1.0)
    at = int(np.searchsorted(reached, rank))
    low, high = bucket_bounds(int(counts.index[at]), counts.scale)
    return 1e3 * low * (high / low) ** float(1 - (reached[at] - rank) / counted[at])


def _value_text(table: _Table, values: Sequence[str]) -> str:
    if len(values) == 1:
        return "others" if values[0] == OTHER else value_label(table.key, values[0])
    kind = attribute(table.key).kind
    first, last = int(values[0]), band_end(kind, int(values[-1]))
    if values[-1] == table.values[table.bands - 1]:
        return f"{bytes_label(first) if kind == 'bytes' else f'{first:,}'} and more"
    return f"up to {bytes_label(last + 1) if kind == 'bytes' else f'{last:,}'}"


def _period_text(begin: int, end: int, window: int) -> str:
    style = "%H:%M" if window <= 86_400 else "%-d %b %H:%M"  # noqa: PLR2004 - seconds of a day
    start, stop = (datetime.fromtimestamp(moment, UTC).strftime(style) for moment in (begin, end))
    return f"{start} to {stop} UTC"


def _sentence(
    causes: Sequence[SharedCause], attributes: int, percentile: float, now_ms: float | None, *, is_selection: bool
) -> str:
    if not causes:
        return f"No attribute explains the {'selected' if is_selection else 'slow'} requests." if attributes else ""
    first = causes[0]
    which = "selected" if is_selection else "slow"
    shares = (
        f"{first.phrase} are {_percent(first.share_all)} of all and {_percent(first.share_slow)} of the {which} ones"
    )
    if is_selection or first.without_ms is None or now_ms is None:
        return f"{shares}."
    name, without, now = f"p{percentile * 100:.6g}", _duration(first.without_ms), _duration(now_ms)
    return f"{shares}; without them {name} would be {without} instead of {now}." if without != now else f"{shares}."


def _percent(share: float) -> str:
    """Return a share with two digits below 10 %.

    >>> _percent(0.7143), _percent(0.0612), _percent(0.00034)
    ('71 %', '6.1 %', '0.034 %')
    """
    return f"{share * 100:.2g} %" if share < 0.1 else f"{share * 100:.0f} %"  # noqa: PLR2004 - ten percent


def _duration(milliseconds: float) -> str:
    """Return a latency with two digits, as buckets of 19 % allow.

    >>> _duration(601.2), _duration(2412), _duration(0.45)
    ('600 ms', '2.4 s', '0.45 ms')
    """
    value, unit = (milliseconds / 1e3, "s") if milliseconds >= 995 else (milliseconds, "ms")  # noqa: PLR2004 - rounds to a second
    rounded = float(f"{value:.2g}")
    return f"{rounded:.0f} {unit}" if rounded >= 10 else f"{rounded:g} {unit}"  # noqa: PLR2004 - two digits
