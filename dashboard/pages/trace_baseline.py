"""What one kept request is judged against: what its service did around it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from ...core.histogram import Histogram
from ...store import KeptTrace, Selection
from ..format import enough
from ..view import trace_name
from .fleet import stages_at
from .page import Context

NS = 1e9
_BASELINE_RANGE = timedelta(hours=6)
_MIN_REQUESTS = 20


@dataclass(frozen=True, slots=True)
class TraceBaseline:
    """What the request is compared with.

    Args:
        latency: The latency of the requests around it.
        stages: Each stage's own time in them.
        median: The stages of the median request: stage to seconds.
    """

    latency: Histogram
    stages: Mapping[str, Histogram]
    median: dict[str, float]

    def usual(self, stage: str) -> float | None:
        """Return the median of the stage's own time; None when too few requests had it."""
        own = self.stages.get(stage)
        if own is None or own.count < _MIN_REQUESTS:
            return None
        median = own.quantile(0.5)
        return median.value if median else None

    @property
    def median_seconds(self) -> float:
        """The latency of the median request; zero when there is none."""
        return sum(self.median.values())


def requests_around(found: KeptTrace) -> Selection:
    """Return the requests of its service around *found*."""
    at = datetime.fromtimestamp(found.started_ns / NS, UTC)
    return Selection(at - _BASELINE_RANGE, at + _BASELINE_RANGE, service=found.series.service)


def trace_baseline(context: Context, found: KeptTrace) -> TraceBaseline:
    """Return what *found* is compared with."""
    source, near = context.source, requests_around(found)
    frame = source.ask(source.read.breakdown, near, (0.5,))
    median = stages_at(frame, 0) if len(frame) and enough(int(frame.attrs.get("requests", 0)), 0.5) else {}
    return TraceBaseline(source.ask(source.read.latency, near), source.ask(source.read.stage_latency, near), median)


def neighbours(context: Context, found: KeptTrace) -> tuple[str | None, str | None]:
    """Return the kept requests before and after this one in the order of the list, slowest first."""
    source = context.source
    frame = source.ask(source.read.exemplars, requests_around(found), limit=100)
    listed = [
        trace_name(str(trace), str(span)) for trace, span in zip(frame["trace_id"], frame["span_id"], strict=True)
    ]
    own = trace_name(found.trace_id, found.span_id)
    if own not in listed:
        return None, None
    at = listed.index(own)
    return (listed[at - 1] if at else None), (listed[at + 1] if at + 1 < len(listed) else None)


def rank_of(histogram: Histogram | None, seconds: float) -> float | None:
    """Return which share of the requests took no longer; None when there are too few to say."""
    if histogram is None or histogram.count < _MIN_REQUESTS:
        return None
    share = histogram.fraction_below(seconds)
    return share.value if share else None
