"""What became of a file that was imported."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from ...core import names
from ...store import Batch
from ...store.point_columns import as_columns
from ...store.schema import FINEST


@dataclass(slots=True)
class Imported:
    """What became of a file.

    Args:
        path: Where it is.
        format: What it was taken for.
        requests: How many were counted now.
        known: How many had been counted before.
        spans: Spans that were read.
        services: Requests by service.
        first: When the first ended, 0 without any; to the 10 s it is kept in, as *last*. [Unix seconds]
        last: When the last ended. [Unix seconds]
        traces: How many were kept whole.
        dropped: Requests that their agents could not count.
        notes: What else there is to know, a sentence each.
        broken: The first records that were left out, each with its place.
        broken_count: How many were.
    """

    path: Path
    format: str
    requests: int = 0
    known: int = 0
    spans: int = 0
    services: Counter[str] = field(default_factory=Counter[str])
    first: int = 0
    last: int = 0
    traces: int = 0
    dropped: int = 0
    notes: list[str] = field(default_factory=list[str])
    broken: list[str] = field(default_factory=list[str])
    broken_count: int = 0

    def count(self, batch: Batch, *, new: bool) -> None:
        """Add what *batch* holds; *new* says whether the store had not counted it before."""
        points = [point for point in as_columns(batch.points) if point.metric == names.REQUEST_DURATION]
        requests = sum(point.histogram.count for point in points)
        if not new:
            self.known += requests
            return
        self.requests += requests
        self.dropped += batch.dropped
        self.traces += len(batch.traces)
        for point in points:
            self.services[point.series.service] += point.histogram.count
            bucket = point.at - point.at % FINEST
            self.first = min(self.first or bucket, bucket)
            self.last = max(self.last, bucket)
