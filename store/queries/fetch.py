"""From a selection to columns: which tiers answer it, and points added up as far as nobody asks for more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from .. import merging, schema, tiers
from ..columns import Columns, Steps
from ..points import Question, Snapshot
from ..selection import step_seconds

# More rows than this take longer than a person waits for a page: a chart is drawn with wider steps then.
MAX_ROWS = 100_000


def fetch(snapshot: Snapshot, question: Question) -> Columns:
    """Return the points of the whole selection, added up over time: a month of a large service is gigabytes otherwise."""
    return _added(snapshot, question, None, schema.COARSEST)


def fetch_steps(snapshot: Snapshot, question: Question, step: timedelta) -> tuple[Columns, Steps]:
    """Return the points, and how to cut them into steps of *step*: wider where only wider buckets are kept or affordable."""
    start, _ = question.selection.seconds
    width = _step_width(snapshot, question, step_seconds(step))
    if width is None:
        return fetch(snapshot, question), Steps(start, None)
    steps = Steps(start, width)
    return _added(snapshot, question, steps, width), steps


def fetch_exact(snapshot: Snapshot, question: Question, width: int) -> tuple[Columns, Steps]:
    """Return the points in steps of *width* seconds, however many there are; what is only kept in wider ones is left out."""
    start, end = question.selection.seconds
    steps = Steps(start, width)
    fine = [tier for tier in tiers.read(snapshot.connection) if tier.seconds <= width]
    return _added_up(snapshot, question, steps, tiers.plan(fine, start, end, width)), steps


def _added(snapshot: Snapshot, question: Question, steps: Steps | None, widest: int) -> Columns:
    """Return the points added up step by step, from buckets not wider than *widest* seconds where such are kept."""
    start, end = question.selection.seconds
    return _added_up(snapshot, question, steps, tiers.plan(tiers.read(snapshot.connection), start, end, widest))


def _added_up(
    snapshot: Snapshot, question: Question, steps: Steps | None, segments: Sequence[tiers.Segment]
) -> Columns:
    """Return the points of *segments*, added up piece by piece as they are read: what is held does not grow with time."""
    apart = question.by is not None
    pieces = [
        merging.over_time(piece, steps, apart=apart)
        for segment in segments
        for piece in snapshot.points.read(snapshot.connection, question, segment, steps)
    ]
    return merging.over_time(merging.join(pieces), steps, apart=apart)


def _step_width(snapshot: Snapshot, question: Question, wanted: int) -> int | None:
    start, end = question.selection.seconds
    known = tiers.read(snapshot.connection)
    width = max(wanted, tiers.finest_kept(known, start))
    widest = max(tier for tier in schema.TIERS if tier <= width)
    while widest != schema.COARSEST and width < end - start and _rows(snapshot, question, widest) > MAX_ROWS:
        widest = schema.TIERS[schema.TIERS.index(widest) + 1]
        width = tiers.ceil(width, widest)
    return width if width < end - start else None


def _rows(snapshot: Snapshot, question: Question, tier: int) -> int:
    """Return about how many rows of *tier* there are: of whole hours from the number of rows that cover each."""
    start, end = question.selection.seconds
    rolled_up = tiers.read(snapshot.connection)[-1].watermark
    hours = tiers.Segment(schema.COARSEST, tiers.floor(start, schema.COARSEST), min(end, rolled_up))
    rest = tiers.Segment(tier, max(start, rolled_up), end)
    if tier == schema.FINEST:
        # It has no totals: each series is read by itself.
        question = replace(question, by="series")
    counted = snapshot.points.number(snapshot.connection, question, hours) * schema.COARSEST // tier
    return counted + snapshot.points.number(snapshot.connection, question, rest)
