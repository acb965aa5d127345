"""Difference between two snapshots of a target, and its points.

Counters only grow while a process lives. A counter that is smaller than before, or has a later start, was reset: all of its value
is new. Counts from before the first snapshot have no known time, so the first snapshot adds nothing. A failed scrape keeps the
previous snapshot and only extends the interval.

Fixed buckets stay intervals: each observation is counted at both edges of its bucket, in two histograms; see `core.histogram`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ...core import names
from ...core.histogram import Distribution, Histogram
from ...store import Point, Series
from ..ingest.validation import printable_text
from .config import Engine, ScrapeTarget
from .snapshot import Labels, MetricStream, Snapshot, StreamCounts

_SERVER_ERROR = 500
# Label value without information: BentoML sets it for a service that was not built.
_UNTOLD = "not available"
_PAIRS = {
    "request": names.ENGINE_REQUEST,
    "stage": names.ENGINE_STAGE,
    "first_token": names.ENGINE_FIRST_TOKEN,
    "output_token": names.ENGINE_OUTPUT_TOKEN,
}


def points_of(
    added: Mapping[MetricStream, StreamCounts], target: ScrapeTarget, engine: Engine, at: int
) -> Iterator[Point]:
    """Yield the points of the counts *added* at *target*, at the time *at*, in Unix seconds."""
    for stream, counted in added.items():
        series = _series(stream.labels, target, engine)
        if stream.kind in _PAIRS:
            for metric, histogram in zip(_PAIRS[stream.kind], _edges(counted), strict=True):
                yield Point(series, metric, stream.key, at, histogram)
        else:
            metric = names.ENGINE_TOKENS if stream.kind == "tokens" else names.ENGINE_BATCH
            yield Point(series, metric, stream.key, at, Histogram(zero=counted.count, sum=counted.sum))


def _edges(counted: StreamCounts) -> tuple[Histogram, Histogram]:
    found = Distribution()
    for (low, high), count in counted.buckets.items():
        found.add(low, high, count)
    found.set_sum(counted.sum)
    return found.lows, found.highs


def _series(labels: Labels, target: ScrapeTarget, engine: Engine) -> Series:
    values = dict(labels)

    def told(dimension: str) -> str:
        found = (values.get(name, "") for name in engine.labels.get(dimension, ()))
        return next((printable_text(value) for value in found if value not in ("", _UNTOLD)), "")

    status = told("status")
    failed = status.isdecimal() and int(status) >= _SERVER_ERROR
    return Series(
        service=target.service,
        version=target.version or told("version"),
        environment=target.environment,
        model=told("model"),
        model_version=told("model_version"),
        route=told("route"),
        status=names.STATUS_ERROR if failed else names.STATUS_OK,
    )


# Counts of a longer interval are dropped: one point for all of it would look like a burst in charts and alerts.
MAX_GAP_SECONDS = 600.0
# Clock difference of two machines, and start-up time of a process.
_SKEW_SECONDS = 30.0
# Start times may be rounded.
_ROUNDED_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Difference:
    """Difference between two snapshots.

    Args:
        base: Snapshot to compare the next one with.
        added: Added counts, without empty ones.
        note: Reason why nothing was counted, "" otherwise.
        lost_seconds: Duration whose counts are lost.
    """

    base: Snapshot
    added: dict[MetricStream, StreamCounts] = field(default_factory=dict[MetricStream, StreamCounts])
    note: str = ""
    lost_seconds: float = 0.0


def difference_between(before: Snapshot | None, after: Snapshot) -> Difference:
    """Return the counts added between *before*, the previous base, and *after*."""
    if before is None:
        return Difference(after, note="read for the first time: counted from now on")
    if before.rules != after.rules:
        return Difference(after, note="read by other rules than before: counted from now on")
    seconds = after.at - before.at
    if seconds > MAX_GAP_SECONDS:
        note = f"not read for {seconds:.0f} s: counted from now on"
        return Difference(after, note=note, lost_seconds=seconds)
    restarted = _differ(before.started, after.started)
    if restarted and after.started < before.at - _SKEW_SECONDS:
        # Two live processes respond alternately: each change would count everything again.
        note = "another process answers than last time: scrape each process by its own address"
        return Difference(after, note=note, lost_seconds=max(seconds, 0.0))
    then: Mapping[MetricStream, StreamCounts] = {} if restarted else before.streams
    added = {
        stream: more
        for stream, now in after.streams.items()
        # If streams were left out before, a new stream may have existed already.
        if (stream in then or restarted or not before.beyond) and (more := _more(then.get(stream), now)).count
    }
    # Streams that disappear are kept, in case they return later.
    gone = {stream: counted for stream, counted in then.items() if stream not in after.streams}
    return Difference(after.with_streams(gone), added)


def _more(then: StreamCounts | None, now: StreamCounts) -> StreamCounts:
    """Return the counts of *now* minus *then*; all of *now* after a reset."""
    if then is None or _differ(then.created, now.created):
        return now
    rest = Counter(now.buckets)
    rest.subtract(then.buckets)
    if min(rest.values(), default=0) < 0 or now.sum < then.sum:
        return now
    return StreamCounts({edges: count for edges, count in rest.items() if count}, now.sum - then.sum, now.created)


def _differ(earlier: float, later: float) -> bool:
    return bool(earlier and later) and abs(later - earlier) > _ROUNDED_SECONDS
