"""Waste card: each kind in its unit, in money where a price is known, ranked by the address."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from stagelens.core.hardware import CPU_SHARE, GPU, hardware_key
from stagelens.core.histogram import Histogram
from stagelens.core.names import FAILED_CALL, HARDWARE, REQUEST_DURATION, STAGE_TIME
from stagelens.store import Batch, Point, Series, Store
from stagelens.store.events import StoredLoad
from tests.dashboard.rendering import check_views, source_of, write_requests
from tests.dashboard.served_versions import NOW

NS = 1_000_000_000
AT = int(NOW.timestamp()) // 10 * 10
CARD = "/?from=now-1h # Waste"
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
def hour(open_module_store: Callable[[], Store]) -> Store:
    made = open_module_store()
    load = StoredLoad("ocr", "1", "prod", "a", "ocr-1:7", "read", "m", "", (AT - 800) * NS, (AT - 80) * NS, 720 * NS)
    made.write([Batch("hour", list(points()), loads=[load])])
    return made


def test_idle_machines_cost_money_where_a_price_and_their_utilization_are_known(hour: Store, tmp_path: Path) -> None:
    check_views("waste_priced", source_of(hour, tmp_path, prices=PRICES), CARD, "/?from=now-1h&rank=calls # Waste")


def test_without_prices_there_is_no_money(hour: Store, tmp_path: Path) -> None:
    check_views("waste", source_of(hour, tmp_path), CARD)


def test_a_fleet_without_waste_has_no_card(store: Store, tmp_path: Path) -> None:
    write_requests(store, Series("bare", "1", "prod"))
    check_views("waste_none", source_of(store, tmp_path, prices=PRICES), CARD)
