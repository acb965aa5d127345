"""Distributions of a selection: of whole requests, and of each stage by itself."""

from __future__ import annotations

from ...core.histogram import Histogram
from ...core.names import REQUEST_DURATION
from ...core.stages import ordered
from ..columns import add_up
from ..points import Question, Snapshot
from ..selection import Selection
from .fetch import fetch


def latency(snapshot: Snapshot, selection: Selection) -> Histogram:
    """See `Reader.latency`."""
    columns = fetch(snapshot, Question(selection, (REQUEST_DURATION,)))
    return add_up(columns).histogram() if len(columns) else Histogram()


def distributions(snapshot: Snapshot, selection: Selection, metric: str) -> dict[str, Histogram]:
    """Return the histogram of *metric* for each stage, or whatever else tells its points apart, in stage order."""
    columns = fetch(snapshot, Question(selection, (metric,)))
    # Each by itself: one that was sent coarser must not make the others coarser.
    return {
        stage: add_up(columns.where(columns.stage == columns.stages.index(stage))).histogram()
        for stage in ordered(columns.stages)
    }
