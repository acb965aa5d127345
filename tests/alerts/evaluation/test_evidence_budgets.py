"""Stage budgets: exceeded budgets and their excess."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from stagelens.alerts.evaluation.evidence import stage_budgets
from stagelens.alerts.objectives.slo import Slo
from stagelens.store import Store
from tests.alerts.traffic import NOW

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
FAST = {"forward": 0.100, "queue": 0.010}
QUEUED = {"forward": 0.120, "queue": 0.300}
SPLIT = Slo(
    "magika-latency",
    "magika-demo",
    0.95,
    timedelta(days=30),
    timedelta(milliseconds=350),
    budgets=(("forward", timedelta(milliseconds=200)), ("queue", timedelta(milliseconds=50)), ("decode", MINUTE / 600)),
)

Traffic = Callable[..., None]


def test_the_exceeded_budget_is_named_with_its_excess(store: Store, traffic: Traffic) -> None:
    traffic(NOW - HOUR, HOUR, {9: FAST, 1: QUEUED})
    split = stage_budgets(store.read, SPLIT, NOW - HOUR, NOW)
    assert split is not None
    queue = split.uses[0]

    assert [use.stage for use in split.uses] == ["queue", "forward", "decode"]
    assert queue.seconds == pytest.approx(0.3, rel=0.02)
    assert queue.over_seconds == pytest.approx(0.25, rel=0.03)
    assert queue.mean_seconds == pytest.approx(0.039, rel=0.02)
    assert split.broken == (queue,)


def test_stages_without_a_budget_are_the_remainder(store: Store, traffic: Traffic) -> None:
    traffic(NOW - HOUR, HOUR, {9: FAST, 1: QUEUED})
    split = stage_budgets(store.read, replace(SPLIT, budgets=(("queue", timedelta(milliseconds=50)),)), NOW - HOUR, NOW)
    assert split is not None

    assert split.requests == 10 * 360
    assert (split.rest_seconds, split.rest_mean_seconds) == pytest.approx((0.12, 0.102), rel=0.02)
    assert split.seconds == pytest.approx(0.42, rel=0.02)


def test_without_budgets_or_requests_there_is_no_split(store: Store, traffic: Traffic) -> None:
    traffic(NOW - HOUR, MINUTE, {1: FAST})

    assert stage_budgets(store.read, replace(SPLIT, budgets=()), NOW - HOUR, NOW) is None
    assert stage_budgets(store.read, SPLIT, NOW - 3 * HOUR, NOW - 2 * HOUR) is None
