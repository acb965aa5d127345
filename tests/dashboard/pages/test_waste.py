"""Waste card: each kind in its unit, in money where a price is known, ranked by the address."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from stagelens.alerts.objectives.slo_file import LiveSloFile
from stagelens.alerts.reader import AlertsReader
from stagelens.core.hardware import CPU_SHARE, GPU, hardware_key
from stagelens.core.histogram import Histogram
from stagelens.core.names import FAILED_CALL, HARDWARE, REQUEST_DURATION, STAGE_TIME
from stagelens.dashboard.config import DashboardConfig
from stagelens.dashboard.pages.measures import urgent_first
from stagelens.dashboard.pages.waste import waste_card
from stagelens.dashboard.source import Source
from stagelens.dashboard.ui.format import THIN
from stagelens.dashboard.ui.page_export import as_html, page_data, text_of
from stagelens.dashboard.view import parse
from stagelens.dashboard.web.routing import context_of
from stagelens.store import Batch, Point, Series, Store
from stagelens.store.events import StoredLoad
from tests.dashboard.served_versions import NOW

NS = 1_000_000_000
AT = int(NOW.timestamp()) // 10 * 10
WINDOW = "from=now-1h"
PRICES = """currency: "$"
prices:
  - {service: ocr, per_replica_hour: 5, replicas: 2}
  - {service: bare, per_hour: 100}
"""


def point(service: str, metric: str, key: str, at: int, values: Sequence[float]) -> Point:
    histogram = Histogram()
    for value in values:
        histogram.record(value)
    return Point(Series(service, "1", "prod"), metric, key, at, histogram)


def points() -> Iterator[Point]:
    for at in range(AT - 3600, AT, 300):
        for service in ("ocr", "chat", "bare"):
            yield point(service, REQUEST_DURATION, "forward", at, [0.1] * 10)
        yield point("ocr", HARDWARE, hardware_key(GPU.key, "ocr-1/gpu0"), at, [0.25])
        yield point("chat", HARDWARE, hardware_key(CPU_SHARE.key, "chat-1:7"), at, [0.5])
        yield Point(Series("ocr", "1", "prod"), STAGE_TIME, "queue", at, Histogram(buckets={0: 600_000_000}))
        yield point("chat", FAILED_CALL, "http:timeout", at, [2.0])


@pytest.fixture(scope="module")
def store(open_module_store: Callable[[], Store]) -> Store:
    made = open_module_store()
    load = StoredLoad("ocr", "1", "prod", "a", "ocr-1:7", "read", "m", "", (AT - 800) * NS, (AT - 80) * NS, 720 * NS)
    made.write([Batch("hour", list(points()), loads=[load])])
    return made


def source_of(store: Store, folder: Path, prices: str = "") -> Source:
    path = folder / "prices.yaml"
    path.write_text(prices)
    alerts = AlertsReader(store, LiveSloFile(None, {}))
    return Source(store, alerts, NOW.timestamp, config=DashboardConfig(port=0, prices=path if prices else None))


def shown(source: Source, search: str = WINDOW) -> tuple[str, list[str], list[list[str]], str]:
    context = context_of(parse("/", search, NOW), source)
    made = waste_card(context, urgent_first(context))
    assert made is not None
    table = page_data(made).tables[0]
    text = text_of(made).replace(THIN, " ")
    return text, table.head, [[each.replace(THIN, " ") for each in row] for row in table.rows], as_html(made)


def test_idle_machines_cost_money_where_a_price_and_their_utilization_are_known(store: Store, tmp_path: Path) -> None:
    text, head, rows, written = shown(source_of(store, tmp_path, PRICES))

    assert head == ["Service", "Idle machines", "Waiting in queues", "Failed calls", "Cold starts"]
    assert [row[:2] for row in rows] == [["ocr", "$7.50, 75 % idle"], ["chat", "50 % idle"]]
    assert (rows[0][2], rows[1][3]) == ("2 h", "24.0 s, 12 calls")
    assert rows[0][4] == "12 m, $1.00"
    assert "in the last 1 h, by cost of idle machines" in text
    assert "Idle machines of ocr cost $7.50 of $10.0 in the last 1 h: they worked 25 % of the time." in text
    for tab in ("/s/ocr/capacity", "/s/ocr?", "/s/chat/advice", "/s/ocr/replicas"):
        assert f'href="{tab}' in written


def test_without_prices_there_is_no_money(store: Store, tmp_path: Path) -> None:
    text, _, rows, _ = shown(source_of(store, tmp_path))

    assert "$" not in text
    assert [row[:2] for row in rows] == [["ocr", "75 % idle"], ["chat", "50 % idle"]]
    assert "Requests of ocr waited 2 h in queues in total, in the last 1 h." in text


def test_the_ranking_is_an_address(store: Store, tmp_path: Path) -> None:
    _, _, rows, written = shown(source_of(store, tmp_path, PRICES), f"{WINDOW}&rank=calls")

    assert [row[0] for row in rows] == ["chat"]
    assert 'href="/?rank=queue&amp;from=now-1h"' in written


def test_a_fleet_without_waste_has_no_card(tmp_path: Path) -> None:
    made = Store.open(f"sqlite:///{tmp_path / 'bare.db'}", clock=NOW.timestamp)
    made.write([Batch("a", [point("bare", REQUEST_DURATION, "forward", AT - 60, [0.1] * 10)])])
    context = context_of(parse("/", WINDOW, NOW), source_of(made, tmp_path, PRICES))

    assert waste_card(context, urgent_first(context)) is None
    made.close()
