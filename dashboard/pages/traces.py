"""Traces page: retained requests (slowest, errors, uniform share) with the filters of the address."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import timedelta

import pandas as pd
from dash import html
from dash.development.base_component import Component

from ...core.errors import ConfigError
from ...core.settings.values import parse_duration
from ...core.stages import label, position
from ...store import Selection
from ..figures.heatmap import heat_figure
from ..ui.components import Node, card, chart, empty, link, link_tabs, swatch
from ..ui.format import axis_duration, count, duration, percentile, span
from ..view import SCOPE, View
from .page import Context, Page, panel, records, traces_table
from .scope_filter import blocking_filters, chips, field, leave_out_cold_link, menu, no_matching_request, scope_menu
from .service_frame import service_page

_QUANTILES = (0.5, 0.9, 0.99, 0.999)
_MOST = 40
_LIMIT = 50
_RANK_QUANTILES = (0.5, 0.99)
# Query keys that filter requests.
_FILTERS = ("svc", *SCOPE, "dom", "err", "min", "max", "at")
_BECAUSE = {
    "forced": "requested",
    "error": "failed",
    "slow": "slowest",
    "cold": "cold starts",
    "uniform": "uniform share",
}


def render(context: Context) -> Page:
    """Return the list of retained requests of all services, or as a tab of one service."""
    view, service = context.view, context.service
    if view.parts and view.parts[0] == "s":
        return service_page(context, "traces", lambda: _body(context))
    trail: list[tuple[str, str | None]] = [("Traces", view.link("/traces") if service else None)]
    if service:
        trail.append((service, None))
    head = html.Div([html.Div(html.H1("Traces")), html.Span(className="grow"), _order(context)], className="phead")
    return Page("Traces · Stagelens", trail, [head, *_body(context)], "/traces")


def _body(context: Context) -> list[Node]:
    frame = retained_traces(context)
    body: list[Node] = [filters(context), panel("Retained among all requests", lambda: _heatmap_card(context, frame))]
    return [*body, panel("Requests", lambda: _list(context, frame))]


def retained_traces(context: Context) -> pd.DataFrame:
    """Return the retained requests that match the filters of the address."""
    view, source = context.view, context.source
    order = "time" if view.choice("t", "slow", "new") == "new" else "slow"
    low, high = (_seconds(view.text(key)) for key in ("min", "max"))
    between = (low or 0.0, math.inf if high is None else high)
    key, colon, value = (view.text("at") or "").partition(":")
    return source.cached(
        source.read.exemplars,
        _selection(context),
        limit=_LIMIT,
        dominant=view.text("dom"),
        order=order,
        between_seconds=between if low or high else None,
        attribute=(key, value) if colon else None,
    )


def _selection(context: Context) -> Selection:
    return replace(context.selection, status="error" if context.view.text("err") == "1" else None)


def _seconds(text: str | None) -> float | None:
    """Parse `250ms`, `1.5s`, or a number of milliseconds; None for anything else."""
    if not text:
        return None
    try:
        length = parse_duration(f"{text}ms" if text.replace(".", "", 1).isdigit() else text, "min")
    except (ConfigError, ValueError, OverflowError):
        return None
    return max(length, timedelta()).total_seconds() or None


def _heatmap_card(context: Context, frame: pd.DataFrame) -> Component:
    """Return the latency heatmap of all requests, with the filtered retained requests marked."""
    source, selection, step = context.source, _selection(context), context.axis.step
    cells = source.cached(source.read.heat, selection, step)
    title = "Retained among all requests"
    if not len(cells):
        keys = blocking_filters(context)
        return no_matching_request(context, keys) if keys else card(title, empty("No request in this window"))
    marked = [{**each, "at": pd.Timestamp(each["at"]).to_pydatetime(warn=False)} for each in records(frame)]
    figure = heat_figure(
        cells,
        source.cached(source.read.quantiles_over_time, selection, _RANK_QUANTILES, step),
        context.axis_of(cells),
        exemplars=marked,
        versions=context.releases if context.service else None,
        threshold_seconds=context.threshold_seconds,
    )
    total = int(cells["n"].sum())
    requests = f"{count(total)} request{'s' * (total != 1)}"
    spoken = f"{requests} by time and latency, {len(frame)} retained ones marked; the table below lists them."
    sub = f"{requests}, tinted by the largest stage; ◇ retained, click to open"
    return card(title, chart("kept", figure, spoken, 240, frame=cells), sub=sub)


def _list(context: Context, frame: pd.DataFrame) -> Component:
    if not len(frame):
        return card(None, _no_traces(context.view))
    slowest = duration(float(frame["duration_seconds"].max()))
    rows = traces_table(frame, context.view, "Retained requests", with_service=context.service is None)
    return card(
        "Requests", rows, sub=f"{len(frame)} shown, the slowest is {slowest}", foot=_sampling_words(frame), flush=True
    )


def _no_traces(view: View) -> Component:
    if not any(view.text(key) for key in _FILTERS):
        return empty("No retained request", "Slow, failed and randomly sampled requests appear here.")
    where = f"{view.window_phrase[0].upper()}{view.window_phrase[1:]}, with these filters."
    reset = link("Without filters", href=view.link(view.path), className="btn pri")
    return empty("No retained request matches", where, actions=[reset])


def _sampling_words(frame: pd.DataFrame) -> str:
    """Return the sampling method, the number of requests and the retention time, as text."""
    facts = {str(key): value for key, value in frame.attrs.items()}
    held = ", ".join(f"{count(n)} {_BECAUSE.get(why, why)}" for why, n in facts.get("kept", {}).items())
    kept_for = span(timedelta(seconds=float(facts.get("retention_seconds", 0))))
    return f"Every request is counted. Retained: {facts.get('rule', '')}. Here: {held}. Retained for {kept_for}."


def _order(context: Context) -> Component:
    view = context.view
    options = {"slow": ("Slowest", view.here(t=None)), "new": ("Newest", view.here(t="new"))}
    return link_tabs("Order", options, view.choice("t", "slow", "new"))


def filters(context: Context) -> Component:
    """Return the filters, with the values that occur in the window."""
    view = context.view
    errors = {"": ("All", view.here(err=None)), "1": ("Errors", view.here(err="1"))}
    on_service = view.parts[0] == "s"
    items: list[Node] = [
        None if on_service else _services(context),
        _versions(context),
        # Pages of a service have these filters in their header.
        *([] if on_service or not context.service else _parts(context)),
        _stages(context),
        _latency_filter(context),
        _attribute(context),
        link_tabs("Status", errors, "1" if view.text("err") == "1" else ""),
    ]
    return html.Div([item for item in items if item is not None], className="filters")


def _services(context: Context) -> Component:
    view = context.view
    names = [str(each) for each in context.source.services(view.start, view.end)["service"]][:_MOST]
    whole = view.of_whole_services()
    options = {"": ("All services", whole.here(svc=None))} | {name: (name, whole.here(svc=name)) for name in names}
    return menu([context.service or "All services"], options, context.service or "")


def _parts(context: Context) -> list[Node]:
    menus = (scope_menu(context, key) for key in ("m", "r"))
    return [*menus, leave_out_cold_link(context), *chips(context, ("m", "r", "cold"))]


def _versions(context: Context) -> Component | None:
    if not context.service or len(context.versions) < 2:  # noqa: PLR2004 - a single version is no choice
        return None
    view, chosen = context.view, context.view.scope.get("v", "")
    names = [str(each) for each in reversed(list(context.versions["version"]))][:_MOST]
    options = {"": ("Any version", view.here(v=None))} | {each: (each, view.here(v=each)) for each in names}
    return menu([chosen or "Any version"], options, chosen)


def _stages(context: Context) -> Component:
    view, source, chosen = context.view, context.source, context.view.text("dom") or ""
    found = sorted(source.cached(source.read.stage_latency, replace(context.selection, status=None)), key=position)
    options = {"": ("Any stage", view.here(dom=None))} | {each: (label(each), view.here(dom=each)) for each in found}
    shown: list[Node] = [swatch(chosen), f"Mostly {label(chosen)}"] if chosen else ["Mostly any stage"]
    return menu(shown, options, chosen)


def _latency_filter(context: Context) -> Component:
    """Return the latency filter: percentiles of the window, the objective, and a text field."""
    view, source, chosen = context.view, context.source, context.view.text("min") or ""
    latency = source.cached(source.read.latency, context.selection)
    latencies = {percentile(each): latency.quantile(each) for each in _QUANTILES}
    bounds = {f"slower than {name}": found.value for name, found in latencies.items() if found}
    if context.threshold_seconds is not None:
        bounds["slower than the objective"] = context.threshold_seconds
    options = {"": ("Any latency", view.here(min=None))}
    for text, seconds in bounds.items():
        value = f"{seconds * 1000:.4g}ms"
        options[value] = (f"{text}, {axis_duration(float(f'{seconds:.3g}'))}", view.here(min=value))
    shown = f"Over {chosen}" if chosen else "Any latency"
    return menu([shown], options, chosen, field("min", chosen, "250ms, 1.5s"))


def _attribute(context: Context) -> Component:
    chosen = context.view.text("at") or ""
    options = {"": ("Any attribute", context.view.here(at=None))}
    return menu([chosen or "Any attribute"], options, chosen, field("at", chosen, "key:value"))
