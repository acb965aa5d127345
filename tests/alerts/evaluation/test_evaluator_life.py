"""Evaluator with silences, maintenance, acknowledgements, several processes, kills and gaps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

import pytest
from sqlalchemy import select

from stagelens.alerts.delivery.channels import ChannelEntry
from stagelens.alerts.delivery.message import Finding
from stagelens.alerts.evaluation.alert_rules import AlertRule, Verdict
from stagelens.alerts.evaluation.evaluator import Evaluator
from stagelens.alerts.incidents import silences
from stagelens.alerts.incidents.journal import IncidentError, acknowledge
from stagelens.alerts.objectives.maintenance import MaintenanceCalendar, OneTimeWindow
from stagelens.alerts.objectives.slo_file import Definitions
from stagelens.alerts.reader import Incident
from stagelens.alerts.schema import metadata, outbox
from stagelens.store import Store, lease
from stagelens.store.schema import leases
from tests.alerts.killed_writes import Killed, killed_at
from tests.alerts.stored import stored_incidents
from tests.alerts.traffic import FAST, LATENCY, NOW, SLOW, Traffic

HOUR, MINUTE, TICK = timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=10)
CHANNELS = (ChannelEntry("slack", "slack", None, "SLACK_WEBHOOK_URL"),)
DEFINITIONS = Definitions((LATENCY,), CHANNELS, "http://127.0.0.1:8600")


@pytest.fixture
def burning(traffic: Traffic, evaluator: Evaluator) -> Store:
    """Store with an open incident that was notified."""
    traffic(NOW - HOUR, HOUR, {50: SLOW})
    evaluator.tick(DEFINITIONS, NOW)
    return traffic.store


def transitions_sent(incident: Incident) -> list[str]:
    return [row.transition for row in incident.deliveries]


def history(incident: Incident) -> list[tuple[str, int]]:
    return [(row.event, row.notified) for row in incident.transitions]


def silence(store: Store, now: datetime, length: timedelta, **matchers: str) -> silences.Silence:
    with store.transaction() as connection:
        return silences.create_silence(
            connection, matchers, starts_at=now, ends_at=now + length, author="ann", comment="moving disks"
        )


def test_a_silenced_incident_is_notified_at_the_end_of_the_silence(
    store: Store, traffic: Traffic, evaluator: Evaluator
) -> None:
    traffic(NOW - HOUR, 3 * HOUR, {50: SLOW})
    silence(store, NOW - MINUTE, HOUR, service="magika-demo")
    evaluator.tick(DEFINITIONS, NOW)
    silent = stored_incidents(store)[0]
    evaluator.tick(DEFINITIONS, NOW + HOUR)
    after = stored_incidents(store)[0]

    assert silent.muted == "silenced by ann until 04:03 UTC on 20 November: moving disks"
    assert (transitions_sent(silent), history(silent)) == ([], [("opened", 0)])
    assert (after.muted, transitions_sent(after), history(after)) == ("", ["opened"], [("opened", 0), ("opened", 1)])


def test_an_incident_within_a_maintenance_window_is_not_notified(burning: Store, evaluator: Evaluator) -> None:
    work = MaintenanceCalendar((OneTimeWindow(NOW + TICK, NOW + HOUR, "moving disks"),))
    evaluator.tick(replace(DEFINITIONS, slos=(replace(LATENCY, maintenance=work),)), NOW + 2 * TICK)
    found = stored_incidents(burning)[0]

    assert found.muted == "maintenance window: moving disks"
    assert history(found) == [("opened", 1), ("muted", 0)]


def test_an_acknowledgement_is_notified_and_recorded(burning: Store, evaluator: Evaluator) -> None:
    store, name = burning, stored_incidents(burning)[0].id
    for _ in range(2):
        acknowledge(store, name, " ann ", NOW + MINUTE)
    found = stored_incidents(store)[0]
    evaluator.tick(replace(DEFINITIONS, slos=()), NOW + 2 * MINUTE)

    assert (found.acked_by, found.acked_at) == ("ann", NOW + MINUTE)
    assert transitions_sent(found) == ["opened", "acknowledged"]
    assert [row.note for row in found.transitions] == ["", "ann"]
    assert transitions_sent(stored_incidents(store)[0]) == ["opened", "acknowledged", "resolved"]
    with pytest.raises(IncidentError, match="was resolved at"):
        acknowledge(store, name, "bob", NOW + HOUR)
    with pytest.raises(IncidentError, match="there is no incident 'sl-nothing'"):
        acknowledge(store, "sl-nothing", "bob", NOW)


def test_an_unannounced_incident_is_acknowledged_without_notification(
    store: Store, traffic: Traffic, evaluator: Evaluator
) -> None:
    traffic(NOW - HOUR, HOUR, {50: SLOW})
    silence(store, NOW, HOUR, service="magika-demo")
    evaluator.tick(DEFINITIONS, NOW)
    acknowledge(store, stored_incidents(store)[0].id, "ann", NOW + TICK)

    assert history(stored_incidents(store)[0]) == [("opened", 0), ("acknowledged", 0)]


def test_a_channel_gets_only_ends_of_announced_incidents(burning: Store, evaluator: Evaluator) -> None:
    later = (*CHANNELS, ChannelEntry("pagerduty", "pagerduty", None, "X"))
    evaluator.tick(replace(DEFINITIONS, slos=(), channels=later), NOW + TICK)

    assert [(row.channel, row.transition) for row in stored_incidents(burning)[0].deliveries] == [
        ("slack", "opened"),
        ("slack", "resolved"),
    ]


def test_two_slos_of_a_service_are_one_message(traffic: Traffic, evaluator: Evaluator) -> None:
    traffic(NOW - HOUR, HOUR, {50: SLOW})
    both = (LATENCY, replace(LATENCY, name="other", threshold=timedelta(milliseconds=200)))
    evaluator.tick(replace(DEFINITIONS, slos=both), NOW)
    found = {incident.name: incident for incident in stored_incidents(traffic.store)}

    assert sorted(transitions_sent(incident) for incident in found.values()) == [[], ["opened"]]
    assert found["other"].muted == f"notified together with magika-demo ({found['magika-latency'].id})"
    assert found["other"].story == found["magika-latency"].story
    assert ", and 1 more" in found["magika-latency"].transitions[0].headline


def test_an_incident_that_ended_in_an_evaluation_gap_is_recorded_only(
    store: Store, traffic: Traffic, evaluator: Evaluator
) -> None:
    slos = (replace(LATENCY, name="past", service="past"), replace(LATENCY, name="still", service="still"))
    definitions = replace(DEFINITIONS, slos=slos)
    for slo in slos:
        traffic(NOW - 2 * HOUR, 2 * HOUR, {50: FAST}, service=slo.service)
    evaluator.tick(definitions, NOW)
    traffic(NOW, HOUR, {50: FAST}, service="past")
    traffic(NOW + HOUR, 30 * MINUTE, {20: FAST, 30: SLOW}, service="past")
    traffic(NOW + 90 * MINUTE, 5 * HOUR, {50: FAST}, service="past")
    traffic(NOW, 3 * HOUR, {50: FAST}, service="still")
    traffic(NOW + 3 * HOUR, 3.5 * HOUR, {50: SLOW}, service="still")
    back = Evaluator(store, "another", lease_seconds=30)
    for later in range(3):
        back.tick(definitions, NOW + 6 * HOUR + later * TICK)
    found = {incident.name: incident for incident in stored_incidents(store)}
    past = found["past"]

    assert {name: (each.state, transitions_sent(each)) for name, each in found.items()} == {
        "past": ("resolved", []),
        "still": ("open", ["opened"]),
    }
    assert history(past) == [("opened", 0), ("resolved", 0)]
    assert NOW + HOUR <= past.opened_at <= NOW + HOUR + 10 * MINUTE
    assert past.resolved_at is not None
    assert past.resolved_at <= NOW + 3 * HOUR
    assert past.muted.startswith("detected late: no evaluation ran from 03:04 UTC")


def fires(finding: Finding, *names: str) -> AlertRule:
    def judge(
        _watched: Definitions, _now: datetime, _before: Mapping[str, Finding]
    ) -> list[tuple[str, Callable[[], Verdict]]]:
        found = {f"test:{name}": replace(finding, name=name) for name in names}
        return [(cause, partial(Verdict, cause, found.get(cause))) for cause in ("test:a", "test:b")]

    return judge


def run_incident(store: Store, finding: Finding, now: datetime, kill: int) -> tuple[list[str], int]:
    watched, holder, at = replace(DEFINITIONS, slos=()), "first", now
    with killed_at(store, kill) as seen:
        for names, pause in ((("a",), TICK), (("a", "b"), TICK), ((), 2 * MINUTE), ((), TICK)):
            # Whatever the speed of this machine, the lease has expired when the next process starts.
            made = partial(Evaluator, store, lease_seconds=5, rules=[fires(finding, *names)], stopwatch=lambda: 0.0)
            try:
                made(holder).tick(watched, at)
            except Killed:
                holder, at = "second", at + TICK
                made(holder).tick(watched, at)
            at += pause
    with store.engine.connect() as connection:
        rows = connection.execute(select(outbox).order_by(outbox.c.id)).all()
    return [row.transition for row in rows], seen[0]


def test_a_process_killed_anywhere_causes_no_gap_or_duplicate(store: Store, finding: Finding) -> None:
    expected, writes = run_incident(store, finding, NOW, kill=0)
    sent: list[list[str]] = []
    # One engine is killed before every write, the others before some, because each kill takes time.
    kills = range(1, writes + 1, 1 if store.engine.dialect.name == "sqlite" else 6)
    for kill in kills:
        with store.transaction() as connection:
            for table in (leases, *reversed(metadata.sorted_tables)):
                connection.execute(table.delete())
        sent.append(run_incident(store, finding, NOW, kill)[0])

    assert expected == ["opened", "updated", "resolved"]
    assert sent == [expected] * len(kills)


def test_a_slow_evaluation_renews_its_lease(store: Store, finding: Finding) -> None:
    seconds = iter(range(0, 1000, 4))
    slow = Evaluator(
        store, "slow", lease_seconds=10, rules=[fires(finding, "a")], stopwatch=lambda: float(next(seconds))
    )
    turns = slow.tick(replace(DEFINITIONS, slos=()), NOW)
    with store.transaction() as connection:
        taken = lease.hold(connection, "evaluate", "other", (NOW + timedelta(seconds=11)).timestamp(), 10)

    assert [turn.event for turn in turns] == ["opened"]
    assert not taken


def test_a_process_paused_during_a_takeover_writes_nothing(store: Store, finding: Finding) -> None:
    watched, seconds = replace(DEFINITIONS, slos=()), iter((0.0, 0.0, 0.0, 1000.0))

    def overtaken() -> Verdict:
        Evaluator(store, "other", lease_seconds=30, rules=[fires(finding, "a")]).tick(watched, NOW + MINUTE)
        return Verdict("test:b", None)

    sleeper = Evaluator(
        store,
        "sleeper",
        lease_seconds=30,
        rules=[lambda _watched, _now, _before: [("test:b", overtaken)]],
        stopwatch=lambda: next(seconds),
    )
    turns = sleeper.tick(watched, NOW)
    with store.transaction() as connection:
        renewed = lease.renew(connection, "evaluate", "other", (NOW + MINUTE).timestamp() + 30)

    assert turns == []
    assert renewed
    assert [(incident.state, transitions_sent(incident)) for incident in stored_incidents(store)] == [
        ("open", ["opened"])
    ]
