"""The slow replica on pages and in the API: one sentence, the same numbers, and silence without one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from stagelens.alerts.objectives.slo_file import LiveSloFile
from stagelens.alerts.reader import AlertsReader
from stagelens.dashboard.access import Grant, ReaderAccess
from stagelens.dashboard.config import DashboardConfig
from stagelens.dashboard.pages.page import Page
from stagelens.dashboard.source import Source
from stagelens.dashboard.ui.format import TIMES, UNKNOWN
from stagelens.dashboard.ui.page_export import page_data, text_of
from stagelens.dashboard.view import parse
from stagelens.dashboard.web.app import Dashboard
from stagelens.dashboard.web.routing import context_of, page_of
from stagelens.store import Series, Store
from tests.dashboard.slow_replica import NOW, PLACES, SERVICE, SLOW, store_of, traffic

NAME = "checkout-7f6b9"
TOKEN = "correct horse battery staple, again"  # noqa: S105 - the secret of this test
WINDOW = "?from=now-45m"
SENTENCE = f"{NAME} is 2.5{TIMES} slower than the other 11 since 22:44: Forward"


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Twelve replicas, one of them slow for 15 minutes."""
    store = store_of(tmp_path_factory.mktemp("slow"), traffic())
    yield store
    store.close()


def page(store: Store, path: str, source: Source | None = None) -> Page:
    found = page_of(context_of(parse(path, WINDOW[1:], NOW), source or Source(store, None, NOW.timestamp)))
    assert found is not None
    return found


def buttons(found: Page) -> dict[str, dict[str, str]]:
    every = re.findall(r"Button\(children='([^']+)'([^)]*)\)", str(found.body))
    return {text: dict(re.findall(r"data-(\w+)='([^']*)'", rest)) for text, rest in every}


@pytest.mark.parametrize("tab", ["", "/replicas", "/advice"])
def test_the_slow_replica_is_named_with_its_reason(slow: Store, tab: str) -> None:
    text = text_of(page(slow, f"/s/{SERVICE}{tab}").body)

    assert SENTENCE in text
    assert "Its GPU runs at 1,005 MHz, the others at 1,755 MHz." in text
    assert "Its GPU is throttled by heat 90 % of the time; the others never." in text
    assert (f"Cool the GPU of {NAME}, or move it to another machine" in text) == (tab == "/advice")


def test_the_sentence_links_to_the_traces_of_the_replica(slow: Store) -> None:
    assert f"/traces?svc={SERVICE}&at=replica:{SLOW}&from=now-45m" in str(page(slow, f"/s/{SERVICE}/replicas").body)


@pytest.mark.parametrize("tab", ["", "/replicas"])
def test_the_service_of_a_slow_replica_can_be_silenced(slow: Store, tab: str) -> None:
    source = Source(slow, AlertsReader(slow, LiveSloFile(None, {})), NOW.timestamp)
    client = Dashboard(DashboardConfig(token=TOKEN), slow, None, clock=NOW.timestamp).server.test_client()
    headers = {"Authorization": f"Bearer {TOKEN}"}
    before = buttons(page(slow, f"/s/{SERVICE}{tab}", source))
    silence = before["Silence 24h"]
    made = client.post(silence["to"], data=silence["post"], headers=headers).json or {}
    found = page(slow, f"/s/{SERVICE}{tab}", source)
    client.post(buttons(found)["End silence now"]["to"], json={}, headers=headers)

    assert (made["matchers"], made["comment"]) == ({"service": SERVICE}, f"slow replica {NAME}")
    assert "End silence now" not in before
    assert "Silence 24h" not in buttons(found)
    assert f"Silenced until {NOW + timedelta(days=1):%-d %b %H:%M} by a dashboard user" in text_of(found.body)
    assert "Silence 24h" in buttons(page(slow, f"/s/{SERVICE}{tab}", source))


@pytest.mark.parametrize("tab", ["", "/replicas"])
def test_a_reader_without_the_role_cannot_silence(slow: Store, tab: str) -> None:
    source = Source(slow, AlertsReader(slow, LiveSloFile(None, {})), NOW.timestamp)
    found = page(slow, f"/s/{SERVICE}{tab}", source.of_reader(ReaderAccess(frozenset({Grant("viewer")}))))

    assert SENTENCE in text_of(found.body)
    assert "Silence 24h" not in str(found.body)


def test_the_slow_replica_is_the_first_row(slow: Store) -> None:
    tables = {each.name: each for each in page_data(page(slow, f"/s/{SERVICE}/replicas").body).tables}
    rows = tables["Latency by replica"].rows
    first = dict(zip(tables["Latency by replica"].head, rows[0], strict=True))

    assert len(rows) == len(PLACES)
    assert first["Replica"] == NAME
    assert first["vs others"].startswith("2.5")
    assert (first["Version"], first["Restarts"], first["Age"][:3].split()) == ("2.0.0", "0", ["1", "d"])
    assert (first["GPU busy"], first["GPU clock"]) == ("70 %", "1,005 MHz")
    assert [row[-1] for row in rows if row[0] == "checkout-7f6b6"] == ["1"]


def test_the_api_has_the_same_numbers(slow: Store) -> None:
    client = Dashboard(DashboardConfig(), slow, None, clock=NOW.timestamp).server.test_client()
    found = client.get("/api/v1/query/replicas", query_string={"service": SERVICE, "from": "now-45m"}).json

    assert found is not None
    assert (found["slow"]["place"], found["slow"]["percentile"], found["slow"]["others"]) == (SLOW, 0.5, 11)
    assert found["slow"]["since"] == "2023-11-14T22:44:00Z"
    assert found["slow"]["summary"].startswith(
        f"{NAME} is 2.5{TIMES} slower than the other 11 since 22:44 UTC on 14 November"
    )
    assert [each["stage"] for each in found["slow"]["stages"]] == ["forward"]
    assert [each["measure"] for each in found["slow"]["hardware"]] == ["gpu_clock", "gpu_hot"]
    assert [each["name"] for each in found["columns"]] == [
        *("replica", "place", "requests", "p50_seconds", "p99_seconds", "ratio"),
    ]
    assert {row[1] for row in found["rows"]} == set(PLACES)


def test_replicas_without_start_reports_are_shown(tmp_path: Path) -> None:
    store = store_of(tmp_path, traffic(slow=1.0), loads=False, hardware=False)
    found, service = page(store, f"/s/{SERVICE}/replicas"), text_of(page(store, f"/s/{SERVICE}").body)
    (table,) = page_data(found.body).tables
    store.close()

    assert "slower than" not in text_of(found.body) + service
    assert len(table.rows) == len(PLACES)
    assert {tuple(row[-3:]) for row in table.rows} == {(UNKNOWN, UNKNOWN, UNKNOWN)}
    assert "Replicas" in service


def test_a_single_replica_has_no_card_on_the_page_of_the_service(tmp_path: Path) -> None:
    store = store_of(tmp_path, replace(traffic(1.0), places=PLACES[:1]), series=Series(SERVICE, "1"))
    text = text_of(page(store, f"/s/{SERVICE}").body)
    store.close()

    assert "Latency by replica" not in text
