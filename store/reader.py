"""The reader: all queries that pages, alerts and commands send to the store."""

from __future__ import annotations

from .queries.attributes import AttributeQueries
from .queries.comparison import ComparisonQueries
from .queries.latency import LatencyQueries
from .queries.minutes import MinuteQueries
from .queries.paths import PathQueries
from .queries.profile import ProfileQueries
from .queries.replicas import ReplicaQueries
from .queries.services import ServiceQueries
from .queries.slo import IndicatorQueries, SloQueries
from .queries.state import StoreQueries
from .queries.streaming import StreamingQueries
from .queries.time_series import TimeSeriesQueries
from .queries.trace_search import TraceSearchQueries
from .queries.traces import TraceQueries


class Reader(
    ServiceQueries,
    ReplicaQueries,
    AttributeQueries,
    LatencyQueries,
    ProfileQueries,
    TimeSeriesQueries,
    ComparisonQueries,
    MinuteQueries,
    StreamingQueries,
    SloQueries,
    IndicatorQueries,
    TraceQueries,
    PathQueries,
    TraceSearchQueries,
    StoreQueries,
):
    """All queries to the store. Thread-safe.

    Each query runs in one transaction, so that its result describes one moment. The same selection has the same numbers
    in every query, because all queries add up the same rows with the same code.

    Times are timezone-aware; windows are half open and contain the 10 s buckets that start in them. Frames without data have
    their columns and no rows. Steps start at multiples of their width since the epoch; a step as wide as the window is
    the window. If steps are finer than the retained tiers, or would read too many rows, they are wider than requested:
    `attrs["step_seconds"]` is the actual width (that of the window if there is only one step).

    Every method raises StoreError if the database cannot be read.
    """
