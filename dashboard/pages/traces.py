"""Traces page: retained requests (slowest, errors, random sample) with the filters of the address.

Each filter offers the values that occur among the retained requests that match the others, with their number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta

import pandas as pd
from dash import html
from dash.development.base_component import Component

from ...core.attributes import BY_KEY, CALLER, REPLICA, attribute, value_label
from ...core.errors import ConfigError
from ...core.names import STATUSES
from ...core.settings.values import parse_duration
from ...core.stages import label
from ...store import Selection
from ...store.queries.trace_search import MAX_SEARCHED, FoundTraces, TraceFilter
from ..figures.heatmap import heat_figure
from ..ui.components import Node, card, chart, empty, link, link_tabs, swatch
from ..ui.format import axis_duration, count, percentile, span, whole
from ..view import SCOPE, View, attributes_text
from .page import Context, Page, panel, records, traces_table
from .scope_filter import (
    Option,
    blocking_filters,
    chips,
    field,
    filter_chip,
    leave_out_cold_link,
    menu,
    no_matching_request,
    option_link,
)
from .service_frame import service_page

_QUANTILES = (0.5, 0.9, 0.99, 0.999)
# Maximum number of values in a menu, of values of an attribute in the menu of all attributes, and of suggestions of the text field.
_MOST, _MOST_OF_EACH, _MOST_SUGGESTED = 40, 5, 300
TRACES_PER_PAGE = 50
# No more requests are searched.
_MAX_PAGE = MAX_SEARCHED // TRACES_PER_PAGE
_MAX_COLUMNS = 2
_RANK_QUANTILES = (0.5, 0.99)
# Query keys that filter requests.
_FILTERS = ("svc", *SCOPE, "dom", "err", "min", "max", "at")
_STATUSES = {"": "All", "0": "OK", "1": "Errors", "2": "Cancelled"}
_BY_CODE: dict[str, str] = dict(zip(("0", "1", "2"), STATUSES, strict=True))
_BECAUSE = {
    "forced": "forced by header",
    "error": "failed",
    "slow": "slowest",
    "cold": "cold starts",
    "uniform": "random sample",
}


def render(context: Context) -> Page:
    view, service = context.view, context.service
    if view.parts and view.parts[0] == "s":
        return service_page(context, "traces", lambda: _body(context))
    trail: list[tuple[str, str | None]] = [("Traces", view.link("/traces") if service else None)]
    if service:
        trail.append((service, None))
    head = html.Div(html.H1("Traces"), className="phead")
    return Page("Traces · Stagelens", trail, [head, *_body(context)], "/traces")


def _body(context: Context) -> list[Node]:
    traces = find_traces(context)
    return [
        filters(context, traces),
        panel("Retained among all requests", lambda: _heatmap_card(context, traces.page)),
        panel("Requests", lambda: _list(context, traces)),
    ]


def find_traces(context: Context) -> FoundTraces:
    view = context.view
    low, high = duration_range(view)
    found_by = TraceFilter(view.text("dom"), (low or 0.0, math.inf if high is None else high), view.attributes)

    def page(number: int) -> FoundTraces:
        source = context.source
        return source.cached(
            source.read.search_traces,
            _selection(context),
            found_by,
            order="time" if view.choice("t", "slow", "new") == "new" else "slow",
            limit=TRACES_PER_PAGE,
            offset=(number - 1) * TRACES_PER_PAGE,
        )

    asked = view.page_of(_MAX_PAGE)
    traces = page(asked)
    pages = max(-(-traces.matching // TRACES_PER_PAGE), 1)
    return traces if asked <= pages else page(pages)


def _selection(context: Context) -> Selection:
    view = context.view
    status = _BY_CODE.get(view.text("err") or "")
    return replace(context.selection, status=status, **{SCOPE[key]: value for key, value in view.scope.items()})


def duration_range(view: View) -> tuple[float | None, float | None]:
    """Return the range of the duration in the address, [low, high); None for no limit [seconds]."""
    low, high = (latency_of(view.text(key)) for key in ("min", "max"))
    return low, high


def latency_of(text: str | None) -> float | None:
    if not text:
        return None
    try:
        length = parse_duration(f"{text}ms" if text.replace(".", "", 1).isdigit() else text, "min")
    except (ConfigError, ValueError, OverflowError):
        return None
    return max(length, timedelta()).total_seconds() or None


def _heatmap_card(context: Context, frame: pd.DataFrame) -> Component:
    source, selection, step = context.source, _selection(context), context.axis.step
    cells = source.cached(source.read.heat, selection, step)
    title = "Retained among all requests"
    if not len(cells):
        keys = blocking_filters(context)
        return no_matching_request(context, keys) if keys else card(title, empty("No request in this window"))
    marked = [{**record, "at": pd.Timestamp(record["at"]).to_pydatetime(warn=False)} for record in records(frame)]
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


def _list(context: Context, traces: FoundTraces) -> Component:
    view, frame = context.view, traces.page
    if not len(frame):
        return card("Requests", _no_traces(view), foot=_searched_words(view, traces))
    columns = _columns(context, traces)
    rows = traces_table(frame, view, "Retained requests", with_service=context.service is None, columns=columns)
    foot = " ".join(sentence for sentence in (_searched_words(view, traces), _sampling_words(frame)) if sentence)
    number = f"{whole(traces.matching)} retained request{'s' * (traces.matching != 1)}"
    return card("Requests", rows, sub=number, tools=_order(view), foot=[_pages(view, traces), foot], flush=True)


def _columns(context: Context, traces: FoundTraces) -> dict[str, list[str]]:
    view = context.view
    values = [dict(attributes) for attributes in traces.page["attributes"]]
    asked = dict.fromkeys(key for key, _ in view.attributes if key != REPLICA.key)
    columns = {"Route": [str(route) for route in traces.page["route"]]}
    for key in (REPLICA.key, *list(asked)[:_MAX_COLUMNS]):
        columns[_title(key)] = [value_label(key, attributes[key]) if key in attributes else "" for attributes in values]
    return {title: texts for title, texts in columns.items() if any(texts)}


def _pages(view: View, traces: FoundTraces) -> Node:
    pages = -(-traces.matching // TRACES_PER_PAGE)
    if pages < 2:  # noqa: PLR2004 - a single page has no neighbours
        return None
    page = view.page_of(pages)
    first = (page - 1) * TRACES_PER_PAGE
    links: list[Node] = [
        link("← Previous", href=view.here(n=str(page - 1) if page > 2 else None), className="btn")  # noqa: PLR2004 - the address omits 1
        if page > 1
        else None,
        html.Span(
            f"{whole(first + 1)} to {whole(first + len(traces.page))} of {whole(traces.matching)}", className="num"
        ),
        link("Next →", href=view.here(n=str(page + 1)), className="btn") if page < pages else None,
    ]
    return html.Nav([node for node in links if node is not None], className="pick", title="Pages")


def _searched_words(view: View, traces: FoundTraces) -> str:
    if traces.searched >= traces.retained:
        return ""
    first = "newest" if view.choice("t", "slow", "new") == "new" else "slowest"
    return f"Only the {first} {whole(traces.searched)} of {whole(traces.retained)} retained requests were searched; choose a shorter time or more filters for the others."


def _no_traces(view: View) -> Component:
    if not any(view.text(key) for key in _FILTERS):
        return empty("No retained request", "Slow, failed and randomly sampled requests appear here.")
    where = f"{view.window_phrase[0].upper()}{view.window_phrase[1:]}, with these filters."
    reset = link("Without filters", href=view.link(view.path), className="btn pri")
    return empty("No retained request matches", where, actions=[reset])


def _sampling_words(frame: pd.DataFrame) -> str:
    facts = {str(key): value for key, value in frame.attrs.items()}
    held = ", ".join(f"{count(n)} {_BECAUSE.get(why, why)}" for why, n in facts.get("kept", {}).items())
    retention = span(timedelta(seconds=float(facts.get("retention_seconds", 0))))
    return f"Metrics include every request. Retained: {facts.get('rule', '')}. Here: {held}. Retained for {retention}."


def _order(view: View) -> Component:
    options = {"slow": ("Slowest", view.here(t=None)), "new": ("Newest", view.here(t="new"))}
    return link_tabs("Order", options, view.choice("t", "slow", "new"))


def filters(context: Context, traces: FoundTraces) -> Component:
    view = context.view
    # Pages of a service have these filters in their header.
    on_service = view.parts[0] == "s"
    parts = () if on_service else ("m", "r")
    menus: list[Node] = [
        None if on_service else _services(context),
        *(_dimension(view, key, SCOPE[key], traces) for key in ("v", *parts)),
        _dimension(view, "dom", "dominant", traces),
        _latency_filter(context),
        _attribute_menu(view, REPLICA.key, traces),
        _attribute_menu(view, CALLER.key, traces),
        _all_attributes(view, traces),
        _status(view, traces),
        None if on_service else leave_out_cold_link(context),
    ]
    active: list[Node] = [
        *([] if on_service else chips(context)),
        _stage_chip(view),
        *_latency_chips(view),
        *(_attribute_chip(view, pair) for pair in view.attributes),
    ]
    rows = [[node for node in row if node is not None] for row in (menus, active)]
    return html.Div([html.Div(row, className="filters") for row in rows if row], className="rows")


def _services(context: Context) -> Component:
    view = context.view
    names = [str(service) for service in context.source.services(view.start, view.end)["service"]][:_MOST]
    whole_view = view.of_whole_services()
    options: dict[str, Option] = {"": ("All services", whole_view.here(svc=None))}
    options |= {name: (name, whole_view.here(svc=name)) for name in names}
    return menu([context.service or "All services"], options, context.service or "")


def _dimension(view: View, key: str, name: str, traces: FoundTraces) -> Component | None:
    chosen, values = view.text(key) or "", traces.dimensions[name]
    word = "stage" if key == "dom" else name
    texts = {value: label(value) if key == "dom" else value for value in values}
    options: dict[str, Option] = {"": (f"Any {word}", view.here(**{key: None}))}
    options |= {value: (texts[value], view.here(**{key: value}), count(n)) for value, n in list(values.items())[:_MOST]}
    return _facet(word, options, chosen, is_choice=_is_choice(values, traces))


def _is_choice(values: Mapping[str, int], traces: FoundTraces) -> bool:
    return any(number < traces.matching for number in values.values()) or len(values) > 1


def _facet(word: str, options: Mapping[str, Option], chosen: str, *, is_choice: bool) -> Component | None:
    if not is_choice:
        return None
    # The selected value is shown in its chip.
    shown = f"{'Another' if chosen else 'Any'} {word}"
    return menu([shown], options, chosen, title=f"{word.capitalize()}: {chosen or 'any'}", css="menu side-menu")


def _status(view: View, traces: FoundTraces) -> Component:
    counts = {code: traces.dimensions["status"].get(status) for code, status in _BY_CODE.items()}
    # Few services have requests that their clients cancelled.
    shown = [status for status in _STATUSES if status != "2" or counts["2"] or view.text("err") == "2"]
    options = {
        status: (
            f"{_STATUSES[status]} {count(number)}" if (number := counts.get(status)) else _STATUSES[status],
            view.here(err=status or None),
        )
        for status in shown
    }
    return link_tabs("Status", options, view.choice("err", *_STATUSES))


def _stage_chip(view: View) -> Component | None:
    chosen = view.text("dom")
    if chosen is None:
        return None
    return filter_chip(
        "Mostly", html.Span([swatch(chosen), label(chosen)]), view.here(dom=None), f"Mostly {label(chosen)}: show all"
    )


def _latency_filter(context: Context) -> Component:
    view, source, chosen = context.view, context.source, context.view.text("min") or ""
    latency = source.cached(source.read.latency, context.selection)
    latencies = {percentile(quantile): latency.quantile(quantile) for quantile in _QUANTILES}
    bounds = {f"slower than {name}": estimate.value for name, estimate in latencies.items() if estimate}
    if context.threshold_seconds is not None:
        bounds["slower than the objective"] = context.threshold_seconds
    options: dict[str, Option] = {"": ("Any latency", view.here(min=None, max=None))}
    for text, seconds in bounds.items():
        value = f"{seconds * 1000:.4g}ms"
        options[value] = (f"{text}, {axis_duration(float(f'{seconds:.3g}'))}", view.here(min=value))
    limited = any(duration_range(view))
    ends = html.Div(
        [
            field("min", chosen, "250ms", name="At least"),
            field("max", view.text("max") or "", "1.5s", name="Less than"),
        ],
        className="ends",
    )
    return menu([f"{'Another' if limited else 'Any'} latency"], options, chosen if limited else "", ends)


def _latency_chips(view: View) -> list[Node]:
    low, high = duration_range(view)
    lowest, highest = (None if end is None else axis_duration(float(f"{end:.4g}")) for end in (low, high))
    if lowest and highest:
        return [
            filter_chip(
                "Latency from", lowest, view.here(min=None), f"Latency from {lowest}: show faster requests too"
            ),
            filter_chip("to", highest, view.here(max=None), f"Latency to {highest}: show slower requests too"),
        ]
    if lowest:
        return [filter_chip("Latency over", lowest, view.here(min=None), f"Latency over {lowest}: show all")]
    return (
        [filter_chip("Latency under", highest, view.here(max=None), f"Latency under {highest}: show all")]
        if highest
        else []
    )


def _attribute_menu(view: View, key: str, traces: FoundTraces) -> Component | None:
    values = traces.attributes.get(key, {})
    chosen = next((value for name, value in view.attributes if name == key), "")
    name = attribute(key).label
    others = [pair for pair in view.attributes if pair[0] != key]
    options: dict[str, Option] = {"": (f"Any {name}", view.here(at=attributes_text(others)))}
    options |= {value: _value_option(view, key, value, n) for value, n in list(values.items())[:_MOST]}
    return _facet(name, options, chosen, is_choice=_is_choice(values, traces))


def _value_option(view: View, key: str, value: str, number: int) -> tuple[str, str, str]:
    others = [pair for pair in view.attributes if pair[0] != key]
    return value_label(key, value), view.here(at=attributes_text([*others, (key, value)])), count(number)


def _all_attributes(view: View, traces: FoundTraces) -> Component:
    counted = {key: traces.attributes[key] for key in sorted(traces.attributes, key=_named_first)}
    before = attributes_text(view.attributes)
    lines: list[Node] = [
        field("at", "", "tenant:acme", name="Attribute", before=before, suggested=_suggestions(counted))
    ]
    for key, values in counted.items():
        if key in (REPLICA.key, CALLER.key) or not _is_choice(values, traces):
            continue
        lines.append(html.Div(attribute(key).label, className="zone"))
        lines += [option_link(*_value_option(view, key, value, n)) for value, n in list(values.items())[:_MOST_OF_EACH]]
        if len(values) > _MOST_OF_EACH:
            lines.append(
                html.Div(f"and {whole(len(values) - _MOST_OF_EACH)} more: type to find them", className="more")
            )
    return menu(
        [f"{'Another' if view.attributes else 'Any'} attribute"],
        {},
        "",
        html.Div(lines, className="facets"),
        css="menu side-menu",
    )


def _named_first(key: str) -> tuple[int, str]:
    return (1 if key in BY_KEY else 2 if "." in key else 0), key


def _suggestions(counted: Mapping[str, Mapping[str, int]]) -> dict[str, str]:
    suggestions = {
        attributes_text([(key, "")]): f"any, {count(sum(values.values()))}" for key, values in counted.items()
    }
    for key, values in counted.items():
        suggestions |= {
            attributes_text([(key, value)]): f"{value_label(key, value)}, {count(n)}"
            for value, n in list(values.items())[:_MOST]
        }
    return dict(list(suggestions.items())[:_MOST_SUGGESTED])


def _attribute_chip(view: View, pair: tuple[str, str]) -> Component:
    key, value = pair
    shown = value_label(key, value) if value else "any"
    rest = attributes_text([attribute for attribute in view.attributes if attribute != pair])
    return filter_chip(_title(key), shown, view.here(at=rest), f"{_title(key)} {shown}: remove this filter")


def _title(key: str) -> str:
    return attribute(key).label.capitalize() if key in BY_KEY else key
