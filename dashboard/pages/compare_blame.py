"""Which stage made the change: A, B and the difference of each at one percentile."""

from __future__ import annotations

from typing import Any

from dash import html
from dash.development.base_component import Component

from ...core.stages import label
from ..components import attributes, card, empty, link_tabs, swatch, table
from ..design_tokens import hue
from ..format import THIN, duration, enough, needed, percent, percentile, signed_change, whole
from .comparison import Comparison
from .page import Context
from .rows import records

# Value in the address to quantile; p90 is offered where fewer requests bear no more.
QUANTILES = {"50": 0.5, "90": 0.9, "95": 0.95, "99": 0.99, "99.9": 0.999}
_OFFERED = ("50", "95", "99", "99.9")
# The fullest bar takes this part of its cell; the number stands beside it.
_BAR_ROOM = 30.0
# Half a percent shows as zero; a fifth of the change is set bold.
_HALF_PERCENT, _CAUSE = 0.005, 0.2
# A change this much smaller than the largest is none.
_NOTHING = 0.01


def blame_card(context: Context, judged: Comparison) -> Component:
    """Return the table of stages at the percentile judged, with the choice of another."""
    fewer = min(judged.verdict.a_n, judged.verdict.b_n)
    tools = _tabs(context, judged)
    if not enough(fewer, judged.quantile):
        at = percentile(judged.quantile)
        text = f"{at} needs {whole(needed(judged.quantile))} requests on both sides, one has {whole(fewer)}."
        return card("Blame", empty(f"Too few requests for {at}", text), tools=tools, size="c5")
    frame = judged.stages
    widest = max([abs(float(each)) for each in frame["delta_seconds"]] + [1e-9])
    lowest = min([float(each) for each in frame["delta_seconds"]] + [0.0])
    # Zero stands so far in that the longest bar to the left has room.
    zero = min(_BAR_ROOM, abs(lowest) / widest * _BAR_ROOM)
    rows = [_row(record, widest, zero) for record in records(frame)]
    head = (("Stage", "w1"), ("A", "r w2"), ("B", "r w2"), (f"change at {percentile(judged.quantile)}", ""))
    body = table(head, rows, "Change by stage", css="insp wide", foot=_total(judged))
    return card("Blame", body, tools=tools, size="c5")


def change_words(a: float, b: float, share: float, widest: float) -> str:
    """Return a stage's change and its share of the whole, negative for one that moved against it."""
    if abs(b - a) < widest * _NOTHING:
        return f"±{THIN}0"
    return duration(b - a, sign=True) + (f" · {percent(share)}" if abs(share) >= _HALF_PERCENT else "")


def total_words(judged: Comparison) -> tuple[str, float]:
    """Return the change of the whole in words, and in seconds."""
    a, b = judged.verdict.a_value or 0.0, judged.verdict.b_value or 0.0
    return f"{duration(b - a, sign=True)} · {signed_change((b - a) / a if a else None)}", b - a


def _tabs(context: Context, judged: Comparison) -> Component:
    chosen = next((value for value, quantile in QUANTILES.items() if quantile == judged.quantile), "")
    offered = [value for value in QUANTILES if value in _OFFERED or value == chosen]
    options = {value: (f"p{value}", context.view.here(p=value)) for value in offered}
    return link_tabs("Percentile", options, chosen)


def _total(judged: Comparison) -> Component:
    text, change = total_words(judged)
    cells = [
        html.Th("End to end", scope="row"),
        html.Td(duration(judged.verdict.a_value), className="r now"),
        html.Td(duration(judged.verdict.b_value), className="r now"),
        html.Td(text, className="bad" if change > 0 else "good"),
    ]
    return html.Tr(cells)


def _row(record: dict[str, Any], widest: float, zero: float) -> Component:
    stage, share = str(record["stage"]), float(record["share"])
    a, b = float(record["a_seconds"]), float(record["b_seconds"])
    cells = [
        html.Th(html.Span([swatch(stage), label(stage)], className="nm"), scope="row"),
        html.Td(duration(a), className="r"),
        html.Td(duration(b), className="r now"),
        html.Td(_bar(stage, b - a, change_words(a, b, share, widest), widest, zero, main=abs(share) >= _CAUSE)),
    ]
    return html.Tr(cells, **attributes({"data-stage": stage}))


def _bar(stage: str, change: float, text: str, widest: float, zero: float, *, main: bool) -> Component:
    width = abs(change) / widest * _BAR_ROOM
    left = zero if change >= 0 else zero - min(width, zero)
    said = html.B(
        text,
        className="main" if main else "",
        style={"left": f"calc({max(zero, left + width):.1f}% + 6px)"},
    )
    parts = [
        html.I(className="z", style={"left": f"{zero:.1f}%"}),
        html.I(style={"left": f"{left:.1f}%", "width": f"{max(width, 0.6):.1f}%"}),
        said,
    ]
    return html.Span(parts, className=f"dv st-{hue(stage)}")
