"""The row of filters above the kept requests: each is a menu of links, because every view is an address."""

from __future__ import annotations

from dataclasses import replace

from dash import html
from dash.development.base_component import Component

from ...core.stages import label, position
from ..components import Node, link_tabs, swatch
from ..format import axis_duration, percentile
from .page import Context
from .scope_filter import chips, field, leave_out, menu, part_menu

_QUANTILES = (0.5, 0.9, 0.99, 0.999)
_MOST = 40


def filters(context: Context) -> Component:
    """Return the filters that the window has values for."""
    view = context.view
    errors = {"": ("All", view.here(err=None)), "1": ("Errors", view.here(err="1"))}
    on_service = view.parts[0] == "s"
    items: list[Node] = [
        None if on_service else _services(context),
        _versions(context),
        # The pages of a service have these in their head.
        *([] if on_service or not context.service else _parts(context)),
        _stages(context),
        _slower(context),
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
    menus = (part_menu(context, key) for key in ("m", "r"))
    return [*menus, leave_out(context), *chips(context, ("m", "r", "cold"))]


def _versions(context: Context) -> Component | None:
    if not context.service or len(context.versions) < 2:  # noqa: PLR2004 - with one there is nothing to choose
        return None
    view, chosen = context.view, context.view.part.get("v", "")
    names = [str(each) for each in reversed(list(context.versions["version"]))][:_MOST]
    options = {"": ("Any version", view.here(v=None))} | {each: (each, view.here(v=each)) for each in names}
    return menu([chosen or "Any version"], options, chosen)


def _stages(context: Context) -> Component:
    view, source, chosen = context.view, context.source, context.view.text("dom") or ""
    found = sorted(source.ask(source.read.stage_latency, replace(context.selection, status=None)), key=position)
    options = {"": ("Any stage", view.here(dom=None))} | {each: (label(each), view.here(dom=each)) for each in found}
    shown: list[Node] = [swatch(chosen), f"Mostly {label(chosen)}"] if chosen else ["Mostly any stage"]
    return menu(shown, options, chosen)


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
    return menu([shown], options, chosen, field("min", chosen, "250ms, 1.5s"))


def _attribute(context: Context) -> Component:
    chosen = context.view.text("at") or ""
    options = {"": ("Any attribute", context.view.here(at=None))}
    return menu([chosen or "Any attribute"], options, chosen, field("at", chosen, "key:value"))
