"""How much more a service can take inside its objective, and what its requests cost."""

from __future__ import annotations

import pandas as pd
from dash import html
from dash.development.base_component import Component

from ..capacity import Curve
from ..components import Node, card, chart, empty, link, spark, tile, tiles
from ..figures.capacity import Side, load_figure
from ..format import MINUS, UNKNOWN, axis_duration, count, duration, percent, span
from .batches import batch_card, batch_tile, best_batch_tile
from .hardware import hardware_card
from .loads import Load, Loads, arrays, loads_of, why_none
from .page import Context, Page, panel
from .scope_filter import part_words
from .service_frame import service_page
from .spending import cost_card, cost_tile


def render(context: Context) -> Page:
    """Return the capacity and cost of one service."""
    return service_page(context, "capacity", lambda: _body(context))


def _body(context: Context) -> list[Node]:
    loads = loads_of(context)
    now = _serving(context)
    cards = [
        panel("Throughput against latency", lambda: _load_card(context, loads), "c8"),
        panel("Batch size", lambda: batch_card(context, "c4"), "c4"),
        panel("Hardware", lambda: hardware_card(context), "c12"),
        panel("Cost by stage", lambda: cost_card(context, "c12"), "c12"),
    ]
    return [_finding(loads, now), _shared(context), _tiles(context, loads, now), html.Div(cards, className="grid")]


def _serving(context: Context) -> list[float]:
    """Return the course of the rate [requests/s]; its last value is what is served now."""
    courses = context.source.ask(
        context.source.read.quantiles_over_time, context.selection, (0.5, 0.99), context.axis.step
    )
    rates = context.rates(courses)
    return [*rates, 0.0] if rates and context.silence else rates


def _finding(loads: Loads, rates: list[float]) -> Component:
    """Say in one or two sentences how much room there is, or why that is not known."""
    now, room = loads.now, loads.now.capacity
    if room is not None and loads.threshold_seconds is not None:
        inside = f"{now.version} stays inside {axis_duration(loads.threshold_seconds)} at {loads.name}"
        if room.rate <= 0:
            first = f"{now.version} is above {axis_duration(loads.threshold_seconds)} at {loads.name} at any load."
        else:
            first = f"{inside} up to about {count(room.rate)}/s ({count(room.low)} to {count(room.high)}/s at 95 %)."
        return _said(first, " ".join(_rest(now, rates)))
    if isinstance(now.curve, Curve):
        return _said(
            "How much fits inside an objective is not known: this service has none about latency.",
            f"The curve bends at {count(now.curve.knee)}/s: beyond it latency grows faster than throughput."
            if now.curve.knee_is_sure
            else "Where the curve bends is not known either: no step came near it.",
        )
    return _said("How much load fits cannot be told yet.", f"No curve: {why_none(now, loads.quantile)}")


def _shared(context: Context) -> Component | None:
    """Say that what is shown is not all that the replicas serve, where that is so."""
    part = part_words(context.view, ("m", "r"))
    if not part:
        return None
    return html.Div(f"Only {part}: what else the service serves keeps its replicas busy too.", className="quiet")


def _rest(load: Load, rates: list[float]) -> list[str]:
    room = load.capacity
    if room is None or not isinstance(load.curve, Curve):
        return []
    said = [_room_sentence(rates[-1], room.rate)] if rates else []
    if room.beyond:
        highest = count(load.curve.highest_rate)
        said.append(f"That is beyond anything seen: the highest rate so far is {highest}/s, so it is an extrapolation.")
    return [*said, f"The knee of the curve is at {count(load.curve.knee)}/s."] if load.curve.knee_is_sure else said


def _room_sentence(now: float, room: float) -> str:
    if room <= 0:
        return ""
    if now > room:
        return f"It serves {count(now)}/s now, {percent(now / room - 1)} more than fits."
    return f"It serves {count(now)}/s now: {percent(1 - now / room)} headroom."


def _said(first: str, rest: str) -> Component:
    return html.Div(
        html.Div([html.Div(first, className="big"), html.Div(rest, className="muted")], className="say"),
        className="verdict",
    )


def _tiles(context: Context, loads: Loads, rates: list[float]) -> Component:
    serving = (
        tile("Serving now", count(rates[-1]), "/s", _since(context), spark(rates))
        if rates
        else tile("Serving now", UNKNOWN)
    )
    return tiles(
        [
            serving,
            _capacity_tile(loads),
            _headroom_tile(loads, rates[-1] if rates else None),
            batch_tile(context),
            cost_tile(context),
            best_batch_tile(context, loads),
        ]
    )


def _since(context: Context) -> str:
    return f"no request for {span(context.silence)}" if context.silence else f"over {span(context.axis.step)}"


def _capacity_tile(loads: Loads) -> Component:
    name, room = "Capacity inside SLO", loads.now.capacity
    if room is None:
        return tile(name, UNKNOWN, "", "needs an objective" if loads.threshold_seconds is None else "no curve yet")
    before = loads.before.capacity if loads.before else None
    below: Node = f"{count(room.low)} to {count(room.high)} /s at 95 %"
    if before is not None and loads.before is not None:
        worse = before.rate > room.rate
        below = html.Span(
            f"was {count(before.rate)} /s on {loads.before.version}", className="bad" if worse else "good"
        )
    if room.beyond:
        below = html.Span("beyond anything seen", className="warn")
    return tile(name, count(room.rate), "/s", below)


def _headroom_tile(loads: Loads, now: float | None) -> Component:
    room, name = loads.now.capacity, "Headroom"
    if room is None or not now:
        return tile(name, UNKNOWN, "", "needs the capacity")
    if room.rate <= 0:
        return tile(name, "0", "%", html.Span("over the SLO at any load", className="bad"))
    left = 1 - now / room.rate
    before = loads.before.capacity if loads.before else None
    below: Node = html.Span("more than fits", className="bad") if left < 0 else f"at {count(now)} /s"
    if before is not None and before.rate > 0:
        change = left - (1 - now / before.rate)
        mark, kind = ("▲", "down") if change > 0 else ("▼", "up")
        text = f"{mark} {abs(change) * 100:.0f} pt since {loads.now.version}"
        below = html.Span(text, className=f"delta {kind}")
    return tile(name, f"{left * 100:.0f}".replace("-", MINUS), "%", below)


def _load_card(context: Context, loads: Loads) -> Component:
    title, now = "Throughput against latency", loads.now
    sub = f"{loads.name} of each {span(now.step)}; line = fitted queueing curve"
    if not len(now.steps):
        longer = [link("Last 24 h", href=context.view.here(from_="now-24h", to=None), className="btn")]
        return card(
            title, empty("No step of time tells of it", why_none(now, loads.quantile), actions=longer), size="c8"
        )
    sides = [_side(each) for each in (now, loads.before) if each is not None]
    figure = load_figure(sides[0], sides[1] if len(sides) > 1 else None, loads.threshold_seconds, loads.name)
    curve = now.curve
    foot: list[Node] = []
    if isinstance(curve, Curve):
        foot = [
            html.Span(["without waiting ", html.B(duration(curve.base))]),
            html.Span(["full at ", html.B(f"{count(curve.saturation)}/s")]),
            html.Span(["steps lie ", html.B(percent(curve.residual)), " from the curve"]),
            html.Span("dotted where no load was seen yet", className="muted"),
        ]
    return card(
        title,
        chart("load", figure, _spoken(loads), 366, frame=_frame(loads)),
        sub=sub if isinstance(curve, Curve) else f"{loads.name} of each {span(now.step)}",
        tools=_versions(loads),
        foot=html.Span(foot, className="facts") if foot else None,
        size="c8",
    )


def _side(load: Load) -> Side:
    curve = load.curve if isinstance(load.curve, Curve) else None
    return Side(load.version, *arrays(load), curve, load.capacity)


def _versions(loads: Loads) -> Component:
    """Return which dots are whose."""
    shown = [(loads.now, "vkey")] + ([(loads.before, "vkey old")] if loads.before else [])
    return html.Span([html.Span([html.I(className=css), each.version]) for each, css in shown], className="legend")


def _spoken(loads: Loads) -> str:
    rate, latency = arrays(loads.now)
    seen = f"{len(rate)} steps of {loads.now.version} between {count(float(rate.min()))} and {count(float(rate.max()))} requests a second"
    room = loads.now.capacity
    fits = f", and {count(room.rate)} a second fit inside the objective" if room else ""
    return f"{seen}, {loads.name} from {duration(float(latency.min()))} to {duration(float(latency.max()))}{fits}."


def _frame(loads: Loads) -> pd.DataFrame:
    """Return what is drawn, for tables."""
    parts = [each.steps.assign(version=each.version) for each in (loads.before, loads.now) if each is not None]
    whole = pd.concat(parts, ignore_index=True)[["version", "at", "n", "rate", "latency"]]
    return whole.rename(
        columns={"at": "time (UTC)", "n": "requests", "rate": "rate (requests/s)", "latency": f"{loads.name} (seconds)"}
    )
