"""Settings page: configuration of Stagelens and storage use; read-only and without secrets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from dash import html
from dash.development.base_component import Component

from ...analysis.costs import Prices
from ...core.settings.live_file import LiveFile
from ...core.version import __version__
from ...store.queries.state import Storage, TierStorage
from ..config import DashboardConfig
from ..ui.components import Node, banner, card, pill, table
from ..ui.format import UNKNOWN, count, day, money, size, span, whole
from .page import Context, Page, panel

_CAPS = {
    "services": "services",
    "version": "versions of a service",
    "environment": "environments of a service",
    "model": "models of a service",
    "model_version": "model versions of a service",
    "route": "routes of a service",
    "device": "devices of a service",
    "custom_stages": "custom stages of a service",
    "series": "combinations of these values in a service",
}


def render(context: Context) -> Page:
    head = html.Div(
        html.Div(
            [
                html.H1("Settings"),
                html.P("Read-only. SLO and price files are read again when they change.", className="sub"),
            ]
        ),
        className="phead",
    )
    cards = [
        panel("Dashboard", lambda: _dashboard(context), "c6"),
        panel("Agents", lambda: _agents(context), "c6"),
        panel("Objectives", lambda: _objectives(context), "c6"),
        panel("Prices", lambda: _prices(context), "c6"),
        panel("Storage", lambda: _storage(context), "c6"),
        panel("Limits", lambda: _limits(context), "c6"),
    ]
    body: list[Node] = [head, html.Div(cards, className="grid")]
    return Page("Settings · Stagelens", [("Settings", None)], body, "/settings")


def _dashboard(context: Context) -> Component:
    config = context.source.config or DashboardConfig()
    port = str(config.port) if config.port else "a free port"
    facts = {
        "Version": __version__,
        "Listens on": f"{config.host}, {port}",
        "Authentication": _readers(config),
        "Allowed hosts": ", ".join(config.hosts) or "names of this machine",
        # Only the host: the rest may contain a secret.
        "Tracing backend": (urlsplit(context.source.tracer).hostname or "set") if context.source.tracer else "no link",
    }
    return card("Dashboard", _facts(facts), size="c6")


def _readers(config: DashboardConfig) -> str:
    ways = [
        ("a token", config.token),
        ("names and passwords", config.users),
        (f"users named by a proxy in {config.proxy_header}", config.proxy_header),
        ("users authenticated by the proxy", config.behind_proxy),
    ]
    return ", or ".join(words for words, on in ways if on) or "all users of this machine"


def _agents(context: Context) -> Component:
    state, view = context.source.state(), context.view
    last = state.last_received
    facts = {
        "Sending now": f"{state.instances} process{'es' * (state.instances != 1)}",
        "Last data": f"{span(context.source.now() - last)} ago" if last else "none yet",
        "Requests not counted": count(state.dropped),
        "History starts": day(state.oldest.astimezone(view.zone)) if state.oldest else UNKNOWN,
    }
    return card("Agents", _facts(facts), size="c6")


def _objectives(context: Context) -> Component:
    file, source = context.source.slo_file, context.source
    if not source.has_alerts:
        return card("Objectives", html.P("Alerts do not run with this dashboard.", className="muted"), size="c6")
    if file is None:
        text = "No SLO file: set STAGELENS_SLO_FILE, or write slo.yaml where Stagelens starts."
        return card("Objectives", html.P(text, className="muted"), size="c6")
    # The SLO file may not have been read yet.
    file.refresh(source.now())
    definitions = file.current
    facts = {
        **_file(context, file),
        "Objectives": count(len(definitions.slos)) if definitions else UNKNOWN,
        "Channels": ", ".join(definitions.channel_names) or "none" if definitions else UNKNOWN,
    }
    return card("Objectives", [_errors(file), _facts(facts)], size="c6")


def _prices(context: Context) -> Component:
    costs = context.source.costs
    if costs is None:
        text = "No price is set, so no cost is shown: set STAGELENS_PRICES to a price file."
        return card("Prices", html.P(text, className="muted"), size="c6")
    prices = costs.prices
    body: list[Node] = [
        _errors(costs.file),
        _facts({**_file(context, costs.file), "Prices": str(prices) if prices else "none in effect"}),
    ]
    if prices is not None:
        body.append(_price_table(prices))
    return card("Prices", body, size="c6")


def _price_table(prices: Prices) -> Component:
    rows = [
        html.Tr(
            [
                html.Td(entry.service),
                html.Td(entry.environment or "any", className="muted"),
                html.Td(whole(entry.replicas) if entry.replicas else UNKNOWN, className="r"),
                html.Td(money(entry.per_hour, prices.currency), className="r b"),
            ]
        )
        for entry in prices.entries
    ]
    head = (("Service", ""), ("Environment", ""), ("Replicas", "r"), ("Per hour", "r"))
    return table(head, rows, "Prices")


def _storage(context: Context) -> Component:
    storage = context.source.cached(context.source.read.storage)
    retention, view = context.source.read.retention, context.view
    facts = {
        "Size": _budget(storage),
        "Projected size": f"{size(storage.settled_bytes)} at this rate",
        "Full": "never, at this rate"
        if storage.full_at is None
        else f"about {day(storage.full_at.astimezone(view.zone))}",
        "Traces are retained": f"{span(retention.traces)}, at most {whole(retention.traces_per_service)} per service",
    }
    rows = [_tier(tier) for tier in storage.tiers]
    head = (("Buckets", ""), ("Retained", "r"), ("Size", "r"), ("Growth per day", "r"), ("Projected size", "r"))
    return card("Storage", [_facts(facts), table(head, rows, "Storage by tier")], size="c6")


def _budget(storage: Storage) -> str:
    used = size(storage.used_bytes)
    return f"{used}, without a limit" if storage.budget_bytes is None else f"{used} of {size(storage.budget_bytes)}"


def _tier(tier: TierStorage) -> Component:
    cells = [
        html.Td(f"{span(timedelta(seconds=tier.seconds))}, {count(tier.rows)} rows"),
        html.Td(span(tier.retention), className="r"),
        html.Td(size(tier.bytes), className="r b"),
        html.Td(size(tier.bytes_per_day), className="r"),
        html.Td(size(tier.settled_bytes), className="r"),
    ]
    return html.Tr(cells)


def _limits(context: Context) -> Component:
    read = context.source.read
    aggregated = context.source.cached(read.capped_dimensions)
    limits: Sequence[Component] = [
        html.P([pill("Aggregated", "warn"), f" {dimension}: further values count as other."])
        for dimension in aggregated
    ]
    caps = {words: whole(value) for name, value in asdict(read.caps).items() if (words := _CAPS.get(name))}
    body: list[Node] = [*limits, _facts(caps)]
    return card("Limits", body, sub="maximum number of distinct values; further values are aggregated", size="c6")


def _file(context: Context, file: LiveFile[Any]) -> dict[str, str]:
    since = file.changed_at
    read = day(since.astimezone(context.view.zone)) if since else "never without errors"
    return {"File": str(file.path), "In effect since": read}


def _errors(file: LiveFile[Any]) -> Node:
    if not file.errors:
        return None
    effect = "the previous version stays in effect" if file.current is not None else "no setting of it is in effect"
    lines = [html.Li(error, className="mono") for error in file.errors]
    return html.Div([banner(f"The file has errors; {effect}."), html.Ul(lines, className="wrong")])


def _facts(facts: dict[str, str]) -> Component:
    rows: list[Component] = []
    for name, value in facts.items():
        rows += [html.Dt(name), html.Dd(value, title=value)]
    return html.Dl(rows, className="kv")
