"""The row of filters above the kept requests: each is a menu of links, because every view is an address."""

from __future__ import annotations

from dataclasses import replace

from dash import html
from dash.development.base_component import Component

from ...core.stages import label, position
from ..components import Node, attributes, link, link_tabs, swatch
from ..format import axis_duration, percentile
from .page import Context

_QUANTILES = (0.5, 0.9, 0.99, 0.999)
_MOST = 40


def filters(context: Context) -> Component:
    """Return the filters that the window has values for."""
    view = context.view
    errors = {"": ("All", view.here(err=None)), "1": ("Errors", view.here(err="1"))}
    items: list[Node] = [
        None if view.parts[0] == "s" else _services(context),
        _versions(context),
        _stages(context),
        _slower(context),
        _attribute(context),
        link_tabs("Status", errors, "1" if view.text("err") == "1" else ""),
    ]
    return html.Div([item for item in items if item is not None], className="filters")


def _services(context: Context) -> Component:
    view = context.view
    names = [str(each) for each in context.source.services(view.start, view.end)["service"]][:_MOST]
    options = {"": ("All services", view.here(svc=None))}
    options |= {name: (name, view.here(svc=name, v=None)) for name in names}
    return _menu(context.service or "All services", options, context.service or "")


def _versions(context: Context) -> Component | None:
    if not context.service or len(context.versions) < 2:  # noqa: PLR2004 - with one there is nothing to choose
        return None
    view, chosen = context.view, context.view.text("v") or ""
    names = [str(each) for each in reversed(list(context.versions["version"]))][:_MOST]
    options = {"": ("Any version", view.here(v=None))} | {each: (each, view.here(v=each)) for each in names}
    return _menu(chosen or "Any version", options, chosen)


def _stages(context: Context) -> Component:
    view, source, chosen = context.view, context.source, context.view.text("dom") or ""
    found = sorted(source.ask(source.read.stage_latency, replace(context.selection, status=None)), key=position)
    options = {"": ("Any stage", view.here(dom=None))} | {each: (label(each), view.here(dom=each)) for each in found}
    shown: list[Node] = [swatch(chosen), f"Mostly {label(chosen)}"] if chosen else ["Mostly any stage"]
    return _menu(shown, options, chosen)


def _slower(context: Context) -> Component:
    """Offer the percentiles of the window, the promise, and a field for any other bound."""
    view, source, chosen = context.view, context.source, context.view.text("min") or ""
    latency = source.ask(source.read.latency, context.selection)
    told = {percentile(each): latency.quantile(each) for each in _QUANTILES}
    bounds = {f"slower than {name}": found.value for name, found in told.items() if found}
    if context.threshold_seconds is not None:
        bounds["slower than promised"] = context.threshold_seconds
    options = {"": ("Any latency", view.here(min=None))}
    for text, seconds in bounds.items():
        value = f"{seconds * 1000:.4g}ms"
        options[value] = (f"{text}, {axis_duration(float(f'{seconds:.3g}'))}", view.here(min=value))
    shown = f"Over {chosen}" if chosen else "Any latency"
    return _menu(shown, options, chosen, field("min", chosen, "250ms, 1.5s"))


def _attribute(context: Context) -> Component:
    chosen = context.view.text("at") or ""
    options = {"": ("Any attribute", context.view.here(at=None))}
    return _menu(chosen or "Any attribute", options, chosen, field("at", chosen, "key:value"))


def field(key: str, value: str, example: str) -> Component:
    """Return the place of a text field that sets *key* of the address; `assets/fields.js` puts the field there.

    It is not React's: a field that is rendered anew while somebody types loses letters.
    """
    said = {"data-field": key, "data-value": value, "data-example": example}
    return html.Span(className="field", **attributes(said))


def _menu(
    shown: Node | list[Node], options: dict[str, tuple[str, str]], chosen: str, more: Component | None = None
) -> Component:
    links: list[Node] = [
        link(text, href=href, className="btn ghost" + (" b" if value == chosen else ""))
        for value, (text, href) in options.items()
    ]
    inner = shown if isinstance(shown, list) else [shown]
    summary = html.Summary([*inner, html.I(className="ic ic-down")], className="btn")
    return html.Details([summary, html.Div([*links, more], className="pop left")], className="menu")
