"""What the tail adds: the stages of the median beside those of a higher percentile, sorted by what they add.

The table is whole as it comes from the server; hovering the percentile chart rewrites it in the browser from the same
numbers, which it carries along.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
from dash import html
from dash.development.base_component import Component

from ...core.stages import label
from ..components import Node, attributes, card, swatch, table
from ..figures.percentile import COLUMNS, place
from ..format import count, duration, percent
from ..tokens import hue
from .measures import stages_at
from .rows import records

_MIN_BAR = 0.6


def inspector(frame: pd.DataFrame, wanted: float, size: str = "c4") -> Component:
    """Return the card for the percentile nearest to *wanted*.

    Args:
        frame: A breakdown over the whole percentile grid, the median in it.
        wanted: The pinned percentile. [ratio]
        size: The class of the card's width.
    """
    names = [f"p{100 * each:.4g}" for each in frame["percentile"]]
    shown = _nearest(frame, wanted)
    base, tail = stages_at(frame, _nearest(frame, 0.5)), stages_at(frame, shown)
    stages = [str(each) for each in frame.columns if each not in COLUMNS and float(frame[each].sum()) > 0]
    added = {stage: tail.get(stage, 0.0) - base.get(stage, 0.0) for stage in stages}
    order = sorted(stages, key=lambda stage: -added[stage])
    widest = max([abs(each) for each in added.values()] + [1e-9])
    bands = [_band(record) for record in records(frame[list(COLUMNS)])]
    values: dict[str, Any] = {
        "base": {stage: _short(base.get(stage, 0.0)) for stage in stages},
        "stages": {stage: [_short(float(each)) for each in frame[stage]] for stage in stages},
        "percentiles": names,
        "bands": bands,
        "default": shown,
        "widest": _short(widest),
    }
    before, now = sum(base.values()), sum(tail.values())
    named = names[shown]
    follows = html.Span(named, **attributes({"data-percentile": ""}))
    head: list[tuple[Node, str]] = [("Stage", "w1"), ("p50", "r w2"), (follows, "r w2"), ("added", "")]
    rows = [_row(stage, base.get(stage, 0.0), tail.get(stage, 0.0), widest) for stage in order]
    foot = _total(before, now)
    body = table(head, rows, "Stages of the median and of the chosen percentile", css="insp", foot=foot)
    whole = html.Div(body, **attributes({"data-inspector": json.dumps(values, separators=(",", ":"))}))
    sub = ["p50 → ", html.Span(named, **attributes({"data-percentile": ""}))]
    band = html.Span(bands[shown], **attributes({"data-band": ""}))
    said = html.Span(_sentence(order[0], added, now - before, named))
    return card(
        "What the tail adds",
        whole,
        sub=sub,
        tools=html.Span(
            band, className="muted num", title="Requests there, and the band their latency is certain to lie in"
        ),
        foot=said,
        size=size,
    )


def _nearest(frame: pd.DataFrame, wanted: float) -> int:
    """Find the row for *wanted*, the last one where the requests are too few for it."""
    places = np.array([place(float(each), even=False) for each in frame["percentile"]])
    return int(np.argmin(np.abs(places - place(wanted, even=False))))


def _row(stage: str, before: float, now: float, widest: float) -> Component:
    added = now - before
    width = max(_MIN_BAR, min(100.0, abs(added) / widest * 100))
    bar = html.I(className="less" if added < 0 else "", style={"width": f"{width:.1f}%"})
    return html.Tr(
        [
            html.Th(html.Span([swatch(stage), label(stage)], className="nm"), scope="row"),
            html.Td(duration(before), className="r"),
            html.Td(duration(now), className="r now", **attributes({"data-now": ""})),
            html.Td(html.Span(bar, className=f"dv st-{hue(stage)}", title=duration(added, sign=True))),
        ],
        **attributes({"data-stage": stage}),
    )


def _total(before: float, now: float) -> Component:
    return html.Tr(
        [
            html.Th("Total", scope="row"),
            html.Td(duration(before), className="r now"),
            html.Td(duration(now), className="r now", **attributes({"data-total": ""})),
            html.Td(duration(now - before, sign=True), className="bad", **attributes({"data-added": ""})),
        ]
    )


def _sentence(stage: str, added: dict[str, float], gap: float, named: str) -> list[Any]:
    if gap <= 0:
        return ["The tail adds nothing."]
    return [html.B(label(stage)), " explains ", html.B(percent(added[stage] / gap)), f" of the p50→{named} gap."]


def _band(record: dict[str, Any]) -> str:
    low, high = float(record["low_seconds"]), float(record["high_seconds"])
    return f"{duration(low)} to {duration(high)}, n {count(int(record['n']))}"


def _short(value: float) -> float:
    return float(f"{value:.4g}")
