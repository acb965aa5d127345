"""Histograms of one series of a process by attribute of the request (`attributes`), and what they are limited to.

The values of an attribute divide all requests: those without the fact are counted under the value "". They are not counted one by
one: they are what the other values leave of all requests.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from math import ceil, log2

from . import names
from .attributes import ATTRIBUTE_SCALE, CALLER, COUNTED, MAX_VALUES, REPLICA, attribute_key
from .histogram import Histogram
from .request_histograms import RequestHistograms, spent_by_stage
from .stages import OTHER

# Attributes that the user does not know of.
AUTOMATIC = frozenset(each.key for each in COUNTED) - {CALLER.key, REPLICA.key}
_BUCKETS_A_DOUBLING = 2**ATTRIBUTE_SCALE
# Maximum number of attribute values of all series between two exports; further ones are counted as `__other__`.
MAX_CELLS = 5000


class AttributeLimits:
    """Attribute values of a process, shared by its series.

    Attributes:
        cells: Number of values of all series since the last export.
    """

    def __init__(self) -> None:
        self._values: defaultdict[str, set[str]] = defaultdict(set)
        self.known: dict[tuple[str, str], tuple[str, str]] = {}
        self.cells = 0

    def value(self, key: str, value: str) -> str:
        known = self._values[key]
        if value not in known:
            if len(known) >= MAX_VALUES:
                return OTHER
            known.add(value)
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
        bucket = ceil(log2(seconds) * _BUCKETS_A_DOUBLING) - 1 if duration else None
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
