"""The menus of the top bar: the environment, the range of time, and what a card offers to be taken along."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from dash import html

from stagelens.core.histogram import Histogram
from stagelens.core.names import REQUEST_DURATION
from stagelens.dashboard.source import Source
from stagelens.dashboard.ui.components import card, chart, table
from stagelens.dashboard.ui.page_export import text_of
from stagelens.dashboard.view import COMPARED, parse
from stagelens.dashboard.web.routing import context_of
from stagelens.dashboard.web.shell import environment_menu, time_menu
from stagelens.store import Batch, Point, Series, Store
from tests.dashboard.served_versions import NOW

WHOLE = datetime(2026, 11, 20, 12, tzinfo=UTC)


def came_from(store: Store, *environments: str) -> None:
    histogram = Histogram()
    histogram.record(0.1)
    at = int(NOW.timestamp()) - 300
    points = [
        Point(Series("shop", "1", environment=each), REQUEST_DURATION, "forward", at, histogram)
        for each in environments
    ]
    store.write([Batch("-".join(environments), points)])


class Objectives:
    def __init__(self, *states: tuple[str, str | None]) -> None:
        self._states = states

    def slos(self, now: datetime | None = None) -> list[Any]:  # noqa: ARG002 - they do not change
        named = enumerate(self._states)
        return [
            SimpleNamespace(state=state, burn_1h=0.0, slo=SimpleNamespace(name=f"{place}", environment=environment))
            for place, (state, environment) in named
        ]

    def incidents(self) -> list[Any]:
        return []

    def problems(self) -> list[str]:
        return []


def shown(store: Store, search: str = "", alerts: Objectives | None = None) -> Any:
    return environment_menu(context_of(parse("/", search, NOW), Source(store, alerts, NOW.timestamp)))


def buttons(node: Any, key: str) -> dict[str, str]:
    here = {getattr(node, "data-value"): text_of(node)} if getattr(node, "data-key", "") == key else {}
    inside = getattr(node, "children", None)
    for each in inside if isinstance(inside, list) else [inside]:
        if each is not None and not isinstance(each, str):
            here |= buttons(each, key)
    return here


@pytest.mark.parametrize("environments", [(), ("",), ("prod",), ("", "prod")])
def test_a_single_environment_has_no_menu(store: Store, environments: tuple[str, ...]) -> None:
    if environments:
        came_from(store, *environments)

    assert shown(store) is None


def test_environments_are_offered_by_name(store: Store) -> None:
    came_from(store, "staging", "", "prod")
    menu = shown(store)

    assert buttons(menu, "env") == {"": "All environments", "prod": "prod", "staging": "staging"}
    assert text_of(menu.children[0]) == "All environments"


def test_an_environment_without_data_can_be_deselected(store: Store) -> None:
    came_from(store, "prod")
    menu = shown(store, "?env=canary")

    assert text_of(menu.children[0]) == "canary"
    assert list(buttons(menu, "env")) == ["", "prod", "canary"]


@pytest.mark.parametrize(
    ("search", "dot"), [("", "bad"), ("?env=prod", "warn"), ("?env=staging", "bad"), ("?env=canary", "good")]
)
def test_the_dot_of_an_environment_is_its_worst_objective(store: Store, search: str, dot: str) -> None:
    came_from(store, "prod", "staging")
    alerts = Objectives(("healthy", None), ("at_risk", "prod"), ("burning", "staging"))

    assert shown(store, search, alerts).children[0].children[0].className == f"dot {dot}"


def test_the_time_menu_carries_the_window_and_the_clock() -> None:
    menu = time_menu(parse("/", "?from=now-1h&vs=7d&tz=utc", NOW, "Europe/Berlin"))
    bounds = {key: int(getattr(menu, f"data-{key}")) / 1000 for key in ("start", "end", "now")}

    assert bounds == {
        "start": (WHOLE - timedelta(hours=1)).timestamp(),
        "end": WHOLE.timestamp(),
        "now": NOW.timestamp(),
    }
    assert list(buttons(menu, "vs")) == ["", *list(COMPARED)[1:]]
    assert buttons(menu, "tz") == {"": "My zone", "utc": "UTC"}
    assert "Times are in UTC" in text_of(menu)


def test_only_cards_with_numbers_can_be_exported() -> None:
    drawn = chart("percentile", {"data": [], "layout": {}}, "said", frame=pd.DataFrame())
    listed = table([("a", "")], [html.Tr(html.Td("1"))], "list")
    offered = {
        name: "Export" in str(made)
        for name, made in {
            "chart": card("Latency", drawn),
            "table": card("Requests", html.Div([None, html.Div([listed])])),
            "text": card("Said", ["a", html.P("b")]),
            "untitled": card(None, drawn),
        }.items()
    }

    assert offered == {"chart": True, "table": True, "text": False, "untitled": False}
