"""Frame of every page of a service: name, status, tabs, notes, and the state without data.

The notes report open and cancelled requests, agent overhead, data that agents dropped to stay within their budget, and invalid server timings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta

from dash import html
from dash.development.base_component import Component

from ...alerts.evaluation.evidence import REPLICA_STEPS
from ...core.histogram import Histogram
from ...core.names import AGENT_BACKGROUND, AGENT_COST, AGENT_LEVELS, FIRST_TOKEN, STATUS_CANCELLED, SUSPECT_REPORT
from ...core.stages import UNTIMED, label
from ...store import Selection
from ..ui.components import Node, attributes, link, pill
from ..ui.format import count, duration, percent, several, span
from ..view import service_path, slo_path
from .collectors import excluded_notes, stopped_note
from .measures import KINDS, generates_tokens, measure
from .page import NO_REQUEST_YET, Context, Page, clock_or_date, empty_page_card, no_request
from .scope_filter import blocking_filters, chips, leave_out_cold_link, no_matching_request, scope_menu, scope_text
from .service_status import status_of

_FULL_LEVEL, *_REDUCED_LEVELS = AGENT_LEVELS
_MISSING_AT = {
    "no_traces": "no traces of them are retained",
    "no_facts": "no traces of them are retained, and their tokens, batch sizes, attributes and failed calls are unknown",
    "requests_only": f"their stages are not recorded and show as {label(UNTIMED)}, and no traces of them are retained",
}
_MAX_MODELS = 4
_TITLES = {
    "": "Breakdown",
    "tokens": "Tokens",
    "capacity": "Capacity & cost",
    "replicas": "Replicas",
    "traces": "Traces",
    "advice": "Advice",
}


def service_page(context: Context, tab: str, build: Callable[[], Sequence[Node]]) -> Page:
    service, view = context.service or "", context.view
    title = f"{service} · {_TITLES[tab]} · Stagelens" if tab else f"{service} · Stagelens"
    trail: list[tuple[str, str | None]] = [("Services", view.link("/"))]
    trail += [(service, view.link(service_path(service))), (_TITLES[tab], None)] if tab else [(service, None)]
    path = service_path(service)
    if context.versions.empty:
        return Page(title, trail, [_unknown(context)], path)
    body: list[Node] = [
        _head(context, tab),
        service_tabs(context, tab),
        agent_note(context),
        _unserved_note(context),
        stopped_note(context),
        *excluded_notes(context),
    ]
    body += build() if measure(context.source, context.selection).requests else _without_data(context)
    return Page(title, trail, body, path)


def _unknown(context: Context) -> Component:
    service, view = context.service or "", context.view
    elsewhere = context.source.versions(service, None, view.start, view.end)
    if len(elsewhere):
        return empty_page_card(
            f"{service} was not seen in {view.text('env')}",
            "The service runs in another environment.",
            actions=[link("All environments", href=view.here(env=None), className="btn pri")],
        )
    return empty_page_card(
        f"No service called {service}",
        "No data of that name was received, or it is older than the retention.",
        actions=[link("All services", href=view.link("/"), className="btn pri")],
    )


def service_tabs(context: Context, tab: str) -> Component:
    service, view = context.service or "", context.view
    slo, part = context.slo, view.scope
    streams = context.source.cached(context.source.read.streams, context.selection, FIRST_TOKEN)
    items = {
        "": ("Breakdown", view.link(service_path(service), **part)),
        "compare": ("Compare", view.link("/compare", svc=service, **view.scope_of_all_versions)),
        "slo": ("SLO", view.link(slo_path(slo.slo.name))) if slo else None,
        "traces": ("Traces", view.link(service_path(service, "traces"), **part)),
        "tokens": ("Tokens", view.link(service_path(service, "tokens"), **part))
        if streams or tab == "tokens"
        else None,
        "capacity": ("Capacity & cost", view.link(service_path(service, "capacity"), **part)),
        "replicas": ("Replicas", view.link(service_path(service, "replicas"), **part))
        if tab == "replicas" or _has_replicas(context)
        else None,
        "advice": ("Advice", view.link(service_path(service, "advice"), **part)),
    }
    links = [_tab(*item, on=name == tab) for name, item in items.items() if item]
    return html.Nav(links, className="tabs", **attributes({"aria-label": "Of this service"}))


def _has_replicas(context: Context) -> bool:
    read = context.source.read
    reported = context.source.cached(read.loads, context.service or "", context.view.text("env"))
    return bool(len(reported)) or bool(
        context.source.cached(read.replica_counts, context.selection, REPLICA_STEPS).replicas
    )


def _tab(text: str, href: str, *, on: bool) -> Component:
    return (
        link(text, href=href, className="on", **attributes({"aria-current": "page"})) if on else link(text, href=href)
    )


def _head(context: Context, tab: str) -> Component:
    service = context.service or ""
    read, stands = context.source.read, status_of(context)
    newest = str(context.versions["version"].iloc[-1])
    about: list[Node] = [html.H1(service)]
    if stands.state:
        about.append(stands.link)
    every = context.source.cached(read.dimensions, replace(context.selection, model=None))
    shown = context.source.cached(read.dimensions, context.selection)
    if generates_tokens(measure(context.source, context.selection)):
        about.append(pill(KINDS["llm"], "out"))
    about += _models(context, list(every["model"]))
    about += [
        pill(text, "out") for text in (context.view.scope.get("v") or newest, _hardware(list(shown["device"]))) if text
    ]
    return html.Div(
        [
            html.Div([html.Div(about, className="headline"), _history(context, tab)]),
            html.Span(className="grow"),
            _actions(context),
        ],
        className="phead",
    )


def _history(context: Context, tab: str) -> Component | None:
    """Return a note if the data starts within the window, or stopped before its end; else None."""
    # The summary of the breakdown states a silence.
    silence = context.silence if tab else None
    silent = html.Span(f"no request for {span(silence)}", className="warn") if silence else None
    parts: list[Node] = [
        part for part in (context.young or None, " · " if silent and context.young else None, silent) if part
    ]
    return html.P(parts, className="sub") if parts else None


def _models(context: Context, names: list[str]) -> list[Node]:
    chosen = context.view.scope.get("m")
    if len(names) < 2 and not chosen:  # noqa: PLR2004 - one model needs no choice
        return [pill(name, "out") for name in names]
    shown = names[:_MAX_MODELS]
    links: list[Node] = [
        link(
            pill(model, "out on" if model == chosen else "out"),
            href=context.view.here(m=None if model == chosen else model),
            title="Show all models" if model == chosen else "Show the requests of this model",
        )
        for model in (shown if chosen is None or chosen in shown else [chosen, *shown[:-1]])
    ]
    return [*links, pill(f"+{len(names) - len(shown)}", "out")] if len(names) > len(shown) else links


def _hardware(devices: list[str]) -> str:
    return devices[0] if len(devices) == 1 else f"{len(devices)} devices" if devices else ""


def _actions(context: Context) -> Component | None:
    view = context.view
    actions: list[Node] = [scope_menu(context, "r"), leave_out_cold_link(context), *chips(context)]
    if len(context.versions) > 1:
        href = view.link("/compare", svc=context.service, **view.scope_of_all_versions)
        actions.append(link([html.I(className="ic ic-compare"), "Compare versions"], href=href, className="btn"))
    shown = [node for node in actions if node is not None]
    return html.Div(shown, className="pick") if shown else None


def _without_data(context: Context) -> list[Node]:
    keys, view = blocking_filters(context), context.view
    if keys:
        return [no_matching_request(context, keys)]
    first = context.versions["first_seen"].min().to_pydatetime().astimezone(view.zone)
    retained = f"Retained data starts on {first:%-d %b %H:%M}."
    services = context.source.all_services()
    if not services.loc[services["service"] == context.service, "requests"].any():
        return [empty_page_card(*NO_REQUEST_YET, retained)]
    last, part = context.versions["last_seen"].max(), scope_text(view)
    is_stopped = context.silence is not None and not part and not records_nothing(context)
    return [no_request(context, last, part, retained, is_stopped=is_stopped)]


def _unserved_note(context: Context) -> Component | None:
    source, selection = context.source, context.selection
    shown, notes = source.cached(source.read.open_requests, selection), list[str]()
    if len(shown):
        route = str(shown["route"].iloc[0])
        oldest = f"the oldest ({route})" if route else "the oldest"
        age, at = duration(float(shown["oldest_seconds"].iloc[0])), clock_or_date(shown.attrs["at"], context.view)
        notes.append(f"{several(int(shown['requests'].sum()), 'request')} open at {at}, {oldest} for {age}.")
    cancelled = source.cached(source.read.dimensions, selection)["status"].get(STATUS_CANCELLED, 0)
    if cancelled:
        of_all = percent(cancelled / measure(source, selection).requests, 2)
        notes.append(f"{several(cancelled, 'request')} ({of_all}) cancelled by clients: neither served nor failed.")
    return html.P(" ".join(notes), className="sub") if notes else None


def suspect_note(context: Context) -> Component | None:
    histograms = context.source.cached(context.source.read.streams, context.selection, SUSPECT_REPORT)
    calls = {dialect: histogram.count for dialect, histogram in histograms.items() if histogram.count}
    if not calls:
        return None
    by_dialect = ", ".join(
        f"{dialect} {several(calls[dialect], 'time')}" for dialect in sorted(calls, key=calls.__getitem__)[::-1]
    )
    return html.P(
        f"{several(sum(calls.values()), 'call')} with invalid server timings ({by_dialect}): "
        f"the whole call counts as {label('dependency')}. A proxy or a new version of the server may use another unit.",
        className="sub",
    )


def agent_cost(context: Context) -> Component | None:
    costs = _agent_streams(context, AGENT_COST)
    counted = [costs[level] for level in costs if level != AGENT_LEVELS[-1]]
    requests = sum(histogram.count for histogram in counted)
    if not requests:
        return None
    whole = context.source.cached(context.source.read.latency, _any_model(context))
    spent = sum(histogram.sum for histogram in counted) / requests
    share = f" ({percent(spent * whole.count / whole.sum, 2)} of its time)" if whole.sum else ""
    behind = sum(histogram.sum for histogram in _agent_streams(context, AGENT_BACKGROUND).values()) / requests
    text = f"Agent overhead per request: {duration(spent)}{share}, plus {duration(behind)} in background threads."
    return html.P(text, className="sub")


def agent_note(context: Context) -> Component | None:
    costs = _agent_streams(context, AGENT_COST)
    lines = [_level_line(context, level, costs) for level in _REDUCED_LEVELS if level in costs]
    if not lines:
        return None
    full = costs.get(_FULL_LEVEL)
    why = f" At full detail, the overhead of a request is {_overhead(context, _FULL_LEVEL, full)}." if full else ""
    head = html.Span([html.B("Agents reached their overhead budget:"), f" they record less detail.{why}"])
    return html.Div([head, *lines], className="quiet stack")


def _level_line(context: Context, level: str, costs: dict[str, Histogram]) -> Component:
    histogram = costs[level]
    if level == AGENT_LEVELS[-1]:
        return html.Span(
            f"{_level_period(context, level)}, at least one process recorded nothing: its requests are not included."
        )
    requests = sum(histogram.count for name, histogram in costs.items() if name != AGENT_LEVELS[-1])
    return html.Span(
        f"{_level_period(context, level)}: {count(histogram.count)} of {count(requests)} requests were recorded with less detail: {_MISSING_AT[level]}. "
        f"Their mean overhead is {_overhead(context, level, histogram)}."
    )


def _overhead(context: Context, level: str, cost: Histogram) -> str:
    """Return the overhead per request at *level* with that of the background threads, which the budget includes."""
    background = _agent_streams(context, AGENT_BACKGROUND).get(level)
    behind = _mean(background) if background else 0.0
    return f"{duration(_mean(cost) + behind)}, of which {duration(behind)} in background threads"


def _level_period(context: Context, level: str) -> str:
    view, step = context.view, context.axis.step
    series = context.source.cached(
        context.source.read.streams_over_time, _any_model(context), AGENT_COST, level, (), step
    )
    started, ended = series["at"].min().to_pydatetime(), series["at"].max().to_pydatetime() + step
    if ended + max(step, timedelta(seconds=30)) >= min(view.end, context.source.now()):
        return f"Since {clock_or_date(started, view)}"
    first, last = clock_or_date(started, view), clock_or_date(ended, view)
    return f"From {first} to {last}" if first != last else f"At {first}"


def records_nothing(context: Context) -> bool:
    return AGENT_LEVELS[-1] in _agent_streams(context, AGENT_COST)


def _agent_streams(context: Context, metric: str) -> dict[str, Histogram]:
    return context.source.cached(context.source.read.streams, _any_model(context), metric)


def _any_model(context: Context) -> Selection:
    return replace(context.selection, model=None)


def _mean(histogram: Histogram) -> float:
    return histogram.sum / histogram.count
