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
from stagelens.alerts.evaluation.alert_rules import describe_burn
from stagelens.alerts.evaluation.evaluator import Evaluator
from stagelens.alerts.evaluation.slo_status import Measurement, measure_slo
from stagelens.alerts.incidents import journal
from stagelens.alerts.objectives.slo import Slo
from stagelens.alerts.objectives.slo_file import Definitions, LiveSloFile
from stagelens.alerts.reader import AlertsReader
from stagelens.alerts.schema import metadata, outbox
from stagelens.analysis.burn_rate import Onset, find_onset
from stagelens.analysis.policies import BurnRatePolicy, default_burn_rate_policy
from stagelens.core.code_stack import CodeFrame, stack_key
from stagelens.store import Reader, Store
from tests.alerts.stored import stored_incidents
from tests.alerts.traffic import FAST, LATENCY, NOW, SLOW, Code, Traffic

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
WORSE = {"forward": 0.060, "preprocess": 0.050, "queue": 0.042, "overhead": 0.041}
QUEUED = {"forward": 0.020, "preprocess": 0.010, "queue": 0.400, "overhead": 0.001}
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


def test_a_slow_release_pages_and_names_its_stage(traffic: Traffic, evaluator: Evaluator) -> None:
    traffic(NOW - HOUR, 50 * MINUTE, {200: FAST}, version="1")
    traffic(NOW - 10 * MINUTE, 10 * MINUTE, {20: FAST, 180: SLOW}, version="2")
    evaluator.tick(DEFINITIONS, NOW)
    found = stored_incidents(traffic.store)[0]

    assert (found.severity, found.state, found.version) == ("page", "open", "2")
    assert found.stages[0].stage == "preprocess"
    assert found.stages[0].seconds == pytest.approx(0.380, rel=0.03)
    assert found.stages[0].share == pytest.approx(0.95, abs=0.02)
    assert "slow requests spend +" in found.headline
    assert found.headline.endswith("since version 2")
    assert found.since == NOW - 10 * MINUTE
    assert found.link == (
        "http://127.0.0.1:8600/s/magika-demo"
        f"?p=99&from={int((NOW - 25 * MINUTE).timestamp() * 1000)}&to={int(NOW.timestamp() * 1000)}"
    )
    assert [(row.channel, row.state) for row in found.deliveries] == [("slack", "waiting")]


def code_of(stages: Mapping[str, float]) -> dict[str, float]:
    decode = min(stages["preprocess"], 0.040)
    found = {stack_key("preprocess", [CodeFrame("serve", "decode", "serve.py", 28)]): decode}
    resize = [CodeFrame("serve", "resize", "serve.py", 41), CodeFrame("PIL.Image", "resize", "PIL/Image.py", 2261)]
    found[stack_key("preprocess", resize)] = stages["preprocess"] - decode
    return {key: seconds for key, seconds in found.items() if seconds}


def test_the_message_names_the_function_of_the_stage(traffic: Traffic, evaluator: Evaluator) -> None:
    traffic(NOW - HOUR, 50 * MINUTE, {200: FAST}, version="1", code=code_of)
    traffic(NOW - 10 * MINUTE, 10 * MINUTE, {20: FAST, 180: SLOW}, version="2", code=code_of)
    evaluator.tick(DEFINITIONS, NOW)
    found = stored_incidents(traffic.store)[0]

    assert found.headline.endswith(" — preprocess grew +381 ms at p99, 92 % in resize (serve.py:41) since version 2")
    assert [(each.title, each.stage) for each in found.functions] == [
        ("resize (serve.py:41)", "preprocess"),
        ("decode (serve.py:28)", "preprocess"),
    ]
    assert (found.functions[0].before_ms, found.functions[0].after_ms) == (0, pytest.approx(350, rel=0.03))
    assert found.stages[0].stage == "preprocess"


def test_a_function_known_later_is_notified_once(traffic: Traffic, evaluator: Evaluator) -> None:
    traffic(NOW - HOUR, 50 * MINUTE, {200: FAST}, code=code_of)
    traffic(NOW - 10 * MINUTE, 10 * MINUTE, {20: FAST, 180: SLOW})
    events = [turn.event for turn in evaluator.tick(DEFINITIONS, NOW)]
    traffic(NOW, MINUTE, {20: FAST, 180: SLOW}, code=code_of)
    events += ticks(evaluator, NOW + MINUTE, MINUTE)
    (found,) = stored_incidents(traffic.store)

    assert events == ["opened", "updated"]
    assert [each.headline.split(" — ")[1][:23] for each in found.transitions] == [
        "slow requests spend +38",
        "preprocess grew +381 ms",
    ]


@pytest.mark.parametrize("sampled", ["before", "since"])
def test_without_samples_on_both_sides_no_function_is_named(
    traffic: Traffic, evaluator: Evaluator, sampled: str
) -> None:
    codes: dict[str, Code] = {sampled: code_of}
    traffic(NOW - HOUR, 50 * MINUTE, {200: FAST}, code=codes.get("before", no_code))
    traffic(NOW - 10 * MINUTE, 10 * MINUTE, {20: FAST, 180: SLOW}, code=codes.get("since", no_code))
    evaluator.tick(DEFINITIONS, NOW)
    found = stored_incidents(traffic.store)[0]

    assert "slow requests spend +380 ms (95 % of the excess) in preprocess" in found.headline
    assert found.functions == ()


def no_code(_stages: Mapping[str, float]) -> dict[str, float]:
    return {}


def test_the_stage_of_a_new_release_is_from_its_bad_requests(traffic: Traffic, evaluator: Evaluator) -> None:
    traffic(NOW - 7 * HOUR, 10 * MINUTE, {1: FAST}, version="1")
    traffic(NOW - HOUR, 50 * MINUTE, {3: FAST}, version="1")
    traffic(NOW - 4 * MINUTE, 4 * MINUTE, {10: FAST, 29: WORSE, 1: SLOW}, version="2")
    evaluator.tick(DEFINITIONS, NOW)
    found = stored_incidents(traffic.store)[0]

    assert (found.stages[0].stage, found.version) == ("preprocess", "2")
    assert found.headline.endswith("in preprocess since version 2")


def test_without_a_release_bad_requests_are_compared_to_good_ones(traffic: Traffic, evaluator: Evaluator) -> None:
    traffic(NOW - HOUR, 45 * MINUTE, {100: FAST})
    traffic(NOW - 15 * MINUTE, 15 * MINUTE, {10: FAST, 90: QUEUED})
    evaluator.tick(DEFINITIONS, NOW)
    found = stored_incidents(traffic.store)[0]

    assert (found.stages[0].stage, found.version) == ("queue", "")
    assert found.headline.endswith("in queue")


def test_an_old_release_is_not_blamed(traffic: Traffic, evaluator: Evaluator) -> None:
    traffic(NOW - 3 * HOUR, 2 * HOUR, {10: FAST}, version="1")
    traffic(NOW - HOUR, 45 * MINUTE, {10: FAST}, version="2")
    traffic(NOW - 15 * MINUTE, 15 * MINUTE, {100: QUEUED}, version="2")
    traffic(NOW - 5 * MINUTE, 5 * MINUTE, {1: QUEUED}, version="3")
    evaluator.tick(DEFINITIONS, NOW)

    assert stored_incidents(traffic.store)[0].version == ""


def test_failures_burn_an_availability_slo(traffic: Traffic, evaluator: Evaluator) -> None:
    traffic(NOW - HOUR, HOUR, {90: FAST}, errors=30)
    slo = replace(LATENCY, name="up", threshold=None)
    turns = evaluator.tick(replace(DEFINITIONS, slos=(slo,)), NOW)

    assert headline(journal.message_for(turns[0], 0.0)).endswith(
        "25 % of requests fail (10,800 of 43,200 since the onset)"
    )


def test_a_single_failure_opens_no_incident(traffic: Traffic, evaluator: Evaluator) -> None:
    traffic(NOW - HOUR, timedelta(seconds=10), {11: FAST, 1: SLOW})

    assert evaluator.tick(DEFINITIONS, NOW) == []
    assert stored_incidents(traffic.store) == []


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
            counts = {each.name: len(connection.execute(select(each)).all()) for each in metadata.sorted_tables}
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


def test_the_reader_returns_the_state_of_each_slo(store: Store, traffic: Traffic, tmp_path: Any) -> None:
    traffic(NOW - HOUR, HOUR, {50: SLOW}, service="slow")
    traffic(NOW - HOUR, HOUR, {999: FAST, 1: SLOW}, service="good")
    path = tmp_path / "slo.yaml"
    lines = [
        f"  - {{name: {name}, service: {name}, objective: 0.99, threshold: 250ms, window: 30d}}"
        for name in ("good", "none", "slow")
    ]
    path.write_text("\n".join(["slos:", *lines]), encoding="utf-8")
    slow, good, none = AlertsReader(store, LiveSloFile(path, {})).slos(NOW)

    assert [(status.slo.name, status.state) for status in (slow, good, none)] == [
        ("slow", "burning"),
        ("good", "healthy"),
        ("none", "no_data"),
    ]
    assert slow.burn_1h == pytest.approx(100)
    assert (none.attained, none.budget_left, none.exhausted_in) == (None, None, None)
    assert good.attained == pytest.approx(0.999)
    assert good.burn_5m == pytest.approx(0.1)
    # One hour of a 30-day window at a tenth of the sustainable rate.
    assert good.budget_left == pytest.approx(1 - 0.1 / 720, abs=1e-5)
    assert good.exhausted_in == pytest.approx(timedelta(days=300), rel=0.01)


def test_the_onset_is_the_start_of_the_last_bad_stretch() -> None:
    bad_minutes = (0, 60, 63, 64)
    buckets = [(NOW + minute * MINUTE, 100.0, 50.0 if minute in bad_minutes else 0.0) for minute in range(66)]

    assert find_onset(buckets, 0.99, 7.2, NOW).at == NOW + 60 * MINUTE
    assert find_onset([], 0.99, 7.2, NOW) == Onset(NOW, NOW, NOW)


def test_a_bad_minute_before_a_bad_stretch_is_not_the_onset() -> None:
    shares = [0.0] * 30 + [0.1, 0.0, 0.1, 0.0, 0.0, 0.0, 0.1, 0.0, 0.0, 0.0] + [0.6] * 5
    found = find_onset([(NOW + n * MINUTE, 100.0, 100 * share) for n, share in enumerate(shares)], 0.99, 7.2, NOW)

    assert found.at == NOW + 40 * MINUTE
    assert found.earliest <= found.at <= found.latest
    assert found.latest - found.earliest <= 4 * MINUTE


def test_an_onset_of_few_requests_has_error_bounds() -> None:
    buckets = [(NOW + n * MINUTE, 2.0, 1.0 if n >= 30 and n % 2 == 0 else 0.0) for n in range(50)]
    found = find_onset(buckets, 0.99, 7.2, NOW)

    assert found.earliest < NOW + 30 * MINUTE < found.latest
    assert 4 * MINUTE <= found.latest - found.earliest <= 20 * MINUTE


def test_a_release_within_the_error_bounds_of_the_onset_is_named(traffic: Traffic, evaluator: Evaluator) -> None:
    traffic(NOW - 2 * HOUR, HOUR + 40 * MINUTE, {40: FAST}, version="1")
    traffic(NOW - 20 * MINUTE, 10 * MINUTE, {19: FAST, 1: SLOW}, version="1")
    traffic(NOW - 10 * MINUTE, 10 * MINUTE, {4: FAST, 16: SLOW}, version="2")
    evaluator.tick(DEFINITIONS, NOW)
    found = stored_incidents(traffic.store)[0]

    assert (found.version, found.stages[0].stage) == ("2", "preprocess")
    assert abs(found.since - (NOW - 10 * MINUTE)) <= 2 * MINUTE


def test_a_release_equal_to_its_predecessor_is_not_named(traffic: Traffic, evaluator: Evaluator) -> None:
    traffic(NOW - 2 * HOUR, HOUR + 50 * MINUTE, {40: FAST}, version="1")
    for version in ("1", "2"):
        traffic(NOW - 10 * MINUTE, 10 * MINUTE, {4: FAST, 16: SLOW}, version=version)
    evaluator.tick(DEFINITIONS, NOW)

    assert stored_incidents(traffic.store)[0].version == ""
