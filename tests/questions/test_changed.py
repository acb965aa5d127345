"""What changed: no data, failures and latency, in this order, from the counts of a real store."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from stagelens.questions.changed import FailureShare, explain_regression, explain_violations
from stagelens.store import Batch, Indicator, Selection, Series, Store
from tests.alerts.traffic import NOW, Clock, Traffic, request_points
from tests.support.raw_requests import Request, retained

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
FAST = {"forward": 0.020, "queue": 0.002}
SLOW = {"forward": 0.020, "queue": 0.400}
LATENCY, AVAILABILITY = Indicator("latency", 0.25), Indicator("availability")
SHOP = Selection(NOW - HOUR, NOW, service="shop")
Fail = Callable[..., None]
_numbers = itertools.count(1)


@pytest.fixture
def store(open_store: Callable[..., Store]) -> Store:
    return open_store(clock=Clock(NOW))


@pytest.fixture
def traffic(store: Store) -> Traffic:
    return Traffic(store, Clock(NOW))


@pytest.fixture
def fail(store: Store) -> Fail:
    def written(route: str, count: int, error: str, stages: dict[str, float], *spans: dict[str, Any]) -> None:
        series, at = Series("shop", "1", "", "", "", route, "", "error"), NOW - 10 * MINUTE
        total = round(sum(stages.values()) * 1e9)
        request = Request({"queue": total}, int(at.timestamp()), series)
        kept = [
            replace(
                retained(request, next(_numbers), "error"),
                spans=[{"name": "", "stage": "", "start_ns": 0, "duration_ns": 1} | span for span in spans],
                attributes={"error.type": error},
            )
            for _ in range(min(count, 5))
        ]
        store.write([Batch(f"failed:{route}:{error}", request_points(series, at, count, stages), kept)])

    return written


def test_without_requests_there_is_no_data(store: Store) -> None:
    assert [explain_violations(store.read, SHOP, each).kind for each in (LATENCY, AVAILABILITY)] == ["no_data"] * 2


@pytest.mark.parametrize("indicator", [LATENCY, AVAILABILITY])
@pytest.mark.parametrize("stages", [{"queue": 0.003}, {"queue": 9.0}], ids=["at once", "after a timeout"])
def test_a_stage_is_never_blamed_for_failures(
    store: Store, traffic: Traffic, fail: Fail, indicator: Indicator, stages: dict[str, float]
) -> None:
    traffic(NOW - HOUR, HOUR, {1: FAST}, service="shop")
    fail("/pay", 300, "ReadTimeout", stages)
    fail("/cart", 60, "ValueError", stages)
    found = explain_violations(store.read, SHOP, indicator)

    assert (found.kind, found.growth) == ("failures", ())
    assert found.failures is not None
    assert (found.failures.failed, found.failures.bad, found.failures.requests) == (360, 360, 720)
    assert found.failures.route == FailureShare("/pay", 300, 360)
    assert found.failures.error == FailureShare("ReadTimeout", 5, 5)


def test_a_slow_stage_is_named_beside_failures(store: Store, traffic: Traffic, fail: Fail) -> None:
    traffic(NOW - HOUR, HOUR, {9: FAST, 1: SLOW}, service="shop")
    fail("/pay", 700, "ReadTimeout", {"postprocess": 20.0})
    found = explain_violations(store.read, SHOP, LATENCY)

    assert found.kind == "failures"
    assert [each.stage for each in found.growth] == ["queue"]
    assert found.growth[0].seconds == pytest.approx(0.398, rel=0.02)


def test_few_failures_do_not_hide_slow_requests(store: Store, traffic: Traffic, fail: Fail) -> None:
    traffic(NOW - HOUR, HOUR, {8: FAST, 2: SLOW}, service="shop")
    fail("/pay", 100, "ReadTimeout", {"postprocess": 20.0})
    found = explain_violations(store.read, SHOP, LATENCY)

    assert (found.kind, found.growth[0].stage) == ("latency", "queue")
    assert found.failures is not None
    assert found.failures.failed == 100


@pytest.mark.parametrize("kind", ["ttft", "stage", "coverage"])
def test_other_kinds_of_objectives_are_explained_by_their_own_requests(
    store: Store, traffic: Traffic, kind: Any
) -> None:
    traffic(NOW - HOUR, HOUR, {8: FAST, 2: SLOW}, service="shop", errors=5)
    indicator = Indicator(kind, None if kind == "coverage" else 0.05, "queue" if kind == "stage" else None)
    found = explain_violations(store.read, SHOP, indicator)

    assert (found.kind, found.failures) == ("no_data" if kind == "ttft" else "none", None)


def test_a_failed_call_names_its_dependency(store: Store, fail: Fail) -> None:
    fail(
        "/a",
        4,
        "InferenceServerException",
        {"queue": 1.0},
        {"attributes": {"inference.call.failure": "triton:timeout"}},
    )
    found = explain_violations(store.read, SHOP, AVAILABILITY)
    assert found.failures is not None
    assert found.failures.dependency == FailureShare("triton", 4, 4)

    fail("/b", 40, "503", {"queue": 1.0}, {"attributes": {"error.type": "503", "server.address": "ranker.internal"}})
    found = explain_violations(store.read, Selection(SHOP.start, NOW, service="shop", route="/b"), AVAILABILITY)
    assert found.failures is not None
    assert (found.failures.route, found.failures.dependency) == (None, FailureShare("ranker.internal", 5, 5))


def test_a_regression_of_timeouts_is_one_of_failures(store: Store, traffic: Traffic, fail: Fail) -> None:
    traffic(NOW - HOUR, HOUR, {10: FAST}, service="shop")
    fail("/pay", 100, "ReadTimeout", {"dependency": 9.0})
    found = explain_regression(store.read, SHOP, 0.1, ())

    assert (found.kind, found.bad) == ("failures", 100)
