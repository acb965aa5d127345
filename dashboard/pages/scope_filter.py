"""Filters of a service page by version, model, route and cold requests: menus, chips and their texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from dash import html
from dash.development.base_component import Component

from ...alerts.objectives.slo import Slo
from ...store import Selection
from ...store.schema import storable_name
from ..ui.components import Node, attributes, link
from ..ui.format import TIMES, count
from ..view import ONLY_COLD, SCOPE, WITHOUT_COLD, View
from .page import Context, empty_page_card

# Texts for the values of `cold`, after "request of".
WORDS = {WITHOUT_COLD: "warm replicas", ONLY_COLD: "cold replicas"}
WAY_OUT = "Cold and warm"
# Maximum number of values in a menu, most requests first; others can be typed.
_MOST = 40


def scope_menu(context: Context, key: str) -> Component | None:
    view, name = context.view, SCOPE[key]
    chosen, names = view.scope.get(key, ""), _choices(context, key)
    if len(names) < 2 and not chosen:  # noqa: PLR2004 - a single value is no choice
        return None
    options = {"": (f"Any {name}", view.here(**{key: None}))}
    options |= {choice: (choice, view.here(**{key: choice})) for choice in names[:_MOST]}
    more = field(key, chosen, names[0]) if len(names) > _MOST else None
    # The selected value is shown in its chip.
    shown = f"{'Another' if chosen else 'Any'} {name}"
    return menu([shown], options, chosen, more, title=f"{name.capitalize()}: {chosen or 'any'}", css="menu side-menu")


def chips(context: Context, keys: Iterable[str] = SCOPE) -> list[Node]:
    return [_chip(context, key) for key in keys if key in context.view.scope]


def scope_text(view: View, keys: Iterable[str] = SCOPE) -> str:
    """Return the scope of *view* as text: `model small and route /v1`; "" for the complete service."""
    return " and ".join(_words(view, key) for key in keys if key in view.scope)


def blocking_filters(context: Context) -> list[str]:
    if _requests_without(context, []):
        return []
    keys = list(context.view.scope)
    alone = [key for key in keys if _requests_without(context, [key])]
    return alone or (keys if _requests_without(context, keys) else [])


def no_matching_request(context: Context, keys: list[str]) -> Component:
    view = context.view
    counts = {key: _requests_without(context, [key]) for key in keys}
    left = [
        f"{count(n)} {'cold and warm' if key == 'cold' else f'without {_words(view, key)}'}"
        for key, n in counts.items()
        if n
    ]
    text = f"There are {', and '.join(left)}." if left else "Remove these filters to show requests."
    return empty_page_card(
        f"No request of {scope_text(view)} in this window", text, actions=remove_filter_links(view, keys)
    )


def remove_filter_links(view: View, keys: Iterable[str]) -> list[Component]:
    return [
        link(
            WAY_OUT if key == "cold" else f"All {SCOPE[key]}s",
            href=view.here(**{key: None}),
            className="btn pri" if first else "btn",
        )
        for first, key in ((not index, key) for index, key in enumerate(keys))
    ]


def slo_scope_note(slo: Slo, shown: Selection) -> str:
    """Return the scope of *slo* if it differs from *shown*: `all routes`, `route /v1`; else ""."""
    names = (*(name for key, name in SCOPE.items() if key != "cold"), "environment")
    pairs = {name: (getattr(slo, name), getattr(shown, name)) for name in names}
    scopes = [
        f"{name} {promised}" if promised else f"all {name}s"
        for name, (promised, chosen) in pairs.items()
        if promised != chosen
    ]
    return ", ".join(scopes if shown.cold is None else [*scopes, WAY_OUT.lower()])


def matches_selection(where: Mapping[str, str], shown: Selection) -> bool:
    chosen = {name: getattr(shown, name) for name in where}
    return all(chosen[name] in (None, storable_name(value)) for name, value in where.items())


def _words(view: View, key: str) -> str:
    return WORDS[view.scope[key]] if key == "cold" else f"{SCOPE[key]} {view.scope[key]}"


def _chip(context: Context, key: str) -> Component:
    view = context.view
    if key == "cold":
        name, value, hint = chip_words(context)
    else:
        name, value = SCOPE[key].capitalize(), view.scope[key]
        hint = f"{name} {value}: show all {SCOPE[key]}s"
    return filter_chip(name, value, view.here(**{key: None}), hint)


def filter_chip(name: str, value: Node, href: str, hint: str) -> Component:
    inside: list[Node] = [html.Span(name), html.B(value, className="cut"), html.Span(TIMES, className="muted")]
    return link(inside, href=href, className="btn", title=hint, **attributes({"aria-label": hint}))


def _choices(context: Context, key: str) -> list[str]:
    source, asked = context.source, replace(context.selection, **{SCOPE[key]: None})
    return list(source.cached(source.read.dimensions, asked)[SCOPE[key]])


def _requests_without(context: Context, keys: Iterable[str]) -> int:
    wider = replace(context.selection, **{SCOPE[key]: None for key in keys})
    return context.source.cached(context.source.read.latency, wider).count


Option = tuple[str, str] | tuple[str, str, str]


def menu(
    shown: Sequence[Node],
    options: Mapping[str, Option],
    chosen: str,
    more: Node = None,
    *,
    title: str | None = None,
    css: str = "menu",
) -> Component:
    links = [option_link(*option, on=value == chosen) for value, option in options.items()]
    summary = html.Summary([*shown, html.I(className="ic ic-down")], className="btn", title=title)
    return html.Details([summary, html.Div([*links, more], className="pop")], className=css)


def field(
    key: str,
    value: str,
    example: str,
    *,
    name: str = "Another value",
    before: str = "",
    suggested: Mapping[str, str] = MappingProxyType({}),
) -> Component:
    """Return the placeholder of a text field that sets *key* of the address; `assets/fields.js` builds the field.

    React does not render the field, because a field rendered again while the reader types loses letters.
    """
    listed = f"suggested-{key}" if suggested else ""
    data = {"data-field": key, "data-value": value, "data-example": example, "data-name": name}
    data |= {"data-before": before, "data-list": listed}
    box = html.Span(className="field", **attributes({attribute: text for attribute, text in data.items() if text}))
    if not suggested:
        return box
    options = [html.Option(value=text, label=note) for text, note in suggested.items()]
    return html.Div([box, html.Datalist(options, id=listed)])


def option_link(text: str, href: str, number: str = "", *, on: bool = False) -> Component:
    current = attributes({"aria-current": "true"}) if on else {}
    inside: list[Node] = [html.Span(text, title=text), html.Span(number, className="muted num") if number else None]
    return link(inside, href=href, className="btn ghost" + (" b" if on else ""), **current)


def leave_out_cold_link(context: Context) -> Component | None:
    if context.service is None or "cold" in context.view.scope:
        return None
    number = _requests(context, ONLY_COLD)
    if not number:
        return None
    title = f"{count(number)} request{'s' * (number != 1)} included loading or warm-up"
    href = context.view.here(cold=WITHOUT_COLD)
    return link(f"Exclude {count(number)} cold", href=href, className="btn", title=title)


def chip_words(context: Context) -> tuple[str, str, str]:
    chosen = context.view.scope["cold"]
    number = _requests(context, ONLY_COLD if chosen == WITHOUT_COLD else WITHOUT_COLD)
    what = "cold" if chosen == WITHOUT_COLD else "warm"
    return (
        "Without",
        f"{count(number)} {what}",
        f"{count(number)} {what} request{'s' * (number != 1)} excluded: show all",
    )


def _requests(context: Context, cold: str) -> int:
    return context.source.cached(context.source.read.latency, replace(context.selection, cold=cold)).count
