"""One kept request as a waterfall of text: a line for each interval, as long as it took, where it was in time."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import nlargest
from typing import Any

from rich.table import Table
from rich.text import Text

from ..core.names import METHOD, STATUS_ERROR
from ..core.stages import OVERHEAD
from ..dashboard.format import duration, several
from ..dashboard.pages.trace_baseline import NS
from ..dashboard.pages.trace_timeline import Scale, in_time, note, span_name
from ..store import KeptTrace
from .words import FULL, colour, table, text

# What the whole request takes. [columns]
_WIDTH = 32
# Shorter intervals than these are counted and not shown.
_MOST = 12


def waterfall(found: KeptTrace) -> Table:
    """Return *found* as a table: what, when, how long."""
    scale = Scale.of(found)
    longest = {id(span) for span in nlargest(_MOST, found.spans, key=lambda each: each["duration_ns"])}
    made = table("The slowest request", "time")
    made.add_column(_cut(text(_name(found), "dim")))
    for span in in_time(found):
        if id(span) in longest:
            made.add_row(text(span_name(span)), text(duration(span["duration_ns"] / NS)), _cut(_lane(span, scale)))
    if len(found.spans) > len(longest):
        made.add_row(text(f"{several(len(found.spans) - len(longest), 'shorter interval')}", "dim"))
    overhead = found.stages_ns.get(OVERHEAD, 0)
    if overhead:
        made.add_row(text("Overhead"), text(duration(overhead / NS)), text("between the stages", "dim"))
    made.add_row(text("Together", "bold"), text(duration(scale.whole), "bold"))
    return made


def _cut(said: Text) -> Text:
    """Return *said*, which is cut where there is no room for it."""
    said.no_wrap, said.overflow = True, "ellipsis"
    return said


def _name(found: KeptTrace) -> str:
    asked = " ".join(str(part) for part in (found.attributes.get(METHOD), found.series.route) if part)
    failed = "failed" if found.series.status == STATUS_ERROR else ""
    return "  ".join(part for part in (asked, failed, found.trace_id[:8]) if part)


def _lane(span: Mapping[str, Any], scale: Scale) -> Text:
    left, width = (each / 100 * _WIDTH for each in scale.place(span))
    start = min(round(left), _WIDTH - 1)
    bar = Text(" " * start).append(FULL * max(round(left + width) - start, 1), colour(str(span["stage"])))
    said = note(span)
    return bar.append_text(text(f" {said}", "dim")) if said else bar
