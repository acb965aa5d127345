"""Waste card: services ranked by idle cost, time in queues, failed calls and cold starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dash import html
from dash.development.base_component import Component

from ...analysis.costs import Waste, WasteKind, largest_waste, most_wasteful
from ...core.hardware import CPU_SHARE, GPU, GPU_MEMORY
from ..ui.components import Node, card, link, table
from ..ui.format import count, duration, money, percent, several
from ..view import View, address, service_path
from .hardware import mean_utilization
from .measures import ServiceRow
from .page import Context

_MOST = 8
# Quantity by which the rows are sorted.
_SORTED_BY: Mapping[WasteKind, str] = {
    "idle": "cost of idle machines",
    "queue": "time in queues",
    "calls": "time of failed calls",
    "loads": "time of cold starts",
}


@dataclass(frozen=True, slots=True)
class _Column:
    title: str
    sub: str
    tab: str
    cell: Callable[[Waste, str], str]


def _idle_text(waste: Waste, currency: str) -> str:
    share = "" if waste.busy is None else f"{percent(1 - waste.busy)} idle"
    return share if waste.idle_cost is None else f"{money(waste.idle_cost, currency)}, {share}"


def _loads_text(waste: Waste, currency: str) -> str:
    spent = duration(waste.load_seconds)
    return spent if waste.load_cost is None else f"{spent}, {money(waste.load_cost, currency)}"


def _calls_text(waste: Waste, _: str) -> str:
    return f"{duration(waste.failed_seconds)}, {count(waste.failed_calls)} call{'s' * (waste.failed_calls != 1)}"


_COLUMNS: Mapping[WasteKind, _Column] = {
    "idle": _Column(
        "Idle machines", "Cost of the time in which the GPUs, or else the CPUs, did not work", "capacity", _idle_text
    ),
    "queue": _Column(
        "Waiting in queues", "Time of all requests in queues", "", lambda waste, _: duration(waste.queue_seconds)
    ),
    "calls": _Column(
        "Failed calls", "Time of requests in outbound calls that failed, and the number of calls", "advice", _calls_text
    ),
    "loads": _Column(
        "Cold starts", "Time in which processes loaded models, or ran them for the first time", "replicas", _loads_text
    ),
}


def waste_of(context: Context, rows: Sequence[ServiceRow]) -> list[Waste]:
    view, source, costs = context.view, context.source, context.source.costs
    environment = view.text("env")
    spent = source.cached(source.read.fleet_waste, view.start, view.end, environment=environment)
    measures = (GPU.key, GPU_MEMORY.key, CPU_SHARE.key)
    hardware = source.cached(
        source.read.fleet_hardware, view.start, view.end, context.axis.step, measures, environment=environment
    )
    busy = {str(name): mean_utilization(frame) for name, frame in hardware.groupby(level="service")}
    values_of = {str(name): values for name, *values in spent.itertuples(name=None)}
    times = {row.service: values_of.get(row.service, [0.0] * len(spent.columns)) for row in rows}
    return [
        Waste(
            row.service,
            row.seconds,
            per_hour=costs.per_hour(row.service, environment) if costs else None,
            replicas=costs.replicas(row.service, environment) if costs else None,
            busy=busy.get(row.service),
            queue_seconds=times[row.service][0],
            failed_calls=int(times[row.service][1]),
            failed_seconds=times[row.service][2],
            load_seconds=times[row.service][3],
        )
        for row in rows
    ]


def waste_card(context: Context, rows: Sequence[ServiceRow]) -> Component | None:
    view, currency = context.view, context.source.costs.currency if context.source.costs else ""
    every = waste_of(context, rows)
    ranked: dict[WasteKind, list[Waste]] = {kind: wastes for kind in _COLUMNS if (wastes := most_wasteful(every, kind))}
    if not ranked:
        return None
    chosen = min(ranked, key=lambda kind: kind != view.text("rank"))
    shown = ranked[chosen][:_MOST]
    head: list[tuple[Node, str] | Component] = [("Service", ""), *(_head(view, kind, chosen) for kind in ranked)]
    lines = [
        html.Tr([_name(view, waste), *(_cell(view, waste, kind, chosen, currency) for kind in ranked)])
        for waste in shown
    ]
    largest = largest_waste(every)
    sentence = html.P(_sentence(*largest, currency, view), className="says") if largest else None
    left = len(ranked[chosen]) - len(shown)
    asked = {key: view.query[key] for key in ("at", "env", "from", "to") if key in view.query}
    api = link("all in the API", href=address("/api/v1/query/waste", asked), className="link")
    foot: list[Node] | None = [f"{several(left, 'service')} with less not shown: ", api] if left else None
    body: list[Node] = [
        html.Div(sentence, className="above") if sentence else None,
        table(head, lines, "Waste", css="fleet"),
    ]
    return card("Waste", body, sub=f"{view.window_phrase}, by {_SORTED_BY[chosen]}", foot=foot, flush=True)


def _head(view: View, kind: WasteKind, chosen: WasteKind) -> Component:
    column = _COLUMNS[kind]
    arrow = html.I(className="sort down") if kind == chosen else None
    inside = link([column.title, arrow], href=view.here(rank=kind), className="by", title=column.sub)
    return html.Th(inside, className="r" if kind == chosen else "r hide", scope="col")


def _name(view: View, waste: Waste) -> Component:
    return html.Td(
        link(waste.service, href=view.link(service_path(waste.service)), className="cut", title=waste.service)
    )


def _cell(view: View, waste: Waste, kind: WasteKind, chosen: WasteKind, currency: str) -> Component:
    column = _COLUMNS[kind]
    text = column.cell(waste, currency) if any(waste.amount(kind)) else ""
    inside = link(text, href=view.link(service_path(waste.service, column.tab))) if text else None
    return html.Td(inside, className="r b" if kind == chosen else "r hide")


def _sentence(kind: WasteKind, waste: Waste, currency: str, view: View) -> list[Node]:
    name = html.B(waste.service, className="b")
    when = view.window_phrase
    match kind:
        case "idle":
            cost = f"{money(waste.idle_cost, currency)} of {money(waste.cost, currency)}"
            return ["Idle machines of ", name, f" cost {cost} {when}: they worked {percent(waste.busy)} of the time."]
        case "queue":
            return ["Requests of ", name, f" waited {duration(waste.queue_seconds)} in queues in total, {when}."]
        case "calls":
            return [
                "Requests of ",
                name,
                f" spent {duration(waste.failed_seconds)} in {several(waste.failed_calls, 'call')} that failed {when}.",
            ]
        case "loads":
            paid = "" if waste.load_cost is None else f", which cost {money(waste.load_cost, currency)}"
            return ["Processes of ", name, f" loaded models for {duration(waste.load_seconds)} {when}{paid}."]
