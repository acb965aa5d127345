"""Cards with the attributes that slow requests share, of the service page and of the comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from dash import html
from dash.development.base_component import Component

from ...analysis.attributes import WHEN, SharedCause, SharedCauses, SlowRequests, find_causes, highest_percentile
from ...core.attributes import attribute
from ...core.names import AGENT_COST, AGENT_LEVELS
from ...store import Selection
from ..ui.components import Node, card, link, link_tabs, table
from ..ui.format import count, duration, percent, percentile, times
from ..view import SCOPE, View, service_path
from .page import Context

_TITLE = "What slow requests share"
_PERCENTILES = (0.95, 0.99, 0.999)
_DEFAULT = "99"
_MAX_CAUSES = 8
# Share of the requests from which on the card is about all of them.
_ALL = 0.95
# The agent has to save the time of counting attributes.
_LEVELS_WITHOUT_ATTRIBUTES = ("no_facts", "requests_only")
# Times of a selection are below it, so that each is a `datetime`. [Unix seconds]
_LAST_TIME = datetime.max.replace(tzinfo=UTC).timestamp()
# Prefix of the attributes of a request on the root span of a retained trace.
_OF_TRACES = "inference.attribute."


def shared_card(context: Context, *, is_stated: bool = False) -> Component | None:
    """Return what the slow or selected requests of the page share; None if no attribute was counted.

    Slow are the requests from the selected percentile on. The reader selects requests in the heat map.
    """
    view = context.view
    selected = selected_requests(view)
    causes = causes_of(context, context.selection, selected or (view.percentile if view.text("p") else 0.99))
    if is_stated and not selected and not view.text("p"):
        causes = replace(causes, sentence="")
    return _card(context, causes, _TITLE, context.selection, selected is not None, tools=_choices(view, causes))


def slow_of_side_card(context: Context, side: Selection, quantile: float, name: str) -> Component | None:
    causes = causes_of(context, side, quantile)
    title = f"What slow requests of {name} share"
    return _card(context, causes, title, side)


def causes_of(context: Context, selection: Selection, slow: SlowRequests | float) -> SharedCauses:
    return find_causes(context.source.cached(context.source.read.attributes, selection), slow)


def _card(
    context: Context,
    causes: SharedCauses,
    title: str,
    about: Selection,
    is_selection: bool = False,
    *,
    tools: Component | None = None,
) -> Component | None:
    uncounted = _uncounted(context, about)
    if not causes.sentence and not causes.causes and not uncounted:
        return None
    shown = causes.causes[:_MAX_CAUSES]
    body: list[Node] = [html.P(causes.sentence, className="lead")] if causes.sentence else []
    if shown:
        body.append(
            _causes_table(context, shown, percentile(causes.percentile), "Selected" if is_selection else "Slow")
        )
    same = f"No difference in {', '.join(causes.compared)}." if shown and causes.compared else ""
    foot = " ".join(filter(None, (same, uncounted))) or None
    share = percent(causes.slow / (causes.requests or 1), 1)
    sub = f"{'selected' if is_selection else f'the slowest {share}'}: {count(causes.slow)} of {count(causes.requests)}"
    sub += "" if is_selection else f", from {duration(causes.threshold)}{causes.reason and f' · {causes.reason}'}"
    # In a long window the query reads a part of each step.
    counted = context.source.cached(context.source.read.latency, about).count
    sub += f", from a sample of {count(counted)} requests" if causes.requests < _ALL * counted else ""
    return card(title, body, sub=sub, tools=tools, foot=foot, flush=bool(shown))


def _uncounted(context: Context, about: Selection) -> str:
    # The model of a request without stages is seldom known.
    costs = context.source.cached(context.source.read.streams, replace(about, model=None), AGENT_COST)
    uncounted = sum(histogram.count for level, histogram in costs.items() if level in _LEVELS_WITHOUT_ATTRIBUTES)
    if not uncounted:
        return ""
    # At the last level, nothing is recorded: its values are no requests.
    requests = sum(histogram.count for level, histogram in costs.items() if level != AGENT_LEVELS[-1])
    return (
        f"For {count(uncounted)} of {count(requests)} requests, sizes, tokens, concurrency, caller and your attributes are "
        "unknown: their agents reached the overhead budget."
    )


def selected_requests(view: View) -> SlowRequests | None:
    """Return the requests that the address selects, `sel=<low>:<high>:<start>:<end>` in seconds; None without a valid selection.

    >>> selected_requests(View("/s/a", {"sel": "0.1:0.5:60:120"}, datetime.now(UTC)))
    SlowRequests(low=0.1, high=0.5, start=60.0, end=120.0)
    >>> selected_requests(View("/s/a", {"sel": "0.5:nan:x"}, datetime.now(UTC)))
    """
    try:
        low, high, start, end = (float(part) for part in (view.text("sel") or "").split(":"))
    except ValueError:
        return None
    valid = 0 <= low < high and 0 <= start < end < _LAST_TIME
    return SlowRequests(low, high, start, end) if valid else None


def _choices(view: View, causes: SharedCauses) -> Component:
    quantiles = (quantile for quantile in _PERCENTILES if highest_percentile(causes.requests, quantile) == quantile)
    keys = {f"{quantile * 100:.6g}": percentile(quantile) for quantile in sorted({*quantiles, causes.percentile})}
    options = {key: (name, view.here(p=None if key == _DEFAULT else key, sel=None)) for key, name in keys.items()}
    chosen = f"{causes.percentile * 100:.6g}"
    if selected_requests(view):
        options["sel"], chosen = ("Selection", view.here()), "sel"
    return link_tabs("Slow requests", options, chosen)


def _causes_table(context: Context, causes: Sequence[SharedCause], at: str, slow: str) -> Component:
    head: list[tuple[Node, str]] = [
        ("Attribute", ""),
        ("Value", ""),
        ("All", "r hide"),
        (slow, "r"),
        ("Lift", "r hide"),
        (f"{at} with", "r hide"),
        (f"{at} without", "r"),
        ("Explains", "hide"),
    ]
    return table(head, [_row(context, cause) for cause in causes], _TITLE)


def _row(context: Context, cause: SharedCause) -> Component:
    href = requests_path(context, cause)
    value = link(cause.value, href=href, className="link") if href else cause.value
    shown: list[Node] = [html.Span(value, className="cut")]
    if cause.same_as:
        shown.append(html.Div(f"the same requests as {cause.same_as}", className="s"))
    chance = f"Probability of this difference by chance: at most {cause.p_value:.1g}."
    cells = [
        html.Td(attribute(cause.key).label, className="nowrap"),
        html.Td(shown, className="b"),
        html.Td(percent(cause.share_all), className="r hide", title=f"{count(cause.requests)} requests"),
        html.Td(percent(cause.share_slow), className="r b", title=f"{count(cause.slow)} requests"),
        html.Td(times(cause.lift), className="r hide"),
        html.Td(_latency(cause.with_ms), className="r hide"),
        html.Td(_latency(cause.without_ms), className="r"),
        html.Td(_bar(cause.explained), className="hide", title=chance),
    ]
    return html.Tr(cells)


def _latency(milliseconds: float | None) -> Node:
    return html.Span("too few", className="muted") if milliseconds is None else duration(milliseconds / 1e3)


def _bar(share: float) -> Component:
    filled = html.I(style={"width": f"{min(share, 1.0) * 100:.1f}%"})
    return html.Div(
        [html.Div(filled, className="track"), html.Span(percent(share), className="num")], className="gauge"
    )


def requests_path(context: Context, cause: SharedCause) -> str:
    view, service = context.view, context.service or ""
    if cause.key == WHEN:
        return view.with_window(*(datetime.fromtimestamp(int(seconds), UTC) for seconds in cause.values))
    key = next((key for key, name in SCOPE.items() if name == cause.key), None)
    if len(cause.values) != 1 or not cause.values[0]:
        return ""
    if key is not None:
        path, chosen = service_path(service), {key: cause.values[0]}
        return view.here(**chosen) if view.path == path else view.link(path, **{**view.scope, **chosen})
    if cause.key == "replica":
        return view.link(service_path(service, "replicas"), **view.scope)
    if attribute(cause.key).is_number or cause.key in ("environment", "model_version", "device", "status"):
        return ""
    at = f"{_OF_TRACES}{cause.key}:{cause.values[0]}"
    return view.link(service_path(service, "traces"), **view.scope, at=at)
