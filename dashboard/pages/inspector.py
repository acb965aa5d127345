"""What the tail adds: the stages of the median beside those of a higher percentile, sorted by what they add.

The table is whole as it comes from the server; hovering the percentile chart rewrites it in the browser from the same
numbers, which it carries along.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

import pandas as pd
from dash import html
from dash.development.base_component import Component

from ...core.stages import label, position
from ..components import Node, attributes, card, link, swatch, table
from ..design_tokens import hue
from ..figures.parts import safe
from ..figures.percentile import COLUMNS, coarse, nearest
from ..format import count, duration, interval, percent, portion
from .fleet import stages_at
from .rows import records
from .stalled import explained

_MIN_BAR = 0.6
# One cause is no mixture: what dominates more requests than this speaks for all, and fewer than this are noise. [ratio]
_ONE_CAUSE, _NO_CAUSE = 0.85, 0.1
_FIXED = "the source has fixed buckets"
_BAND = "Requests there, and the band their latency is certain to lie in"

# Of each percentile the two stages that dominate most requests, with their shares; None where one dominates nearly all.
Mixture = tuple[str, float, str, float] | None


def inspector(
    frame: pd.DataFrame,
    wanted: float,
    *,
    dominants: pd.DataFrame | None = None,
    stalls: pd.DataFrame | None = None,
    hidden: Collection[str] = (),
    advice: str | None = None,
    show_all: str | None = None,
    size: str = "c4",
) -> Component:
    """Return the card for the percentile nearest to *wanted*.

    Args:
        frame: A breakdown over the whole percentile grid, the median in it.
        wanted: The pinned percentile. [ratio]
        dominants: The frame of `read.dominants` at the same percentiles, to say where causes mix.
        stalls: What held requests up at those percentiles, as `measures.stalls` returns it.
        hidden: Stages left out of the charts.
        advice: The address of what would help.
        show_all: The address with every stage in the charts.
        size: The class of the card's width.
    """
    shown = nearest(frame["percentile"], wanted)
    base, tail = stages_at(frame, nearest(frame["percentile"], 0.5)), stages_at(frame, shown)
    added = {stage: tail.get(stage, 0.0) - base.get(stage, 0.0) for stage in _present(frame)}
    order = sorted(added, key=lambda stage: -added[stage])
    widest = max([abs(each) for each in added.values()] + [1e-9])
    mixed: list[Mixture] = mixtures(dominants, frame) if dominants is not None else [None for _ in range(len(frame))]
    held = _held_up(stalls, frame) if stalls is not None else [""] * len(frame)
    values: dict[str, Any] = {**_carried(frame, base, mixed), "held": held, "default": shown, "widest": _short(widest)}
    named = str(values["percentiles"][shown])
    before, now = sum(base.values()), sum(tail.values())
    rows = [_row(stage, base.get(stage, 0.0), tail.get(stage, 0.0), widest, hidden) for stage in order]
    said = [
        html.Span([*_sentence(order, added, now - before, named), _fits(advice)]),
        _following("aside", _aside(values, shown)),
        _hidden([each for each in added if each in hidden], show_all),
    ]
    return card(
        "What the tail adds",
        html.Div(
            _table(rows, named, _total(before, now, unsure=bool(values["wide"][shown]))),
            **attributes({"data-inspector": json.dumps(values, separators=(",", ":"))}),
        ),
        sub=["p50 → ", _following("percentile", named)],
        tools=html.Span(_following("band", values["bands"][shown]), className="muted num", title=_BAND),
        foot=said,
        size=size,
    )


def _following(what: str, text: str) -> Component:
    """Return *text*, which the browser rewrites when another percentile is pointed at."""
    return html.Span(text, **attributes({f"data-{what}": ""}))


def _table(rows: list[Component], named: str, foot: Component) -> Component:
    follows = _following("percentile", named)
    head: list[tuple[Node, str]] = [("Stage", "w1"), ("p50", "r w2"), (follows, "r w2"), ("added", "")]
    return table(head, rows, "Stages of the median and of the chosen percentile", css="insp", foot=foot)


def _present(frame: pd.DataFrame) -> list[str]:
    """Return the stages that took any time."""
    return [str(each) for each in frame.columns if each not in COLUMNS and float(frame[each].sum()) > 0]


def mixtures(dominants: pd.DataFrame, frame: pd.DataFrame) -> list[Mixture]:
    """Return of each percentile of *frame* which causes mix there."""
    found: dict[float, list[tuple[str, float]]] = {}
    for quantile, stage, share in zip(dominants["percentile"], dominants["stage"], dominants["share"], strict=True):
        found.setdefault(float(quantile), []).append((str(stage), float(share)))
    return [_mixture(found.get(float(each), [])) for each in frame["percentile"]]


def _mixture(shares: list[tuple[str, float]]) -> Mixture:
    if len(shares) < 2:  # noqa: PLR2004 - one cause alone
        return None
    (first, most), (second, next_most) = shares[:2]
    return None if most > _ONE_CAUSE or next_most < _NO_CAUSE else (first, most, second, next_most)


def _held_up(stalls: pd.DataFrame, frame: pd.DataFrame) -> list[str]:
    """Say of each percentile of *frame* what held up the requests there; "" where nothing did."""
    known = stalls.set_index("percentile").drop(columns=list(COLUMNS[1:]))
    seconds = records(known.reindex(frame["percentile"], fill_value=0.0))
    told = zip(seconds, frame["value_seconds"], frame["percentile"], strict=True)
    return [explained(each, float(value), _named(float(quantile))) for each, value, quantile in told]


def _named(quantile: float) -> str:
    return f"p{100 * quantile:.4g}"


def _carried(frame: pd.DataFrame, base: Mapping[str, float], mixed: list[Mixture]) -> dict[str, Any]:
    """Return what the browser needs to rewrite the table at any percentile."""
    stages = _present(frame)
    wide = coarse(frame)
    causes = sorted({stage for each in mixed if each for stage in (each[0], each[2])}, key=position)
    return {
        "base": {stage: _short(base.get(stage, 0.0)) for stage in stages},
        "stages": {stage: [_short(float(each)) for each in frame[stage]] for stage in stages},
        "percentiles": [_named(float(each)) for each in frame["percentile"]],
        "bands": [_band(record) for record in records(frame[list(COLUMNS)])],
        "wide": [int(each) for each in wide],
        "fixed": _FIXED,
        "causes": [label(each) for each in causes],
        "mixed": [
            [causes.index(each[0]), round(each[1] * 100), causes.index(each[2]), round(each[3] * 100)] if each else 0
            for each in mixed
        ],
    }


def _aside(values: Mapping[str, Any], shown: int) -> str:
    """Say what else is true there: what held requests up, what it lies between, which causes mix. So does `inspector.js`."""
    said: list[str] = [values["held"][shown]] if values["held"][shown] else []
    if values["wide"][shown]:
        said.append(f"It lies in {values['bands'][shown].split(',')[0]}: {values['fixed']}.")
    if values["mixed"][shown]:
        first, most, second, less = values["mixed"][shown]
        causes = values["causes"]
        said.append(
            f"Here {percent(most / 100)} of requests are mostly {causes[first]}, {percent(less / 100)} mostly {causes[second]}."
        )
    return " ".join(said)


def _row(stage: str, before: float, now: float, widest: float, hidden: Collection[str]) -> Component:
    added = now - before
    width = max(_MIN_BAR, min(100.0, abs(added) / widest * 100))
    bar = html.I(className="less" if added < 0 else "", style={"width": f"{width:.1f}%"})
    off = stage in hidden
    name = html.Button(
        [swatch(stage), label(stage)],
        type="button",
        className="nm lit",
        title="Hidden in the charts; Alt+click shows it" if off else "Highlights it in the charts; Alt+click hides it",
        **attributes({"data-lit": safe(label(stage)), "aria-pressed": "false"}),
    )
    return html.Tr(
        [
            html.Th(name, scope="row"),
            html.Td(duration(before), className="r"),
            html.Td(duration(now), className="r now", **attributes({"data-now": ""})),
            html.Td(html.Span(bar, className=f"dv st-{hue(stage)}", title=duration(added, sign=True))),
        ],
        className="off" if off else "",
        **attributes({"data-stage": stage}),
    )


def _total(before: float, now: float, *, unsure: bool) -> Component:
    return html.Tr(
        [
            html.Th("Total", scope="row"),
            html.Td(duration(before), className="r now"),
            html.Td(("≈ " if unsure else "") + duration(now), className="r now", **attributes({"data-total": ""})),
            html.Td(duration(now - before, sign=True), className="bad", **attributes({"data-added": ""})),
        ]
    )


def _sentence(order: list[str], added: Mapping[str, float], gap: float, named: str) -> list[Node]:
    if gap <= 0 or not order:
        return ["The tail adds nothing."]
    most = order[0]
    share = portion(added[most] / gap)
    return [html.B(label(most)), " explains ", html.B(share), f" {'of ' if share != 'all' else ''}the p50→{named} gap."]


def _fits(advice: str | None) -> Node:
    return html.Span([" ", link("What fits →", href=advice, className="link")]) if advice else None


def _hidden(hidden: Collection[str], show_all: str | None) -> Component | None:
    if not hidden:
        return None
    names = ", ".join(label(each) for each in sorted(hidden, key=position))
    return html.Span([f"Not in the charts: {names}. ", link("Show all", href=show_all or "", className="link")])


def _band(record: dict[str, Any]) -> str:
    low, high = float(record["low_seconds"]), float(record["high_seconds"])
    return f"{interval(low, high)}, n {count(int(record['n']))}"


def _short(value: float) -> float:
    return float(f"{value:.4g}")
