"""Which servers say of their own time what cannot be true: their word is not used, and the page of a service says so."""

from __future__ import annotations

from dash import html
from dash.development.base_component import Component

from ...core.names import SUSPECT_REPORT
from ...core.stages import label
from ..format import several
from .page import Context


def suspect_note(context: Context) -> Component | None:
    """Return in a line how many calls of the window are not split for that reason, by dialect; None where all can be."""
    found = context.source.ask(context.source.read.streams, context.selection, SUSPECT_REPORT)
    calls = {dialect: each.count for dialect, each in found.items() if each.count}
    if not calls:
        return None
    by_dialect = ", ".join(
        f"{dialect} {several(calls[dialect], 'time')}" for dialect in sorted(calls, key=calls.__getitem__)[::-1]
    )
    return html.P(
        f"Of {several(sum(calls.values()), 'call')} the server said of its own time what cannot be true ({by_dialect}): "
        f"each counts as {label('dependency')} as a whole. A proxy or a new version of the server may use another unit.",
        className="sub",
    )
