"""The frame of the pages: notices about the limits of the store, the menus of the top bar, and exports of cards."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from dash import html
from sqlalchemy import text

from stagelens.dashboard.source import Source
from stagelens.dashboard.ui.components import card, chart, table
from stagelens.dashboard.ui.page_export import text_of
from stagelens.dashboard.view import COMPARED, parse
from stagelens.dashboard.web.shell import environment_menu, side, stale_banner, time_menu
from stagelens.store import Retention, Series, SeriesCaps, Store
from tests.dashboard.rendering import context_at, source_of, write_requests
from tests.dashboard.served_versions import NOW


@pytest.fixture
def small_store(open_store: Callable[..., Store]) -> Store:
    retention, caps = Retention(budget_bytes=10 * 1024**3), SeriesCaps(route=2)
    opened = open_store("small.db", retention=retention, series_caps=caps, clock=NOW.timestamp)
    write_requests(opened, *(Series(name, "1", route=f"/{route}") for name in ("shop", "desk") for route in range(4)))
    return opened


def foot(small_store: Store, address: str) -> str:
    source = source_of(small_store)
    return text_of(side(context_at(source, address), address, source.state()))


def test_detail_removed_by_the_storage_budget_is_shown(small_store: Store) -> None:
    kept_from = int((NOW - timedelta(hours=3)).timestamp()) // 3600 * 3600
    with small_store.transaction() as connection:
        connection.execute(text("UPDATE rollups SET kept_from = :at WHERE tier = 10"), {"at": kept_from})

    match = re.search(
        r"10 s buckets before 20 Nov 09:00 were deleted; the store now has (\d+) KiB, its budget is 10 GiB",
        foot(small_store, "/"),
    )
    assert match is not None
    assert int(match[1]) == round(small_store.read.state().size_bytes / 1024)


def test_values_over_their_cap_are_shown_on_the_affected_pages(small_store: Store) -> None:
    shop, desk = (f"{name} has more than 2 routes: new ones count as Other" for name in ("shop", "desk"))

    assert shop in foot(small_store, "/")
    assert desk in foot(small_store, "/")
    assert shop in foot(small_store, "/s/shop")
    assert desk not in foot(small_store, "/s/shop")


def test_a_store_within_its_limits_has_no_notice(open_store: Callable[..., Store]) -> None:
    sidebar = foot(open_store("new.db", clock=NOW.timestamp), "/")

    assert "budget" not in sidebar
    assert "has more than" not in sidebar


@pytest.mark.parametrize(
    ("search", "after", "expected"),
    [
        ("", timedelta(seconds=20), ""),
        ("", timedelta(minutes=3), "No data for 3 m."),
        ("?from=1795100000000&to=1795103600000", timedelta(minutes=3), ""),
    ],
)
def test_stopped_data_is_shown_with_its_age(small_store: Store, search: str, after: timedelta, expected: str) -> None:
    source = source_of(small_store, now=NOW + after)
    shown = stale_banner(context_at(source, f"/{search}", NOW + after), source.state())

    assert text_of(shown).startswith(expected)
    assert (shown is None) == (not expected)


WHOLE = datetime(2026, 11, 20, 12, tzinfo=UTC)


def came_from(store: Store, *environments: str) -> None:
    write_requests(store, *(Series("shop", "1", environment=each) for each in environments))


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
    return environment_menu(context_at(Source(store, alerts, NOW.timestamp), f"/{search}"))


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


def test_environments_are_offered_by_name_and_one_without_data_can_be_deselected(store: Store) -> None:
    came_from(store, "prod")
    without_data = shown(store, "?env=canary")
    came_from(store, "staging", "")
    menu = shown(store)

    assert [text_of(each.children[0]) for each in (without_data, menu)] == ["canary", "All environments"]
    assert list(buttons(without_data, "env")) == ["", "prod", "canary"]
    assert buttons(menu, "env") == {"": "All environments", "prod": "prod", "staging": "staging"}


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
