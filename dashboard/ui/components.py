"""Page components: cards, tiles, bars, badges, tables and charts, built as Dash components from plain values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import pandas as pd
from dash import html
from dash.development.base_component import Component

from ...core.stages import label, position
from ..figures.elements import Figure, named_colours
from .design_tokens import hue
from .format import SMALL_CHANGE, change, duration, percent, split_duration

Node = Component | str | None
Nodes = Node | Sequence[Node]

# Number of stages in the text description of a bar.
_SPOKEN = 3
_FLAT = 0.15
_SPARK_POINTS = 40
_COMMANDS = ("stagelens ", "pip ", "make ")
# Texts up to this length are on one line. [characters]
_LINE = 60

SHAPES = {
    "burning": "bad",
    "at_risk": "warn",
    "stale": "stale",
    "healthy": "good",
    "maintenance": "paused",
    "no_data": "none",
}
WORDS = {
    "burning": "Burning",
    "at_risk": "At risk",
    "stale": "Stale",
    "healthy": "Healthy",
    "maintenance": "In maintenance",
    "no_data": "No data",
}


def attributes(values: Mapping[str, str]) -> dict[str, Any]:
    return dict(values)


def link(inside: Nodes, href: str, className: str = "", **more: Any) -> Component:  # noqa: N803 - name given by Dash
    """Return a link to another view; `assets/shell.js` follows it without reloading the frame."""
    return html.A(inside, href=href, className=className, **more)


def swatch(stage: str) -> Component:
    return html.I(className=f"sw st-{hue(stage)}")


def stage_name(stage: str, *more: Node) -> Component:
    return html.Span([swatch(stage), html.Span([label(stage), *more])], className="nm")


def dot(state: str) -> Component:
    return html.I(className=f"dot {SHAPES[state]}")


def status(state: str, word: str = "") -> Component:
    return html.Span([dot(state), word or WORDS[state]], className=f"pill {SHAPES[state]}")


def pill(text: str, kind: str = "") -> Component:
    return html.Span(text, className=f"pill {kind}".strip())


def stage_bar(stages: Mapping[str, float], *, tall: bool = False, scale: float = 1.0) -> Component:
    total = sum(stages.values()) or 1.0
    shown = [(stage, stages[stage] / total) for stage in sorted(stages, key=position) if stages[stage] > 0]
    largest = sorted(shown, key=lambda pair: -pair[1])[:_SPOKEN]
    description = "Stages: " + ", ".join(f"{label(stage)} {percent(share)}" for stage, share in largest)
    style = {"background": _gradient(shown)}
    if scale < 1:
        style["width"] = f"{scale * 100:.1f}%"
    spoken = attributes({"aria-label": description})
    bar = StageBar(role="img", className="bar tall" if tall else "bar", style=style, title=description, **spoken)
    bar.stages = tuple(stage for stage, _ in shown)
    return bar


def _gradient(shown: Sequence[tuple[str, float]]) -> str:
    stops: list[str] = []
    end = 0.0
    for stage, share in shown:
        end += share * 100
        stops.append(f"var(--st-{hue(stage)}) 0 calc({end:.2f}% - 1px)")
        stops.append(f"var(--surface) 0 {end:.2f}%")
    # No hairline after the last part.
    return (
        f"linear-gradient(to right, {', '.join([*stops[:-2], stops[-2].replace(' - 1px', '')])})" if stops else "none"
    )


def dominating(stages: Mapping[str, float]) -> Component:
    if not stages:
        return html.Span("", className="dom")
    total = sum(stages.values()) or 1.0
    stage = max(stages, key=lambda key: stages[key])
    return html.Span([swatch(stage), f"{label(stage)} {percent(stages[stage] / total)}"], className="dom")


def gauge(ratio: float, kind: str = "") -> Component:
    filled = min(max(ratio, 0.0), 1.0)
    return html.Div(html.I(style={"width": f"{filled * 100:.0f}%"}), className=f"track {kind}".strip())


def delta(ratio: float | None, *, certain: bool, worse_up: bool = True, after: str = "") -> Component:
    if ratio is None:
        return html.Span("–", className="delta flat")  # noqa: RUF001 - an en dash means unknown
    flat = abs(ratio) < SMALL_CHANGE or not certain
    kind = "flat" if flat else "up" if (ratio > 0) == worse_up else "down"
    return html.Span([html.Span(change(ratio, certain=certain), className=f"delta {kind}"), after and f" {after}"])


def tile(name: Node, value: str, unit: str = "", below: Nodes = None, spark: Component | None = None) -> Component:
    big = html.Div([value, html.Small(unit) if unit else None], className="v num")
    tooltip = below if isinstance(below, str) else None
    return html.Div(
        [
            html.Div(name, className="l", title=name if isinstance(name, str) else None),
            big,
            html.Div(below, className="d", title=tooltip),
            spark,
        ],
        className="kpi",
    )


def duration_tile(name: Node, seconds: float | None, below: Nodes = None, spark: Component | None = None) -> Component:
    number, unit = split_duration(seconds)
    return tile(name, number, unit, below, spark)


def tiles(components: Iterable[Component | None]) -> Component:
    return html.Div([one for one in components if one is not None], className="kpis")


def spark(values: Sequence[float], *, css: str = "spark") -> Component | None:
    numbers = _thinned([value for value in values if value == value])  # noqa: PLR0124 - NaN is not equal to itself
    if len(numbers) < 3:  # noqa: PLR2004 - two points show no trend
        return None
    low, high = min(numbers), max(numbers)
    # An almost constant series must not look volatile.
    reach = max(high - low, abs(high) * _FLAT) or 1.0
    low -= (reach - (high - low)) / 2
    width = 100 / (len(numbers) - 1)
    points = [(i * width, 20 - 17 * (v - low) / reach) for i, v in enumerate(numbers)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    svg = (
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 100 22' preserveAspectRatio='none'>"
        f"<polygon points='0,22 {path} 100,22' fill-opacity='.18'/>"
        f"<polyline points='{path}' fill='none' stroke='black' stroke-width='1.4' vector-effect='non-scaling-stroke'/></svg>"
    )
    image = f'url("data:image/svg+xml,{quote(svg)}")'
    return html.Span(className=css, style={"--i": image}, **attributes({"aria-hidden": "true"}))


def strip(values: Sequence[float], top: float, *, narrow: bool = False) -> Component:
    """Return a bar for each of *values*, scaled from zero to *top*, so that several strips have one scale; NaN is a gap."""
    width = 100 / max(len(values), 1)
    bar = width if narrow else width * 0.85
    heights = [(index, 22 * min(value / top, 1.0)) for index, value in enumerate(values) if value == value and top > 0]  # noqa: PLR0124 - NaN is not equal to itself
    bars = "".join(f"M{index * width:.2f},22v-{height:.1f}h{bar:.2f}V22z" for index, height in heights)
    svg = (
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 100 22' preserveAspectRatio='none'>"
        f"<path d='{bars}'/></svg>"
    )
    image = f'url("data:image/svg+xml,{quote(svg)}")'
    css = "spk" if narrow else "spk strip"
    return html.Span(className=css, style={"--i": image}, **attributes({"aria-hidden": "true"}))


def _thinned(values: list[float]) -> list[float]:
    size = -(-len(values) // _SPARK_POINTS) or 1
    groups = [values[start : start + size] for start in range(0, len(values), size)]
    return [sum(group) / len(group) for group in groups]


def card(
    title: str | None,
    body: Nodes,
    *,
    sub: Nodes = None,
    tools: Node = None,
    foot: Nodes = None,
    size: str = "c12",
    flush: bool = False,
) -> Component:
    has_numbers = any(isinstance(component, (Chart, html.Table)) for component in _components(body))
    export = _export(title) if title and has_numbers else None
    head: list[Node] = [html.H2(title), html.Span(sub, className="sub"), html.Span(className="grow"), tools, export]
    return html.Section(
        [
            html.Div(head, className="ch") if title else None,
            html.Div(body, className="cb flush" if flush else "cb"),
            missing_legend(body),
            html.Div(foot, className="foot") if foot else None,
        ],
        className=f"card {size}",
    )


class StageBar(html.Div):
    stages: Sequence[str] = ()


class Chart(StageBar):
    name: str = ""
    figure: Figure
    frame: pd.DataFrame | None = None


class LazyPanel(Component):
    """Part of a page that is built when it is read first, so that what is before it can be sent earlier."""

    _namespace, _type = "stagelens", "LazyPanel"
    _built: tuple[Component | None] | None

    def __init__(self, build: Callable[[], Component | None], name: str = "") -> None:  # pyright: ignore[reportMissingSuperCall] - Dash sets properties there
        self._build, self._built, self.name = build, None, name
        self._prop_names, self._valid_wildcard_attributes = ["children"], []

    # Not a `cached_property`, whose lock would let only one reader at a time build a panel, with Python 3.11.
    @property
    def children(self) -> Component | None:
        if self._built is None:
            self._built = (self._build(),)
        return self._built[0]


def _export(title: str) -> Component:
    named = {"data-do": "more", "aria-label": f"Export {title}", "aria-expanded": "false"}
    return html.Button("\u22ef", type="button", title="Export", className="dots", **attributes(named))


def _components(node: Nodes) -> Iterator[Component]:
    if isinstance(node, Component):
        yield node
    inside = node if isinstance(node, (list, tuple)) else getattr(node, "children", None)
    for child in inside if isinstance(inside, (list, tuple)) else [inside]:
        if isinstance(child, Component):
            yield from _components(child)


def missing_legend(body: Nodes) -> Component | None:
    inside = [*_components(body)]
    drawn = [component for component in inside if isinstance(component, StageBar)]
    stages = sorted({stage for bar in drawn for stage in bar.stages}, key=position)
    names = {label(stage): hue(stage) for stage in stages}
    for bar in drawn:
        names |= named_colours(bar.figure) if isinstance(bar, Chart) else {}
    named = " ".join(
        getattr(component, "className", "") for component in inside if isinstance(component, html.I)
    ).split()
    return None if all(f"st-{name}" in named for name in names.values()) else _legend(names)


def chart(
    name: str,
    figure: Figure,
    description: str,
    height: int = 300,
    *,
    frame: pd.DataFrame | None = None,
    stages: Sequence[str] = (),
) -> Component:
    element = Chart(
        html.Div(
            className="plot",
            role="img",
            style={"height": f"{height}px"},
            **attributes({"aria-label": description, "data-chart": name}),
        )
    )
    element.name, element.figure, element.frame, element.stages = name, figure, frame, stages
    return element


def switch(name: str, key: str, options: Mapping[str, str], chosen: str, *, chart_name: str, default: str) -> Component:
    buttons = [
        html.Button(
            text,
            className="on" if value == chosen else "",
            type="button",
            **attributes(
                {
                    "aria-pressed": "true" if value == chosen else "false",
                    "data-key": key,
                    "data-value": "" if value == default else value,
                    "data-redraw": chart_name,
                }
            ),
        )
        for value, text in options.items()
    ]
    return html.Span(buttons, role="group", className="seg", **attributes({"aria-label": name}))


def link_tabs(name: str, options: Mapping[str, tuple[str, str]], chosen: str) -> Component:
    items = [
        link(text, href=href, className="on" if value == chosen else "", **_current(value == chosen))
        for value, (text, href) in options.items()
    ]
    return html.Span(items, role="group", className="seg", **attributes({"aria-label": name}))


def table(
    head: Sequence[tuple[Node, str] | Component],
    rows: Sequence[Component],
    name: str,
    *,
    css: str = "",
    foot: Nodes = None,
) -> Component:
    titles = [
        html.Th(title[0], className=title[1], scope="col") if isinstance(title, tuple) else title for title in head
    ]
    parts: list[Component] = [html.Caption(name, className="sr"), html.Thead(html.Tr(titles)), html.Tbody(list(rows))]
    if foot is not None:
        parts.append(html.Tfoot(foot))
    # Focusable, so that the table can be scrolled with the keyboard.
    return html.Div(
        html.Table(parts, className=css), className="tw", tabIndex=0, role="region", **attributes({"aria-label": name})
    )


def steady(shown: Component, texts: Sequence[str]) -> Component:
    """Return *shown* in a box as large as the longest of *texts*, one of which the browser puts there later: nothing moves."""
    longest = max(texts, key=len)
    # Lines of a paragraph break differently: a word more.
    reserved = {"data-longest": longest + " 0000" * (len(longest) > _LINE)} if longest else {}
    return html.Span(shown, className="steady", **attributes(reserved))


def legend(stages: Iterable[str]) -> Component:
    return _legend({label(stage): hue(stage) for stage in sorted(set(stages), key=position)})


def _legend(names: Mapping[str, str]) -> Component:
    entries = [html.Span([html.I(className=f"sw st-{colour}"), name]) for name, colour in names.items()]
    return html.Span(entries, className="legend")


def empty(title: str, *text: Nodes, actions: Sequence[Component] = ()) -> Component:
    return html.Div(
        [
            html.H3(title),
            *[html.P(with_code(paragraph) if isinstance(paragraph, str) else paragraph) for paragraph in text],
            html.Div(list(actions), className="acts") if actions else None,
        ],
        className="empty",
    )


def with_code(text: str) -> list[Node]:
    nodes: list[Node] = []
    for index, part in enumerate(text.split("`")):
        nodes.append(html.Code(part, className="mono") if index % 2 else part)
        nodes += [" ", _copy_button(part, "inline")] if index % 2 and part.startswith(_COMMANDS) else []
    return [node for node in nodes if node]


def code_block(text: str) -> Component:
    return html.Div([html.Pre(text, className="code mono", tabIndex=0), _copy_button(text)], className="copyable")


def _copy_button(text: str, css: str = "") -> Component:
    named = {"data-copies": "", "data-text": text, "data-copied": "Text", "aria-label": f"Copy {text.splitlines()[0]}"}
    return html.Button("Copy", type="button", className=f"btn ghost copies {css}".strip(), **attributes(named))


def banner(text: Nodes, kind: str = "warn") -> Component:
    return html.Div(text, className=f"banner {kind}", role="status")


def ratio_of(now: float | None, before: float | None) -> float | None:
    if now is None or before is None or before <= 0:
        return None
    return now / before - 1


def spoken_stages(stages: Mapping[str, float], most: int = 3) -> str:
    """Return the largest of *stages* as part of a sentence: `Queue 119 ms, Preprocess 58.2 ms`."""
    largest = sorted(stages.items(), key=lambda pair: -pair[1])[:most]
    return ", ".join(f"{label(stage)} {duration(seconds)}" for stage, seconds in largest)


def _current(chosen: bool) -> dict[str, Any]:
    return {"aria-current": "true"} if chosen else {}
