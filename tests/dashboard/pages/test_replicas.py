"""The slow replica on pages and in the API: one sentence, the same numbers, and silence without one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from stagelens.dashboard.access import Grant, ReaderAccess
from stagelens.dashboard.pages.page import Page
from stagelens.dashboard.source import Source
from stagelens.dashboard.ui.format import TIMES, UNKNOWN
from stagelens.store import Series, Store
from tests.dashboard.rendering import check_views, client_of, data_at, page_at, shown, source_of
from tests.dashboard.slow_replica import NOW, PLACES, SERVICE, SLOW, store_of, traffic

NAME = "checkout-7f6b9"
TOKEN = "correct horse battery staple, again"  # noqa: S105 - the secret of this test
WINDOW = "?from=now-45m"


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Twelve replicas, one of them slow for 15 minutes."""
    store = store_of(tmp_path_factory.mktemp("slow"), traffic())
    yield store
    store.close()


def source(store: Store, folder: Path | None = None) -> Source:
    return source_of(store, folder, now=NOW)


def buttons(found: Page) -> dict[str, dict[str, str]]:
    every = re.findall(r"Button\(children='([^']+)'([^)]*)\)", str(found.body))
    return {text: dict(re.findall(r"data-(\w+)='([^']*)'", rest)) for text, rest in every}


def test_the_slow_replica_is_named_with_its_reason_and_is_the_first_row(slow: Store) -> None:
    check_views("replicas", source(slow), now=NOW)


@pytest.mark.parametrize("tab", ["", "/replicas"])
def test_the_service_of_a_slow_replica_can_be_silenced(slow: Store, tmp_path: Path, tab: str) -> None:
    pages, address = source(slow, tmp_path), f"/s/{SERVICE}{tab}{WINDOW}"
    client, headers = client_of(slow, None, NOW, token=TOKEN), {"Authorization": f"Bearer {TOKEN}"}
    before = buttons(page_at(pages, address, NOW))
    made = client.post(before["Silence 24h"]["to"], data=before["Silence 24h"]["post"], headers=headers).get_json()
    text, during = shown(pages, address, NOW), buttons(page_at(pages, address, NOW))
    client.post(during["End silence now"]["to"], json={}, headers=headers)

    assert (made["matchers"], made["comment"]) == ({"service": SERVICE}, f"slow replica {NAME}")
    assert "End silence now" not in before
    assert "Silence 24h" not in during
    assert f"Silenced until {NOW + timedelta(days=1):%-d %b %H:%M} by a dashboard user" in text
    assert "Silence 24h" in buttons(page_at(pages, address, NOW))


@pytest.mark.parametrize("tab", ["", "/replicas"])
def test_a_reader_without_the_role_cannot_silence(slow: Store, tmp_path: Path, tab: str) -> None:
    reader = source(slow, tmp_path).of_reader(ReaderAccess(frozenset({Grant("viewer")})))
    found = str(page_at(reader, f"/s/{SERVICE}{tab}{WINDOW}", NOW).body)

    assert f"{NAME} is 2.5{TIMES} slower" in found
    assert "Silence 24h" not in found


def test_the_api_has_the_same_numbers(slow: Store) -> None:
    query = {"service": SERVICE, "from": "now-45m"}
    found = client_of(slow, None, NOW).get("/api/v1/query/replicas", query_string=query).get_json()

    assert (found["slow"]["place"], found["slow"]["percentile"], found["slow"]["others"]) == (SLOW, 0.5, 11)
    assert found["slow"]["since"] == "2023-11-14T22:44:00Z"
    sentence = f"{NAME} is 2.5{TIMES} slower than the other 11 since 22:44 UTC on 14 November"
    assert found["slow"]["summary"].startswith(sentence)
    assert [stage["stage"] for stage in found["slow"]["stages"]] == ["forward"]
    assert [each["measure"] for each in found["slow"]["hardware"]] == ["gpu_clock", "gpu_hot"]
    assert [column["name"] for column in found["columns"]] == [
        *("replica", "place", "requests", "p50_seconds", "p99_seconds", "ratio"),
    ]
    assert {row[1] for row in found["rows"]} == set(PLACES)


def test_replicas_without_start_reports_are_shown(tmp_path: Path) -> None:
    store = store_of(tmp_path, traffic(slow=1.0), loads=False, hardware=False)
    address, pages = f"/s/{SERVICE}/replicas{WINDOW}", source(store)
    texts = [shown(pages, each, NOW) for each in (address, f"/s/{SERVICE}{WINDOW}")]
    (table,) = data_at(pages, address, NOW).tables
    store.close()

    assert "slower than" not in " ".join(texts)
    assert len(table.rows) == len(PLACES)
    assert {tuple(row[-3:]) for row in table.rows} == {(UNKNOWN, UNKNOWN, UNKNOWN)}
    assert "Replicas" in texts[1]


def test_a_single_replica_has_no_card_on_the_page_of_the_service(tmp_path: Path) -> None:
    store = store_of(tmp_path, replace(traffic(1.0), places=PLACES[:1]), series=Series(SERVICE, "1"))
    text = shown(source(store), f"/s/{SERVICE}{WINDOW}", NOW)
    store.close()

    assert "Latency by replica" not in text
