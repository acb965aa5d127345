"""Waste of services: money only with a price, idle time only with a utilization."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelens.analysis.costs import Waste, WasteKind, largest_waste, most_wasteful

OCR = Waste("ocr", 3600.0, per_hour=10.0, replicas=2, busy=0.2, queue_seconds=5.0, load_seconds=360.0)
CHAT = Waste("chat", 3600.0, busy=0.1, queue_seconds=900.0, failed_calls=3, failed_seconds=40.0)
BARE = Waste("bare", 3600.0, per_hour=50.0)


def test_nothing_is_invented() -> None:
    assert (OCR.idle_cost, OCR.load_cost) == (8.0, 0.5)
    assert (CHAT.cost, CHAT.idle_cost, CHAT.load_cost) == (None, None, None)
    assert (BARE.cost, BARE.idle_cost, BARE.load_cost) == (50.0, None, None)


@pytest.mark.parametrize(
    ("kind", "services"),
    [("idle", ["ocr", "chat"]), ("queue", ["chat", "ocr"]), ("calls", ["chat"]), ("loads", ["ocr"])],
)
def test_services_are_ranked_by_each_kind(kind: WasteKind, services: list[str]) -> None:
    assert [each.service for each in most_wasteful([BARE, CHAT, OCR], kind)] == services


def test_the_largest_waste_is_in_money_if_any_is() -> None:
    assert largest_waste([BARE, CHAT, OCR]) == ("idle", OCR)
    assert largest_waste([BARE, CHAT]) == ("queue", CHAT)
    assert largest_waste([BARE]) is None
    assert largest_waste([]) is None


@given(st.floats(0, 1e6), st.floats(1, 1e9), st.floats(0, 1))
def test_idle_cost_is_a_part_of_the_cost(per_hour: float, seconds: float, busy: float) -> None:
    waste = Waste("x", seconds, per_hour=per_hour, busy=busy)

    assert waste.cost is not None
    assert waste.idle_cost is not None
    assert 0 <= waste.idle_cost <= waste.cost
