"""Missing traffic: an incident opens if a service receives no requests at a time when requests are usual."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from stagelens.alerts.evaluation.alert_rules import absence_causes
from stagelens.alerts.evaluation.evaluator import Evaluator
from stagelens.alerts.objectives.slo_file import Definitions
from stagelens.analysis.policies import default_incident_policy
from stagelens.store import Store
from tests.alerts.stored import stored_incidents
from tests.alerts.traffic import LATENCY, NOW, Traffic

HOUR, MINUTE, DAY = timedelta(hours=1), timedelta(minutes=1), timedelta(days=1)
FAST = {"forward": 0.020, "queue": 0.002}
DEFINITIONS = Definitions((LATENCY,), (), "http://127.0.0.1:8600")


def test_missing_traffic_and_its_return_are_notified(traffic: Traffic, evaluator: Evaluator) -> None:
    traffic(NOW - DAY - HOUR, 2 * HOUR, {2: FAST})
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


def test_a_service_idle_at_this_time_a_day_ago_is_not_reported(traffic: Traffic, evaluator: Evaluator) -> None:
    traffic(NOW - DAY - 3 * HOUR, HOUR, {2: FAST})
    traffic(NOW - HOUR, 40 * MINUTE, {2: FAST})
    traffic(NOW - HOUR, HOUR, {2: FAST}, service="other")

    assert evaluator.tick(DEFINITIONS, NOW) == []


def test_a_service_younger_than_a_day_is_not_reported(traffic: Traffic, evaluator: Evaluator) -> None:
    traffic(NOW - HOUR, 40 * MINUTE, {2: FAST})
    traffic(NOW - HOUR, HOUR, {2: FAST}, service="other")

    assert evaluator.tick(DEFINITIONS, NOW) == []


def test_severity_none_opens_no_incident(store: Store, traffic: Traffic) -> None:
    traffic(NOW - DAY - HOUR, 2 * HOUR, {2: FAST})
    traffic(NOW - 2 * HOUR, 30 * MINUTE, {2: FAST})
    traffic(NOW - HOUR, HOUR, {2: FAST}, service="other")
    policy = default_incident_policy()
    silent = replace(policy, no_data=replace(policy.no_data, severity="none"))
    updates = Evaluator(store, "me", lease_seconds=30, incident_policy=silent).tick(DEFINITIONS, NOW)

    assert updates == []


def test_every_service_and_environment_has_one_cause() -> None:
    slos = [LATENCY, replace(LATENCY, name="b", route="/x"), replace(LATENCY, name="c", environment="prod")]

    assert list(absence_causes(slos)) == ["no_data::magika-demo", "no_data:prod:magika-demo"]
