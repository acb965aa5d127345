"""What the collector hands to the store: points, kept traces, and the batches they came in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .loads import Load
from .outgoing import Outgoing
from .point_columns import Point, PointColumns
from .series import Series

__all__ = ["Batch", "KeptTrace", "Point"]


@dataclass(frozen=True, slots=True)
class KeptTrace:
    """One request that was kept whole.

    Args:
        trace_id: 32 hexadecimal digits; requests of one distributed trace share it.
        span_id: 16 hexadecimal digits: the root span of this request, which nothing else in the trace has.
        series: Whose request it was.
        started_ns: When it began. [Unix nanoseconds]
        duration_ns: Its wall time. [nanoseconds]
        because: Why it was kept: `slow`, `error` or `uniform`.
        dominant: The stage that took most of it.
        stages_ns: Exclusive time by stage, `overhead` included; adds up to the duration. [nanoseconds]
        spans: The recorded intervals: `name`, `stage`, `start_ns` after the start of the request, `duration_ns`,
            `attributes`.
        attributes: The attributes of the root span.
        document: Both as `documents` packs them, from who has done so already; None to have it done.
    """

    trace_id: str
    span_id: str
    series: Series
    started_ns: int
    duration_ns: int
    because: str
    dominant: str
    stages_ns: dict[str, int]
    spans: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    attributes: dict[str, str | int | float | bool] = field(default_factory=dict[str, str | int | float | bool])
    document: bytes | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """What one export of one process carried.

    Args:
        id: Its name; the store counts a name once.
        points: Its histograms.
        traces: Its kept requests.
        dropped: Requests the agent could not count.
        instance: `service.instance.id` of the agent that sent it; "" where it was none.
        spans: Spans of requests that may not be whole yet, encoded (`collector.traces.columns`); empty for none.
        loads: Phases of its cold start.
        onward: What of it is to be sent on.
    """

    id: str
    points: Sequence[Point] | PointColumns = ()
    traces: list[KeptTrace] = field(default_factory=list[KeptTrace])
    dropped: int = 0
    instance: str = ""
    spans: bytes = b""
    loads: Sequence[Load] = ()
    onward: Sequence[Outgoing] = ()
