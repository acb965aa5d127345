"""Evaluation of a new service: its first requests send no page, a total outage does."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from stagelens.alerts.delivery.channels import ChannelEntry
from stagelens.alerts.evaluation.evaluator import Evaluator
from stagelens.alerts.objectives.slo import Slo
from stagelens.alerts.objectives.slo_file import Definitions
from tests.alerts.traffic import NOW, Traffic

MINUTE, MONTH = timedelta(minutes=1), timedelta(days=30)
FAST, COLD = {"forward": 0.020}, {"forward": 0.020, "load": 4.0}
UP = Slo("up", "magika-demo", 0.999, MONTH)
FAST_ENOUGH = Slo("latency", "magika-demo", 0.99, MONTH, timedelta(milliseconds=250))
WATCHED = Definitions((UP, FAST_ENOUGH), (ChannelEntry("slack", "slack", None, "SLACK_WEBHOOK_URL"),))


def paged(evaluator: Evaluator, start: datetime, length: timedelta) -> dict[str, timedelta]:
    found: dict[str, timedelta] = {}
    for tick in range(1, round(length / timedelta(seconds=10)) + 1):
        now = start + tick * timedelta(seconds=10)
        for turn in evaluator.tick(WATCHED, now):
            if turn.record.finding.severity == "page":
                found.setdefault(turn.record.finding.name, now - start)
    return found


def test_the_cold_start_of_a_new_service_sends_no_page(traffic: Traffic, evaluator: Evaluator) -> None:
    traffic(NOW, timedelta(seconds=20), {12: FAST, 3: COLD})
    traffic(NOW + timedelta(seconds=20), 10 * MINUTE, {50: FAST})

    assert paged(evaluator, NOW, 10 * MINUTE) == {}


@pytest.mark.parametrize(("every", "after"), [(timedelta(seconds=10), timedelta(seconds=50)), (2 * MINUTE, 5 * MINUTE)])
def test_a_service_that_fails_from_its_first_request_pages_within_minutes(
    traffic: Traffic, evaluator: Evaluator, every: timedelta, after: timedelta
) -> None:
    for number in range(4 if every > MINUTE else 30):
        traffic(NOW + number * every, timedelta(seconds=10), {}, errors=1)

    assert paged(evaluator, NOW, 6 * MINUTE) == {"up": after, "latency": after}


def test_the_time_to_page_of_an_old_service_matches_the_workbook(traffic: Traffic, evaluator: Evaluator) -> None:
    traffic(NOW - timedelta(hours=7), timedelta(hours=7), {1: FAST})
    traffic(NOW, 2 * MINUTE, {}, errors=1)

    assert paged(evaluator, NOW, 2 * MINUTE) == {"up": MINUTE}
