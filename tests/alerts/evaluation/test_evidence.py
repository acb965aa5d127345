"""Evidence in messages: time series, slow requests, exceeded stage budgets, and the link to the dashboard."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from stagelens.alerts.delivery.channels.webhook import webhook_payload
from stagelens.alerts.delivery.message import Finding, Message
from stagelens.alerts.delivery.message_text import message_facts
from stagelens.alerts.evaluation.alert_rules import describe_burn
from stagelens.alerts.evaluation.evidence import (
    burn_rate_trend,
    dashboard_link,
    exemplars_of,
    no_exemplar_text,
    stage_budgets,
)
from stagelens.alerts.evaluation.slo_status import measure_slo
from stagelens.alerts.objectives.slo import Slo
from stagelens.alerts.regression.findings import latency_trend as course_of_tail
from stagelens.analysis.policies import default_burn_rate_policy
from stagelens.questions.changed import Explanation
from stagelens.store import Batch, Store
from stagelens.store.records import RetainedTrace
from stagelens.store.series import Series
from tests.alerts.traffic import FAST, LATENCY, NOW, SLOW, Traffic

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
DASHBOARD = "http://127.0.0.1:8600"

StoreTrace = Callable[..., None]


@pytest.fixture
def store_trace(store: Store) -> StoreTrace:
    def written(number: int, seconds: float, stage: str, *, before: timedelta = MINUTE, status: str = "ok") -> None:
        series = Series("magika-demo", "1", status=status)
        duration, started = round(seconds * 1e9), round((NOW - before).timestamp() * 1e9)
        stages = {stage: duration * 3 // 4, "overhead": duration - duration * 3 // 4}
        trace = RetainedTrace(f"{number:032x}", f"{number:016x}", series, started, duration, "slow", stage, stages)
        store.write([Batch(f"kept:{number}", [], [trace])])

    return written


def test_the_slowest_request_of_each_cause_is_shown(store: Store, store_trace: StoreTrace) -> None:
    store_trace(1, 0.9, "preprocess")
    store_trace(2, 0.8, "preprocess")
    store_trace(3, 0.5, "queue")
    store_trace(4, 0.2, "forward")
    store_trace(5, 2.0, "load", before=HOUR)
    store_trace(6, 0.3, "forward")
    found = exemplars_of(store.read, LATENCY, NOW - 10 * MINUTE, NOW, DASHBOARD, cause="latency")

    assert [(each.seconds, each.stage) for each in found] == [(0.9, "preprocess"), (0.5, "queue"), (0.3, "forward")]
    assert found[0].stage_seconds == pytest.approx(0.675)
    assert found[0].trace == f"{1:032x}-{1:016x}"
    assert found[0].link == f"{DASHBOARD}/traces/{1:032x}-{1:016x}"


def test_stage_slo_evidence_is_requests_slow_in_the_stage(store: Store, store_trace: StoreTrace) -> None:
    store_trace(1, 0.9, "preprocess")
    store_trace(2, 0.8, "queue")
    store_trace(3, 0.1, "queue")
    slo = replace(LATENCY, watched="stage", stage="queue")
    found = exemplars_of(store.read, slo, NOW - 10 * MINUTE, NOW, "", cause="latency")

    assert [(each.seconds, each.stage, each.stage_seconds) for each in found] == [(0.8, "queue", pytest.approx(0.6))]


def test_fast_failures_are_found_behind_many_slow_requests(store: Store, store_trace: StoreTrace) -> None:
    for number in range(2, 60):
        store_trace(number, 0.2 + number / 1000, "forward")
    store_trace(1, 0.002, "queue", status="error")
    for slo in (LATENCY, replace(LATENCY, threshold=None)):
        found = exemplars_of(store.read, slo, NOW - 10 * MINUTE, NOW, "", cause="failures")

        assert [(each.seconds, each.failed, each.link) for each in found] == [(0.002, True, "")]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, "No retained request broke the objective of 250 ms: 2 of 4,310 did, and none was sampled."),
        ({"threshold": None}, "No failed request is retained: 2 of 4,310 failed, and none was sampled."),
        (
            {"watched": "stage", "stage": "queue"},
            "No retained request broke the objective of 250 ms in Queue: 2 of 4,310 did, and none was sampled.",
        ),
        ({"watched": "ttft"}, "Retained requests do not record the time to their first token."),
        ({"watched": "tpot"}, "Retained requests do not record their time per token."),
        (
            {"watched": "coverage", "threshold": None},
            "The objective limits a share of the time of all requests, which no single request breaks.",
        ),
        ({"watched": "freshness"}, "The objective limits the age of data, which no request shows."),
    ],
)
def test_healthy_requests_are_never_evidence(
    changes: dict[str, Any], reason: str, store: Store, store_trace: StoreTrace
) -> None:
    store_trace(1, 0.106, "forward")
    store_trace(2, 0.240, "queue")
    slo = replace(LATENCY, **changes)

    assert exemplars_of(store.read, slo, NOW - 10 * MINUTE, NOW, "", cause="latency") == ()
    assert no_exemplar_text(slo.indicator, Explanation("latency", requests=4310, bad=2)) == reason


def test_the_time_series_starts_before_the_onset(store: Store, traffic: Traffic) -> None:
    traffic(NOW - 40 * MINUTE, 20 * MINUTE, {2: FAST})
    traffic(NOW - 15 * MINUTE, 15 * MINUTE, {1: FAST, 3: SLOW})
    drawn = burn_rate_trend(store.read, LATENCY, NOW - 15 * MINUTE, NOW)
    assert drawn is not None

    assert (drawn.step_seconds, len(drawn.values)) == (60.0, 30)
    assert (drawn.start, drawn.end) == ((NOW - 30 * MINUTE).timestamp(), NOW.timestamp())
    assert drawn.values[:10] == (0.0,) * 10
    assert drawn.values[10:15] == (None,) * 5
    assert drawn.values[15:] == pytest.approx([75.0] * 15)


def test_the_time_series_of_a_regression_starts_at_its_time(store: Store, traffic: Traffic) -> None:
    traffic(NOW - 20 * MINUTE, 20 * MINUTE, {5: FAST})
    times = [round(at.timestamp()) // 60 for at in (NOW - 10 * MINUTE, NOW - 10 * MINUTE, NOW)]
    drawn = course_of_tail(store.read, LATENCY, (times[0], times[1], times[2]), 0.99)
    assert drawn is not None

    assert (drawn.start, drawn.end) == ((NOW - 25 * MINUTE).timestamp(), NOW.timestamp())
    assert [value is None for value in drawn.values] == [True] * 5 + [False] * 20


def test_without_requests_there_is_no_time_series(store: Store) -> None:
    assert burn_rate_trend(store.read, LATENCY, NOW - HOUR, NOW) is None


def described(store: Store, slo: Slo) -> Finding:
    measured = measure_slo(store.read, slo, default_burn_rate_policy(), NOW)
    found = describe_burn(store.read, measured, NOW, before=None, dashboard_url=DASHBOARD)
    assert found is not None
    return found


def test_an_exceeded_stage_budget_is_named(store: Store, traffic: Traffic) -> None:
    traffic(NOW - HOUR, HOUR, {1: FAST, 49: SLOW})
    budgets = (("forward", timedelta(milliseconds=100)), ("preprocess", timedelta(milliseconds=50)))
    slo = replace(LATENCY, budgets=budgets)
    found = described(store, slo)

    assert [(overrun.stage, overrun.budget_seconds) for overrun in found.overruns] == [("preprocess", 0.05)]
    assert found.overruns[0].seconds == pytest.approx(0.390, rel=0.03)


BUDGETED, OVERDRAWN = {"forward": 0.100, "queue": 0.010}, {"forward": 0.120, "queue": 0.300}
SPLIT = replace(
    LATENCY,
    objective=0.95,
    threshold=timedelta(milliseconds=350),
    budgets=(("forward", timedelta(milliseconds=200)), ("queue", timedelta(milliseconds=50)), ("decode", MINUTE / 600)),
)


def test_the_exceeded_budget_is_named_with_its_excess(store: Store, traffic: Traffic) -> None:
    traffic(NOW - HOUR, HOUR, {9: BUDGETED, 1: OVERDRAWN})
    split = stage_budgets(store.read, SPLIT, NOW - HOUR, NOW)
    rest = stage_budgets(store.read, replace(SPLIT, budgets=SPLIT.budgets[1:2]), NOW - HOUR, NOW)
    assert split is not None
    assert rest is not None
    queue = split.uses[0]

    assert [use.stage for use in split.uses] == ["queue", "forward", "decode"]
    assert queue.seconds == pytest.approx(0.3, rel=0.02)
    assert queue.over_seconds == pytest.approx(0.25, rel=0.03)
    assert queue.mean_seconds == pytest.approx(0.039, rel=0.02)
    assert split.broken == (queue,)
    # Stages without a budget are the remainder.
    assert rest.requests == 10 * 360
    assert (rest.rest_seconds, rest.rest_mean_seconds) == pytest.approx((0.12, 0.102), rel=0.02)
    assert rest.seconds == pytest.approx(0.42, rel=0.02)
    assert stage_budgets(store.read, replace(SPLIT, budgets=()), NOW - HOUR, NOW) is None
    assert stage_budgets(store.read, SPLIT, NOW - 3 * HOUR, NOW - 2 * HOUR) is None


def test_what_slow_requests_share_is_named(store: Store, traffic: Traffic) -> None:
    traffic(NOW - HOUR, HOUR, {45: FAST}, version="1")
    traffic(NOW - HOUR, HOUR, {5: SLOW}, version="2")
    found = described(store, LATENCY)

    assert [each.label for each in found.shared] == ["version 2"]
    assert (found.shared[0].share_all, found.shared[0].share_slow) == (pytest.approx(0.1), 1)


@pytest.mark.parametrize(
    ("changes", "environment", "called"),
    [
        ({}, "", "scorer"),
        ({"watched": "stage", "stage": "dependency"}, "", "scorer"),
        # Readers of the incident may not see the other environment, but the host that the service called.
        ({}, "staging", "ranker"),
        ({"environment": ""}, "staging", "ranker"),
    ],
)
def test_the_called_service_is_named_if_dependency_is_blamed(
    changes: dict[str, Any], environment: str, called: str, store: Store, traffic: Traffic
) -> None:
    traffic(NOW - HOUR, HOUR, {8: FAST, 2: {"forward": 0.020, "dependency": 0.400}})
    for number, (host, milliseconds, status) in enumerate(
        [("ranker", 400, "ok"), ("ranker", 400, "ok"), ("users.internal", 5, "ok"), ("bank", 900, "error")], start=1
    ):
        spent, started = milliseconds * 1_000_000, round((NOW - 5 * MINUTE).timestamp() * 1e9)
        span = {"name": "", "stage": "dependency", "start_ns": 0, "duration_ns": spent, "id": f"{number:016x}"}
        span |= {"attributes": {"server.address": host}}
        ids, series = (f"{number:032x}", f"{number:016x}"), Series("magika-demo", "1", status=status)
        trace = RetainedTrace(*ids, series, started, spent, "slow", "dependency", {"dependency": spent}, [span])
        served = replace(trace, span_id=f"{number + 9:016x}", parent_id=ids[1], spans=[])
        served = replace(served, series=Series("scorer", "1", environment))
        store.write([Batch(f"called:{number}", [], [trace, served])])
    found = described(store, replace(LATENCY, **changes))

    assert found.called == f"Of Dependency in 2 retained slow requests: {called} 100 %."
    message = Message("sl-1", 1, "opened", NOW.timestamp(), NOW.timestamp(), found)
    assert dict(message_facts(message))["Called"] == found.called
    assert webhook_payload(message)["called"] == found.called
    assert Finding.from_json({**found.to_json(), "called": ""}).called == ""
    assert Message.from_json(message.to_json()).finding == found


@pytest.mark.parametrize(
    ("changes", "quantile", "address"),
    [
        ({}, 0.0, "/s/magika-demo?p=99&"),
        ({"objective": 0.999}, 0.0, "/s/magika-demo?p=99.9&"),
        ({}, 0.95, "/s/magika-demo?p=95&"),
        ({"version": "v 2", "model": "m/1", "environment": "prod"}, 0.0, "/s/magika-demo?p=99&v=v+2&m=m/1&env=prod&"),
        ({"route": "/v1/{id}"}, 0.0, "/s/magika-demo?p=99&r=/v1/%7Bid%7D&"),
        # Truncated in the same way as in the store, because no vendor accepts a URL of two thousand characters.
        ({"route": "é" * 2000}, 0.0, f"/s/magika-demo?p=99&r={'%C3%A9' * 128}&"),
        ({"watched": "ttft"}, 0.0, "/s/magika-demo/tokens?p=99&"),
        ({"watched": "tpot", "definition": "client"}, 0.0, "/s/magika-demo/tokens?p=99&by=client&"),
        ({"threshold": None, "route": "/a"}, 0.0, "/s/magika-demo/traces?r=/a&err=1&"),
        # A latency regression has a percentile and no threshold.
        ({"threshold": None, "route": "/a"}, 0.95, "/s/magika-demo?p=95&r=/a&"),
        ({"watched": "stage", "stage": "queue"}, 0.0, "/s/magika-demo?p=99&"),
        ({"service": "a/b"}, 0.0, "/s/a~2Fb?p=99&"),
    ],
)
def test_the_link_opens_the_scope_of_the_message(changes: dict[str, Any], quantile: float, address: str) -> None:
    slo = replace(LATENCY, **changes)
    window = f"from={round((NOW - 25 * MINUTE).timestamp() * 1000)}&to={round(NOW.timestamp() * 1000)}"

    assert dashboard_link(DASHBOARD, slo, NOW - 10 * MINUTE, NOW, quantile) == f"{DASHBOARD}{address}{window}"
    assert dashboard_link("", slo, NOW - HOUR, NOW) == ""
