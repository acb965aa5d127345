"""Table of retained traces, as the service page, the trace list and the trace page show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from dash import html
from dash.development.base_component import Component

from ...core.confidence import has_enough_samples
from ...core.names import STATUS_OK
from ..ui.components import Node, attributes, dominating, link, pill, stage_bar, table
from ..ui.format import duration, rank
from ..view import View, trace_name, trace_path

_HEAD: tuple[tuple[Node, str], ...] = (
    ("Time", "hide"),
    ("Trace", ""),
    ("Latency", "r"),
    ("Rank", "r hide"),
    ("Stages", ""),
    ("Dominated by", "hide"),
    ("Status", "r hide"),
)


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of *frame* as dicts."""
    return [{str(key): value for key, value in row.items()} for row in frame.to_dict("records")]


def traces_table(frame: pd.DataFrame, view: View, name: str, *, with_service: bool = False) -> Component:
    """Return retained requests as a table, each row a link to its trace.

    Args:
        frame: The frame of `read.exemplars`.
        view: The address, for links and the reader's zone.
        name: What is listed, for screen readers.
        with_service: Whether the service needs saying.
    """
    head: Sequence[tuple[Node, str]] = (*_HEAD[:2], ("Service", "hide"), *_HEAD[2:]) if with_service else _HEAD
    ranked = are_ranked(frame)
    rows = [_row(record, view, ranked=ranked, with_service=with_service) for record in records(frame)]
    return table(head, rows, name)


def are_ranked(frame: pd.DataFrame) -> bool:
    """Return whether there are enough requests for ranks to be meaningful."""
    return has_enough_samples(int(frame.attrs.get("requests", 0)), 0.5)


def stages_of(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the stages of one retained request, stage to seconds."""
    return {str(stage): float(seconds) for stage, seconds in dict(record["stages"]).items()}


def _row(record: Mapping[str, Any], view: View, *, ranked: bool, with_service: bool) -> Component:
    trace_id = str(record["trace_id"])
    href = view.link(trace_path(trace_name(trace_id, str(record["span_id"]))))
    at = pd.Timestamp(record["at"]).tz_convert(view.zone)
    stages = stages_of(record)
    cells = [
        html.Td(f"{at:%H:%M:%S}", className="muted hide", title=f"{at:%-d %b %Y %H:%M:%S}"),
        html.Td(link(trace_id[:8], href=href, className="mono")),
        html.Td(str(record["service"]), className="hide") if with_service else None,
        html.Td(duration(float(record["duration_seconds"])), className="r b"),
        html.Td(rank(float(record["rank"]) if ranked else None), className="r muted hide"),
        html.Td(stage_bar(stages), className="barcell"),
        html.Td(dominating(stages), className="hide"),
        html.Td(_status(str(record["status"])), className="r hide"),
    ]
    return html.Tr([cell for cell in cells if cell is not None], **attributes({"data-href": href}))


def _status(status: str) -> Component:
    return pill("ok") if status == STATUS_OK else pill("error", "bad")
