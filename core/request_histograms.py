"""Histograms of one series over a stretch of time, to which requests are added one by one.

For each bucket of the latency, the nanoseconds that its requests spent in each stage are added up: with them the breakdown of a
percentile is a sum instead of an estimate. Streaming requests have the same histograms up to their first token.

A series also has histograms by attribute of the request (`attributes`). The values of an attribute divide all requests: those
without the fact, under the value "", are what the other values leave of all requests.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from math import ceil, log2

from . import names
from .attributes import ATTRIBUTE_SCALE, CALLER, COUNTED, MAX_VALUES, REPLICA, attribute_key
from .histogram import BUCKETS_A_DOUBLING, SCALE, Histogram, bucket_index
from .stages import OTHER, OVERHEAD, position

# Attributes that the user does not know of.
AUTOMATIC = frozenset(attribute.key for attribute in COUNTED) - {CALLER.key, REPLICA.key}
_ATTRIBUTE_BUCKETS = 2**ATTRIBUTE_SCALE
# Maximum number of attribute values of all series between two exports; further ones are counted as `__other__`.
MAX_CELLS = 5000


class RequestHistograms:
    __slots__ = ("_held_up", "_open", "_profile", "_requests", "_spent", "_spent_to_first_token", "_stages", "_streams")

    def __init__(self) -> None:
        # Latency by dominant stage, and exclusive time by stage. [seconds]
        self._requests: defaultdict[str, Histogram] = defaultdict(Histogram)
        self._stages: defaultdict[str, Histogram] = defaultdict(Histogram)
        # Time by bucket of the latency (or of the time to the first token) and stage. [nanoseconds]
        self._spent: defaultdict[int, dict[str, int]] = defaultdict(dict)
        self._spent_to_first_token: defaultdict[int, dict[str, int]] = defaultdict(dict)
        # Stalled time by bucket of the latency and stall key. [nanoseconds]
        self._held_up: defaultdict[int, dict[str, int]] = defaultdict(dict)
        # Sampled time by bucket of the latency and key of stage and stack. [nanoseconds]
        self._profile: defaultdict[int, dict[str, int]] = defaultdict(dict)
        # Time that requests were seen open, by bucket of their age. [nanoseconds]
        self._open: defaultdict[int, dict[str, int]] = defaultdict(dict)
        # Histograms of streams by metric and its key: definition, type of token, …
        self._streams: defaultdict[tuple[str, str], Histogram] = defaultdict(Histogram)

    @property
    def requests(self) -> int:
        return sum(histogram.count for histogram in self._requests.values())

    def add(self, exclusive: Mapping[str, int], duration: int) -> None:
        """Count a request of *duration* nanoseconds, to which its exclusive times by stage add up (`overhead` included)."""
        # Written out: calls of `Histogram.count_one` and `_add_up` would take as long as the rest.
        seconds = duration / 1e9
        bucket = bucket_index(seconds) if duration else 0
        spent = self._spent[bucket] if duration else {}
        stages = self._stages
        for stage, part in exclusive.items():
            spent[stage] = spent.get(stage, 0) + part
            counted = stages[stage]
            if not part:
                counted.zero += 1
                continue
            value = part / 1e9
            counted.sum += value
            index = ceil(log2(value) * BUCKETS_A_DOUBLING) - 1
            counted.buckets[index] = counted.buckets.get(index, 0) + 1
        counted = self._requests[dominant_stage(exclusive)]
        counted.sum += seconds
        if duration:
            counted.buckets[bucket] = counted.buckets.get(bucket, 0) + 1
        else:
            counted.zero += 1

    def add_stalls(self, stalls: Mapping[str, int], duration: int) -> None:
        """Count the stalled nanoseconds of a request by key of `stages.stall_key`; its *duration* is above zero."""
        _add_up(self._held_up[bucket_index(duration / 1e9)], stalls)

    def add_profile(self, samples: Mapping[str, int], duration: int) -> None:
        """Count the nanoseconds by key of `code_stack.stack_key`; those of a stage add up to its exclusive time."""
        _add_up(self._profile[bucket_index(duration / 1e9)], samples)

    def add_open(self, age: int, seen: int) -> None:
        """Count a request that has not ended: its *age* (above zero), and the time for which that is seen; in nanoseconds."""
        _add_up(self._open[bucket_index(age / 1e9)], {"": seen})

    def add_first_token(self, exclusive: Mapping[str, int], duration: int, definition: str) -> None:
        self.add_stream(names.FIRST_TOKEN, definition, duration / 1e9)
        _add_up(self._spent_to_first_token[bucket_index(duration / 1e9)], exclusive)

    def add_stream(self, metric: str, key: str, value: float) -> None:
        """Count *value* (>= 0) of a metric whose points have *key* instead of a stage; see `names.METRICS`."""
        self._streams[metric, key].count_one(value)

    def add_equal(self, metric: str, key: str, value: float, requests: int) -> None:
        self._streams[metric, key].record(value, requests)

    def merge_into(self, requests: Histogram, spent: defaultdict[int, dict[str, int]]) -> None:
        """Add the latency to *requests*, and the nanoseconds by bucket and stage to *spent*, both at the scale of *requests*."""
        for histogram in self._requests.values():
            requests.merge(histogram)
        shift = SCALE - requests.scale
        for bucket, stages in self._spent.items():
            _add_up(spent[bucket >> shift], stages)

    def histograms(self) -> Iterator[tuple[str, str, Histogram]]:
        """Yield the metric, the key (see `names.METRICS`) and the histogram of each; time metrics hold microseconds."""
        for stage, histogram in self._requests.items():
            yield names.REQUEST_DURATION, stage, histogram
        for stage, histogram in self._stages.items():
            yield names.STAGE_DURATION, stage, histogram
        for (metric, key), histogram in self._streams.items():
            yield metric, key, histogram
        times = (
            (names.STAGE_TIME, self._spent),
            (names.FIRST_TOKEN_TIME, self._spent_to_first_token),
            (names.STALL_TIME, self._held_up),
            (names.PROFILE_TIME, self._profile),
            (names.OPEN_TIME, self._open),
        )
        for metric, spent in times:
            for stage, buckets in spent_by_stage(spent).items():
                yield metric, stage, Histogram(buckets=buckets)


def dominant_stage(exclusive: Mapping[str, int]) -> str:
    """Return the stage with the most time of a request; `overhead` if most of the time belongs to no stage.

    >>> dominant_stage({"overhead": 9, "forward": 2, "queue": 2}), dominant_stage({"overhead": 2, "forward": 2, "queue": 2})
    ('overhead', 'forward')
    """
    most, longest = -1, OVERHEAD
    for stage, spent in exclusive.items():
        # Of equal stages the one charted first is dominant, so that the order of recording has no influence.
        if spent > most or (spent == most and position(stage) < position(longest)):
            most, longest = spent, stage
    return longest


def round_to_microseconds(spent: Mapping[str, int]) -> dict[str, int]:
    """Return nanoseconds per stage as whole microseconds that add up to the rounded total.

    Rounding each stage alone would lose stages below half a microsecond, and change the sum.

    >>> round_to_microseconds({"forward": 400, "queue": 400, "overhead": 1200})
    {'forward': 0, 'queue': 1, 'overhead': 1}
    """
    rounded: dict[str, int] = {}
    total = before = 0
    for stage in sorted(spent, key=position):
        total += spent[stage]
        until = (total + 500) // 1000
        rounded[stage], before = until - before, until
    return rounded


def _add_up(total: dict[str, int], more: Mapping[str, int]) -> None:
    for key, amount in more.items():
        total[key] = total.get(key, 0) + amount


def spent_by_stage(spent: Mapping[int, Mapping[str, int]]) -> dict[str, dict[int, int]]:
    """Return nanoseconds by bucket and stage as whole microseconds by stage and bucket."""
    by_stage: defaultdict[str, dict[int, int]] = defaultdict(dict)
    for bucket, stages in spent.items():
        for stage, count in round_to_microseconds(stages).items():
            if count:
                by_stage[stage][bucket] = count
    return by_stage


class AttributeLimits:
    """Attribute values of a process, shared by its series."""

    def __init__(self) -> None:
        self._values: defaultdict[str, set[str]] = defaultdict(set)
        self.known: dict[tuple[str, str], tuple[str, str]] = {}
        # Number of values of all series since the last export.
        self.cells = 0

    def value(self, key: str, value: str) -> str:
        values = self._values[key]
        if value not in values:
            if len(values) >= MAX_VALUES:
                return OTHER
            values.add(value)
        return value


class AttributeHistograms:
    """The histograms of one series by attribute.

    An automatic attribute is not sent while it has had one value only, because that says nothing.
    """

    __slots__ = ("_all", "_before", "_cells", "_limits", "_only", "_replica", "_sent", "_spent")

    def __init__(self, limits: AttributeLimits) -> None:
        self._limits = limits
        # Since the last export: requests whose facts were read, and those with a fact by attribute and value.
        self._all = Histogram(ATTRIBUTE_SCALE)
        self._cells: dict[tuple[str, str], Histogram] = {}
        # All requests of the process, and their time by bucket of the latency and stage. [nanoseconds]
        self._replica = Histogram(ATTRIBUTE_SCALE)
        self._spent: defaultdict[int, dict[str, int]] = defaultdict(dict)
        # Attributes that are sent, and the only value so far of each other one.
        self._sent: set[str] = set()
        self._only: dict[str, str] = {}
        # Whether there were requests before the last export.
        self._before = False

    def add(self, values: Iterable[tuple[str, str]], duration: int) -> None:
        """Count a request of *duration* nanoseconds with its *values* by attribute."""
        seconds = duration / 1e9
        bucket = ceil(log2(seconds) * _ATTRIBUTE_BUCKETS) - 1 if duration else None
        counted = self._all
        counted.sum += seconds
        if bucket is None:
            counted.zero += 1
        else:
            counted.buckets[bucket] = counted.buckets.get(bucket, 0) + 1
        cells = self._cells
        for value in values:
            cell = cells.get(value)
            if cell is None:
                cell = self._cell(value)
            cell.sum += seconds
            if bucket is None:
                cell.zero += 1
            else:
                buckets = cell.buckets
                buckets[bucket] = buckets.get(bucket, 0) + 1

    def _cell(self, value: tuple[str, str]) -> Histogram:
        if self._limits.cells >= MAX_CELLS:
            value = (value[0], OTHER)
        self._limits.cells += value not in self._cells
        return self._cells.setdefault(value, Histogram(ATTRIBUTE_SCALE))

    def merge(self, counts: RequestHistograms) -> None:
        counts.merge_into(self._replica, self._spent)

    def take(self) -> Iterator[tuple[str, str, Histogram]]:
        """Yield the metric, the key and the histogram of each value and stage since the last call, and reset them."""
        for key, values in self._taken().items():
            for value, histogram in values.items():
                yield names.REQUEST_BY_ATTRIBUTE, attribute_key(key, value), histogram
        if self._replica.count:
            yield names.REQUEST_BY_ATTRIBUTE, attribute_key(REPLICA.key, ""), self._replica
            for stage, buckets in spent_by_stage(self._spent).items():
                yield names.REPLICA_STAGE_TIME, stage, Histogram(ATTRIBUTE_SCALE, buckets)
        self._replica, self._spent = Histogram(ATTRIBUTE_SCALE), defaultdict(dict)

    def _taken(self) -> dict[str, dict[str, Histogram]]:
        values: dict[str, dict[str, Histogram]] = {key: {} for key in (*self._sent, *self._only)}
        for (key, value), cell in self._cells.items():
            values.setdefault(key, {})[value] = cell
        counted = self._all
        self._all, self._cells = Histogram(ATTRIBUTE_SCALE), {}
        if not counted.count:
            return {}
        for key, cells in values.items():
            rest = _rest(counted, cells.values())
            if rest.count:
                cells[""] = rest
            if key not in self._sent and self._has_second_value(key, cells.keys()):
                self._sent.add(key)
                self._only.pop(key, None)
        self._before = True
        return {key: cells for key, cells in values.items() if key in self._sent}

    def _has_second_value(self, key: str, values: Collection[str]) -> bool:
        if key not in AUTOMATIC:
            return True
        only = self._only.setdefault(key, "" if self._before else next(iter(values)))
        return any(value != only for value in values)


def _rest(counted: Histogram, cells: Iterable[Histogram]) -> Histogram:
    """Return what *cells*, histograms of some of the requests of *counted*, leave of it."""
    rest = Histogram(counted.scale, dict(counted.buckets), counted.zero, counted.sum)
    for cell in cells:
        rest.zero -= cell.zero
        rest.sum -= cell.sum
        for bucket, count in cell.buckets.items():
            rest.buckets[bucket] -= count
    rest.buckets = {bucket: count for bucket, count in rest.buckets.items() if count}
    # Of many floats the difference may be a little below zero.
    rest.sum = max(0.0, rest.sum)
    return rest
