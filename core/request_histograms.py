"""Histograms of one series over a stretch of time, to which requests are added one by one.

Three histograms describe the time of all requests: requests by latency, split by their dominant stage; requests by the exclusive
time of each stage; and, for each bucket of the latency, the nanoseconds that its requests spent in each stage. With the last one
the breakdown of a percentile is a sum instead of an estimate. Streaming requests have the same histograms up to their first
token, and histograms of their stream.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from math import ceil, log2

from . import names
from .histogram import BUCKETS_A_DOUBLING, SCALE, Histogram, bucket_index
from .stages import OVERHEAD, position


class RequestHistograms:
    """The histograms of one series."""

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

    def add(self, own: Mapping[str, int], duration: int) -> None:
        """Count a request of *duration* nanoseconds, to which its exclusive times by stage add up (`overhead` included)."""
        # Written out: calls of `Histogram.count_one` and `_add_up` would take as long as the rest.
        seconds = duration / 1e9
        bucket = bucket_index(seconds) if duration else 0
        spent = self._spent[bucket] if duration else {}
        stages = self._stages
        for stage, part in own.items():
            spent[stage] = spent.get(stage, 0) + part
            counted = stages[stage]
            if not part:
                counted.zero += 1
                continue
            value = part / 1e9
            counted.sum += value
            index = ceil(log2(value) * BUCKETS_A_DOUBLING) - 1
            counted.buckets[index] = counted.buckets.get(index, 0) + 1
        counted = self._requests[dominant_stage(own)]
        counted.sum += seconds
        if duration:
            counted.buckets[bucket] = counted.buckets.get(bucket, 0) + 1
        else:
            counted.zero += 1

    def add_stalls(self, found: Mapping[str, int], duration: int) -> None:
        """Count the stalled nanoseconds of a request by key of `stages.stall_key`; its *duration* is above zero."""
        _add_up(self._held_up[bucket_index(duration / 1e9)], found)

    def add_profile(self, found: Mapping[str, int], duration: int) -> None:
        """Count the nanoseconds by key of `code_stack.stack_key`; those of a stage add up to its exclusive time."""
        _add_up(self._profile[bucket_index(duration / 1e9)], found)

    def add_open(self, age: int, seen: int) -> None:
        """Count a request that has not ended: its *age* (above zero), and the time for which that is seen; in nanoseconds."""
        _add_up(self._open[bucket_index(age / 1e9)], {"": seen})

    def add_first_token(self, own: Mapping[str, int], duration: int, definition: str) -> None:
        """Count the time of a request to its first token."""
        self.add_stream(names.FIRST_TOKEN, definition, duration / 1e9)
        _add_up(self._spent_to_first_token[bucket_index(duration / 1e9)], own)

    def add_stream(self, metric: str, key: str, value: float) -> None:
        """Count *value* (>= 0) of a metric whose points have *key* instead of a stage; see `names.METRICS`."""
        self._streams[metric, key].count_one(value)

    def add_equal(self, metric: str, key: str, value: float, requests: int) -> None:
        """Count the same *value* of a metric for several *requests*, as `add_stream` does for one."""
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


def dominant_stage(own: Mapping[str, int]) -> str:
    """Return the stage with the most time of a request; `overhead` if most of the time belongs to no stage.

    >>> dominant_stage({"overhead": 9, "forward": 2, "queue": 2}), dominant_stage({"overhead": 2, "forward": 2, "queue": 2})
    ('overhead', 'forward')
    """
    most, longest = -1, OVERHEAD
    for stage, spent in own.items():
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
