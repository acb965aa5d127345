"""Evaluation from requests in the store to incidents, with real histograms and queries, and a clock set by the test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select

from stagelens.alerts.delivery.channels import ChannelEntry
from stagelens.alerts.delivery.message import Finding
from stagelens.alerts.delivery.message_text import headline
from stagelens.alerts.evaluation.alert_rules import absence_causes, describe_burn
from stagelens.alerts.evaluation.evaluator import Evaluator
from stagelens.alerts.evaluation.slo_status import Measurement, measure_slo
from stagelens.alerts.incidents import journal
from stagelens.alerts.objectives.slo import Slo
from stagelens.alerts.objectives.slo_file import Definitions
from stagelens.alerts.reader import Incident
from stagelens.alerts.schema import metadata, outbox
from stagelens.analysis.burn_rate import Onset, find_onset
from stagelens.analysis.policies import BurnRatePolicy, default_burn_rate_policy, default_incident_policy
from stagelens.core.code_stack import CodeFrame, stack_key
from stagelens.store import Reader, Store
from tests.alerts.stored import stored_incidents
from tests.alerts.traffic import FAST, LATENCY, NOW, SLOW, Traffic

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
WORSE = {"forward": 0.060, "preprocess": 0.050, "queue": 0.042, "overhead": 0.041}
QUEUED = {"forward": 0.020, "preprocess": 0.010, "queue": 0.400, "overhead": 0.001}
MIXED, PRE = {4: FAST, 16: SLOW}, "preprocess"
LATE = (5, 5, {1: QUEUED}, "3")
DEFINITIONS = Definitions(
    (LATENCY,), (ChannelEntry("slack", "slack", None, "SLACK_WEBHOOK_URL"),), "http://127.0.0.1:8600"
)


def ticks(evaluator: Evaluator, start: datetime, length: timedelta, **changes: Any) -> list[str]:
    events: list[str] = []
    now = start
    while now < start + length:
        events += [turn.event for turn in evaluator.tick(replace(DEFINITIONS, **changes), now)]
        now += timedelta(seconds=10)
    return events


def evaluated(evaluator: Evaluator, traffic: Traffic) -> Incident:
    evaluator.tick(DEFINITIONS, NOW)
    return stored_incidents(traffic.store)[0]


def code_of(stages: Mapping[str, float]) -> dict[str, float]:
    decode = min(stages["preprocess"], 0.040)
    found = {stack_key("preprocess", [CodeFrame("serve", "decode", "serve.py", 28)]): decode}
    resize = [CodeFrame("serve", "resize", "serve.py", 41), CodeFrame("PIL.Image", "resize", "PIL/Image.py", 2261)]
    found[stack_key("preprocess", resize)] = stages["preprocess"] - decode
    return {key: seconds for key, seconds in found.items() if seconds}


def test_a_slow_release_pages_and_names_its_stage_and_function(traffic: Traffic, evaluator: Evaluator) -> None:
    traffic(NOW - HOUR, 50 * MINUTE, {200: FAST}, version="1", code=code_of)
    traffic(NOW - 10 * MINUTE, 10 * MINUTE, {20: FAST, 180: SLOW}, version="2", code=code_of)
    found = evaluated(evaluator, traffic)
    start, end = (int(at.timestamp() * 1000) for at in (NOW - 25 * MINUTE, NOW))

    assert (found.severity, found.state, found.version, found.since) == ("page", "open", "2", NOW - 10 * MINUTE)
    assert found.headline.endswith(" — preprocess grew +381 ms at p99, 92 % in resize (serve.py:41) since version 2")
    assert found.stages[0].stage == "preprocess"
    assert found.stages[0].seconds == pytest.approx(0.380, rel=0.03)
    assert found.stages[0].share == pytest.approx(0.95, abs=0.02)
    assert [function.title for function in found.functions] == ["resize (serve.py:41)", "decode (serve.py:28)"]
    assert {function.stage for function in found.functions} == {"preprocess"}
    assert (found.functions[0].before_ms, found.functions[0].after_ms) == (0, pytest.approx(350, rel=0.03))
    assert found.link == f"http://127.0.0.1:8600/s/magika-demo?p=99&from={start}&to={end}"
    assert [(row.channel, row.state) for row in found.deliveries] == [("slack", "waiting")]


def test_a_function_known_later_is_notified_once(traffic: Traffic, evaluator: Evaluator) -> None:
    traffic(NOW - HOUR, 50 * MINUTE, {200: FAST}, code=code_of)
    traffic(NOW - 10 * MINUTE, 10 * MINUTE, {20: FAST, 180: SLOW})
    events = [turn.event for turn in evaluator.tick(DEFINITIONS, NOW)]
    traffic(NOW, MINUTE, {20: FAST, 180: SLOW}, code=code_of)
    events += ticks(evaluator, NOW + MINUTE, MINUTE)
    (found,) = stored_incidents(traffic.store)

    assert events == ["opened", "updated"]
    assert [transition.headline.split(" — ")[1][:23] for transition in found.transitions] == [
        "slow requests spend +38",
        "preprocess grew +381 ms",
    ]


def test_without_samples_before_the_onset_no_function_is_named(traffic: Traffic, evaluator: Evaluator) -> None:
    traffic(NOW - HOUR, 50 * MINUTE, {200: FAST})
    traffic(NOW - 10 * MINUTE, 10 * MINUTE, {20: FAST, 180: SLOW}, code=code_of)
    found = evaluated(evaluator, traffic)

    assert "slow requests spend +380 ms (95 % of the excess) in preprocess" in found.headline
    assert found.functions == ()


@pytest.mark.parametrize(
    ("requests", "version", "stage"),
    [
        # Minutes before now, length in minutes, requests, and their version.
        ([(420, 10, {1: FAST}, "1"), (60, 50, {3: FAST}, "1"), (4, 4, {10: FAST, 29: WORSE, 1: SLOW}, "2")], "2", PRE),
        ([(60, 45, {100: FAST}, "1"), (15, 15, {10: FAST, 90: QUEUED}, "1")], "", "queue"),
        ([(180, 120, {10: FAST}, "1"), (60, 45, {10: FAST}, "2"), (15, 15, {100: QUEUED}, "2"), LATE], "", "queue"),
        ([(120, 100, {40: FAST}, "1"), (20, 10, {19: FAST, 1: SLOW}, "1"), (10, 10, MIXED, "2")], "2", PRE),
        ([(120, 110, {40: FAST}, "1"), (10, 10, MIXED, "1"), (10, 10, MIXED, "2")], "", PRE),
    ],
    ids=["stage of its bad requests", "no release", "old release", "within error bounds", "equal to its predecessor"],
)
def test_a_release_is_blamed_for_a_problem_that_starts_with_it(
    traffic: Traffic, evaluator: Evaluator, requests: list[tuple[int, int, Any, str]], version: str, stage: str
) -> None:
    for before, length, mix, served in requests:
        traffic(NOW - before * MINUTE, length * MINUTE, mix, version=served)
    found = evaluated(evaluator, traffic)

    assert (found.version, found.stages[0].stage) == (version, stage)
    assert found.headline.endswith(f"in {stage}{' since version 2' if version else ''}")
    assert len(requests) < 3 or version == "" or abs(found.since - (NOW - requests[2][0] * MINUTE)) <= 2 * MINUTE


def test_failures_burn_an_availability_slo(traffic: Traffic, evaluator: Evaluator) -> None:
    traffic(NOW - HOUR, HOUR, {90: FAST}, errors=30)
    slo = replace(LATENCY, name="up", threshold=None)
    turns = evaluator.tick(replace(DEFINITIONS, slos=(slo,)), NOW)

    assert headline(journal.message_for(turns[0], 0.0)).endswith(
        "25 % of requests fail (10,800 of 43,200 since the onset)"
    )


def test_an_incident_is_opened_resolved_and_reopened(traffic: Traffic, evaluator: Evaluator) -> None:
    traffic(NOW - 2 * HOUR, 110 * MINUTE, {50: FAST})
    traffic(NOW - 10 * MINUTE, 10 * MINUTE, {50: SLOW})
    burning = ticks(evaluator, NOW, MINUTE)
    traffic(NOW, HOUR, {50: FAST})
    over = ticks(evaluator, NOW + 30 * MINUTE, 5 * MINUTE)
    traffic(NOW + 35 * MINUTE, 8 * MINUTE, {2: FAST, 98: QUEUED})
    again = ticks(evaluator, NOW + 42 * MINUTE, MINUTE)
    found = stored_incidents(traffic.store)

    assert (burning, over, again) == (["opened"], ["resolved"], ["reopened"])
    assert len(found) == 1
    assert [row.transition for row in found[0].deliveries] == ["opened", "resolved", "reopened"]


def test_without_data_the_state_is_unchanged(traffic: Traffic, evaluator: Evaluator) -> None:
    traffic(NOW - HOUR, HOUR, {50: SLOW})
    evaluator.tick(DEFINITIONS, NOW)
    later = evaluator.tick(DEFINITIONS, NOW + 20 * HOUR)

    assert later == []
    assert stored_incidents(traffic.store)[0].state == "open"


def test_two_processes_open_one_incident(store: Store, traffic: Traffic, evaluator: Evaluator) -> None:
    traffic(NOW - HOUR, 2 * HOUR, {50: SLOW})
    other = Evaluator(store, "other", lease_seconds=30)
    first, second = evaluator.tick(DEFINITIONS, NOW), other.tick(DEFINITIONS, NOW)
    with store.engine.connect() as connection:
        outbox_ids = connection.execute(select(outbox.c.id)).all()
    other.tick(DEFINITIONS, NOW + timedelta(seconds=31))

    assert ([turn.event for turn in first], second) == (["opened"], [])
    assert len(outbox_ids) == 1
    assert evaluator.tick(DEFINITIONS, NOW + timedelta(seconds=32)) == []
    assert len(stored_incidents(store)) == 1


def test_an_slo_that_was_removed_leaves_no_open_incident(traffic: Traffic, evaluator: Evaluator) -> None:
    traffic(NOW - HOUR, HOUR, {50: SLOW})
    evaluator.tick(DEFINITIONS, NOW)
    events = ticks(evaluator, NOW, timedelta(seconds=10), slos=())
    found = stored_incidents(traffic.store)[0]

    assert (events, found.state) == (["resolved"], "resolved")
    assert "its SLO was removed; closed with unknown outcome" in found.headline


def test_old_incidents_are_deleted(store: Store, traffic: Traffic, evaluator: Evaluator) -> None:
    traffic(NOW - HOUR, HOUR, {50: SLOW})
    evaluator.tick(DEFINITIONS, NOW)
    evaluator.tick(replace(DEFINITIONS, slos=()), NOW)
    still = replace(LATENCY, name="still-open")
    evaluator.tick(replace(DEFINITIONS, slos=(still,)), NOW)
    left: list[dict[str, int]] = []
    for days in (394, 396, 397):
        if days != 396:
            traffic(NOW + timedelta(days=days) - MINUTE, MINUTE, {50: SLOW})
        evaluator.tick(replace(DEFINITIONS, slos=(still,)), NOW + timedelta(days=days))
        with store.engine.connect() as connection:
            counts = {table.name: len(connection.execute(select(table)).all()) for table in metadata.sorted_tables}
        left.append({name: number for name, number in counts.items() if number})

    assert left == [
        {"incidents": 2, "incident_transitions": 3, "outbox": 3},
        {"incidents": 2, "incident_transitions": 3, "outbox": 3},
        {"incidents": 1, "incident_transitions": 1, "outbox": 1},
    ]


def test_an_slo_of_a_version_covers_the_time_of_that_version(store: Store, traffic: Traffic) -> None:
    traffic(NOW - timedelta(days=20), HOUR, {50: FAST}, version="1")
    traffic(NOW - HOUR, HOUR, {50: SLOW, 51: FAST}, version="2")
    about = replace(LATENCY, version="2")
    measured = measure_slo(store.read, about, default_burn_rate_policy(), NOW)
    month_of_requests = 101 * 360 * 24 * 30

    assert measured.budget.left == pytest.approx(1 - 50 * 360 / (0.01 * month_of_requests))


def test_an_slo_error_does_not_stop_other_slos(traffic: Traffic, evaluator: Evaluator) -> None:
    traffic(NOW - HOUR, HOUR, {50: SLOW})
    broken = replace(LATENCY, name="broken", objective=1.0)
    with pytest.raises(ZeroDivisionError):
        evaluator.tick(replace(DEFINITIONS, slos=(broken, LATENCY)), NOW)

    assert [incident.name for incident in stored_incidents(traffic.store)] == ["magika-latency"]


def test_an_slo_without_new_data_is_evaluated_once_a_minute(
    store: Store, traffic: Traffic, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluated: list[datetime] = []

    def evaluate(_read: Reader, _slo: Slo, _policy: BurnRatePolicy, at: datetime, **_: Any) -> None:
        evaluated.append(at)

    monkeypatch.setattr("stagelens.alerts.evaluation.evaluator.evaluate_slo", evaluate)
    evaluator = Evaluator(store, "me", lease_seconds=30)
    start = NOW.replace(second=0)
    traffic(start - MINUTE, MINUTE, {1: FAST})
    ticks(evaluator, start, MINUTE)
    assert evaluated == [start]
    traffic(start - MINUTE, timedelta(seconds=10), {1: FAST})
    ticks(evaluator, start + timedelta(seconds=50), MINUTE)
    assert evaluated[1:] == [start + timedelta(seconds=50), start + MINUTE]


def test_the_evidence_of_a_long_incident_is_read_again_less_often(
    traffic: Traffic, evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    traffic(NOW - HOUR, HOUR, {1: FAST})
    traffic(NOW, 22 * MINUTE, {1: SLOW})
    ticks(evaluator, NOW, 20 * MINUTE)
    read_at: list[datetime] = []

    def describe(read: Reader, measured: Measurement, at: datetime, **options: Any) -> Finding | None:
        read_at.append(at)
        return describe_burn(read, measured, at, **options)

    monkeypatch.setattr("stagelens.alerts.evaluation.alert_rules.describe_burn", describe)
    ticks(evaluator, NOW + 20 * MINUTE, 2 * MINUTE)
    # Every minute, of twelve evaluations.
    assert len(read_at) in (1, 2)


def test_the_onset_is_the_start_of_the_last_bad_stretch() -> None:
    bad_minutes = (0, 60, 63, 64)
    buckets = [(NOW + minute * MINUTE, 100.0, 50.0 if minute in bad_minutes else 0.0) for minute in range(66)]
    # Bad minutes before a bad stretch are not the onset.
    shares = [0.0] * 30 + [0.1, 0.0, 0.1, 0.0, 0.0, 0.0, 0.1, 0.0, 0.0, 0.0] + [0.6] * 5
    found = find_onset([(NOW + n * MINUTE, 100.0, 100 * share) for n, share in enumerate(shares)], 0.99, 7.2, NOW)

    assert find_onset(buckets, 0.99, 7.2, NOW).at == NOW + 60 * MINUTE
    assert find_onset([], 0.99, 7.2, NOW) == Onset(NOW, NOW, NOW)
    assert found.earliest <= found.at == NOW + 40 * MINUTE <= found.latest
    assert found.latest - found.earliest <= 4 * MINUTE


def test_an_onset_of_few_requests_has_error_bounds() -> None:
    buckets = [(NOW + n * MINUTE, 2.0, 1.0 if n >= 30 and n % 2 == 0 else 0.0) for n in range(50)]
    found = find_onset(buckets, 0.99, 7.2, NOW)

    assert found.earliest < NOW + 30 * MINUTE < found.latest
    assert 4 * MINUTE <= found.latest - found.earliest <= 20 * MINUTE


COLD = {"forward": 0.020, "load": 4.0}
UP = Slo("up", "magika-demo", 0.999, timedelta(days=30))


def paged(evaluator: Evaluator, start: datetime, length: timedelta) -> dict[str, timedelta]:
    found: dict[str, timedelta] = {}
    for tick in range(1, round(length / timedelta(seconds=10)) + 1):
        now = start + tick * timedelta(seconds=10)
        for turn in evaluator.tick(replace(DEFINITIONS, slos=(UP, LATENCY)), now):
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

    assert paged(evaluator, NOW, 6 * MINUTE) == {"up": after, "magika-latency": after}


def test_the_time_to_page_of_an_old_service_matches_the_workbook(traffic: Traffic, evaluator: Evaluator) -> None:
    traffic(NOW - timedelta(hours=7), timedelta(hours=7), {1: FAST})
    traffic(NOW, 2 * MINUTE, {}, errors=1)

    assert paged(evaluator, NOW, 2 * MINUTE) == {"up": MINUTE}


def test_missing_traffic_and_its_return_are_notified(traffic: Traffic, evaluator: Evaluator) -> None:
    traffic(NOW - timedelta(days=1) - HOUR, 2 * HOUR, {2: FAST})
    traffic(NOW - HOUR, 40 * MINUTE, {2: FAST})
    # Requests to another service show that the collector works.
    traffic(NOW - HOUR, 2 * HOUR, {2: FAST}, service="other")
    opening = [turn.event for turn in evaluator.tick(DEFINITIONS, NOW)]
    found = stored_incidents(traffic.store)[0]
    traffic(NOW + 10 * MINUTE, 30 * MINUTE, {2: FAST})
    over = [turn.event for minute in (20, 21, 23) for turn in evaluator.tick(DEFINITIONS, NOW + minute * MINUTE)]

    assert (opening, over) == (["opened"], ["resolved"])
    assert found.headline == "magika-demo: traffic stopped — no request in 15 minutes"
    assert found.impact.startswith("No request in 15 minutes; 180 arrived in the same period 1 day before.")
    assert (found.kind, found.severity, found.since) == ("no_data", "ticket", NOW - 20 * MINUTE - timedelta(seconds=10))


@pytest.mark.parametrize("before", [[timedelta(days=1) + 3 * HOUR], []], ids=["idle at this time a day ago", "young"])
def test_traffic_that_is_not_usual_is_not_missing(
    traffic: Traffic, evaluator: Evaluator, before: list[timedelta]
) -> None:
    for start in before:
        traffic(NOW - start, HOUR, {2: FAST})
    traffic(NOW - HOUR, 40 * MINUTE, {2: FAST})
    traffic(NOW - HOUR, HOUR, {2: FAST}, service="other")

    assert evaluator.tick(DEFINITIONS, NOW) == []


def test_severity_none_opens_no_incident(store: Store, traffic: Traffic) -> None:
    traffic(NOW - timedelta(days=1) - HOUR, 2 * HOUR, {2: FAST})
    traffic(NOW - 2 * HOUR, 30 * MINUTE, {2: FAST})
    traffic(NOW - HOUR, HOUR, {2: FAST}, service="other")
    policy = default_incident_policy()
    silent = replace(policy, no_data=replace(policy.no_data, severity="none"))
    updates = Evaluator(store, "me", lease_seconds=30, incident_policy=silent).tick(DEFINITIONS, NOW)

    assert updates == []


def test_every_service_and_environment_has_one_cause() -> None:
    slos = [LATENCY, replace(LATENCY, name="b", route="/x"), replace(LATENCY, name="c", environment="prod")]

    assert list(absence_causes(slos)) == ["no_data::magika-demo", "no_data:prod:magika-demo"]
