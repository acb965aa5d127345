"""Regression watcher on a real store: findings, notifications and restarts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, select

from stagelens.alerts.delivery.message import Finding
from stagelens.alerts.delivery.message_text import headline, impact_text
from stagelens.alerts.evaluation.evaluator import Evaluator
from stagelens.alerts.incidents.lifecycle import IncidentRecord, find_open_incidents, save_incident
from stagelens.alerts.incidents.silences import create_silence
from stagelens.alerts.objectives.slo_file import EXAMPLE, WatchedServices
from stagelens.alerts.regression import series as state_store
from stagelens.alerts.regression.findings import same_hours_before
from stagelens.alerts.regression.series import AcceptedLevel, LearntBaseline, WatchedSeries, make_cause
from stagelens.alerts.regression.watcher import RegressionRule
from stagelens.alerts.schema import tail_references
from stagelens.analysis.regression.scoring import AlarmState, Reference
from stagelens.analysis.regression.stage_attribution import StageBaseline
from stagelens.analysis.regression.statistic import ExpectationModel, Row
from stagelens.store import Batch, Group, RetainedTrace, Series, Store
from tests.alerts.conftest import ReadSlos
from tests.alerts.killed_writes import Killed, killed_at
from tests.alerts.simulated_services import (
    DAY,
    MINUTE,
    NOW,
    SLOW,
    WATCHED,
    Clock,
    Service,
    Simulation,
    Slow,
    Slower,
    evaluator,
    messages,
    watched,
    write,
)


@pytest.fixture
def world(history: Path, tmp_path: Path) -> Iterator[Simulation]:
    with watched(history, tmp_path / "stagelens.db") as found:
        yield found


def test_a_slower_stage_and_its_end_are_notified_once(world: Simulation) -> None:
    world.service.profiled = True
    world.run(60)
    quiet, began = list(world.events), world.at
    world.run(30, SLOW)
    world.restart()
    world.run(15, SLOW)
    world.run(120)
    opened, resolved = messages(world.store)
    finding = opened.finding

    assert (quiet, world.events) == ([], ["opened", "resolved"])
    assert world.turns[0][0] - began <= timedelta(minutes=60)
    assert abs(finding.since - began.timestamp()) <= 600
    assert (finding.kind, finding.severity, finding.service, finding.version) == ("tail", "ticket", "shop", "")
    assert finding.blamed is not None
    assert finding.blamed.stage == "preprocess"
    assert finding.link.startswith("http://127.0.0.1:8600/s/shop?p=")
    assert headline(opened).startswith("shop: p")
    assert re.search(r"preprocess grew \+[\d.]+ ms at p\d+, \d+ % in resize \(serve.py:41\)$", headline(opened))
    assert finding.functions[0].before_ms == 0
    assert "is likely, based on" in impact_text(finding)
    assert headline(resolved).startswith("shop: p")
    assert headline(resolved).split(" — ")[0].endswith("recovered") or " recovered after " in headline(resolved)


def references(store: Store) -> list[Any]:
    with store.engine.connect() as connection:
        return [*connection.execute(select(tail_references).order_by(tail_references.c.cause))]


def test_a_regression_that_ended_in_a_gap_is_not_notified(world: Simulation) -> None:
    before = references(world.store)
    world.run(3)
    world.restart()
    assert [row.cause for row in before] == ["tail:shop"]
    assert references(world.store) == before
    world.write(60, SLOW)
    world.write(180)
    world.restart()

    assert world.events == []


def test_a_release_that_slows_a_stage_is_named(world: Simulation) -> None:
    world.run(35)
    world.service.version = "2"
    world.run(45, SLOW)

    assert world.events == ["opened"]
    assert headline(messages(world.store)[0]).endswith("since version 2")


def test_slow_requests_are_shown(world: Simulation) -> None:
    world.run(8, SLOW)
    series, stages = Series("shop", "1", status="ok"), {"preprocess": 80_000_000, "forward": 10_000_000}
    started = round((world.at - 5 * MINUTE).timestamp() * 1e9)
    trace = RetainedTrace("a" * 32, "b" * 16, series, started, 90_000_000, "slow", "preprocess", stages)
    world.store.write([Batch("kept", [], [trace], 0, "test")])
    world.run(15, SLOW)
    found = messages(world.store)[0].finding

    assert [(exemplar.stage, exemplar.seconds) for exemplar in found.exemplars] == [("preprocess", 0.09)]
    assert found.exemplars[0].link.endswith(f"/traces/{'a' * 32}-{'b' * 16}")


def mixed(world: Simulation, slower: Slower) -> None:
    slow: Slower = (Slow("forward", 2.0), *slower)
    few = Service(route="/slow", rate=40)
    for minute in range(100):
        write(world.store, list(few.points(NOW - timedelta(hours=24) + minute * MINUTE, (Slow("forward", 2.0),))))
    world.beside.append((Service(route="/slow"), slow))


def test_different_traffic_is_no_regression(world: Simulation) -> None:
    mixed(world, ())
    world.run(100)

    assert [row.cause for row in references(world.store)] == ["tail:shop", "tail:shop/route//fast"]
    assert world.events == []


def test_a_slow_host_must_last(world: Simulation, monkeypatch: pytest.MonkeyPatch) -> None:
    """While another service on the host is slower, too, a regression is notified only once it has lasted, and says so.

    The other service needs no SLO.
    """
    only = replace(WATCHED, regressions=WatchedServices(only=frozenset({"shop"})))
    monkeypatch.setattr("tests.alerts.simulated_services.WATCHED", only)
    world.service.host = "node-1"
    world.beside.append((Service("search", host="node-1"), ()))
    world.run(60)
    world.beside[0] = world.beside[0][0], (*SLOW, Slow("forward", 1.4))
    world.run(70, SLOW)
    before = list(world.events)
    world.run(30, SLOW)

    assert (before, world.events) == ([], ["opened"])
    text = impact_text(messages(world.store)[0].finding)
    assert text.endswith(" Other services on the same hosts became slower, too.")


def test_a_changed_mix_is_named_and_corrected(world: Simulation) -> None:
    much: Slower = (Slow("preprocess", 20.0),)
    mixed(world, much)
    world.run(100, much)
    with world.store.transaction() as connection:
        findings = [incident.finding for incident in find_open_incidents(connection) if not incident.finding.where]

    assert findings[0].shift is not None
    assert findings[0].shift.mix.startswith("route /slow has ")
    assert "with the same mix the change is " in findings[0].shift.mix


def test_two_versions_side_by_side_are_compared(world: Simulation) -> None:
    world.service.profiled = True
    world.run(10)
    world.run(40, **{"2": SLOW})
    world.run(20)
    sent = messages(world.store)
    canary = [message for message in sent if message.finding.name == "canary"]

    assert [message.transition for message in sent if message not in canary] == []
    assert [message.transition for message in canary if message.transition != "updated"] == ["opened", "resolved"]
    found = canary[0].finding
    assert found.shift is not None
    assert (found.where, found.shift.against) == ({"version": "2"}, "1")
    assert found.blamed is not None
    assert found.blamed.stage == "preprocess"
    assert "of version 2 is slower than version 1: " in headline(canary[0])
    assert headline(canary[0]).endswith(" in resize (serve.py:41)")


def test_messages_state_the_record_and_a_wrong_alert_makes_the_search_stricter(world: Simulation) -> None:
    at = (world.at - DAY).timestamp()
    with world.store.transaction() as connection:
        for number in range(5):
            finding = Finding("tail", "shop", "", "tail", "ticket", at)
            past = IncidentRecord(
                f"sl-{number}", f"tail:{number}", finding, at, at, at, resolved_at=at, ending="accepted"
            )
            save_incident(connection, replace(past, heard="over"))
    rule = RegressionRule(world.store)
    world.evaluator = Evaluator(world.store, "me", lease_seconds=30, rules=[rule])
    world.evaluate(12)
    world.run(30, SLOW)
    before = rule.search.series["tail:shop"].strictness
    silenced = {"service": "shop", "slo": "tail"}
    with world.store.transaction() as connection:
        create_silence(connection, silenced, starts_at=world.at, ends_at=world.at + DAY, author="ann")
    world.run(16, SLOW)

    assert impact_text(messages(world.store)[0].finding).endswith(
        "5 of the last 5 such alerts of this service were right."
    )
    assert (before, rule.search.series["tail:shop"].strictness) == (1.0, pytest.approx(1.25, rel=0.01))


def test_a_process_killed_while_firing_notifies_once(world: Simulation) -> None:
    world.run(24, SLOW)
    deaths = 0
    for number in range(1, 13):
        with killed_at(world.store, number, r"\b(tail_|incident|outbox)"):
            try:
                world.run(1, SLOW)
            except Killed:
                deaths += 1
        world.restart()
    transitions = [message.transition for message in messages(world.store)]

    assert deaths >= 6
    assert transitions == ["opened"]


def test_a_series_error_does_not_stop_others(world: Simulation, monkeypatch: pytest.MonkeyPatch) -> None:
    judge = RegressionRule(world.store)
    broken = Evaluator(world.store, "me", lease_seconds=30, rules=[judge])
    for _ in range(12):
        broken.tick(WATCHED, world.at + MINUTE / 2)
    monkeypatch.setattr(WatchedSeries, "advance", lambda *_: 1 / 0)
    world.write(1)
    with pytest.raises(ZeroDivisionError):
        broken.tick(WATCHED, world.at + MINUTE / 2)

    assert broken.tick(WATCHED, world.at + MINUTE / 2) == []


def test_a_long_regression_is_compared_with_the_days_before() -> None:
    now, began = 60_000, 60_000 - 2000
    found = same_hours_before(Group("shop"), now - 60, now, began, 4)

    assert [round(each.end.timestamp() / 60) for each in found] == [now - day * 1440 for day in (2, 3, 4)]


@pytest.mark.parametrize("length", [10, 400])
def test_a_cause_is_unique_and_fits_its_column(length: int) -> None:
    parts = [("shop", "route", f"/{'x' * length}{number}") for number in range(3)]
    causes = {make_cause("tail", *part, environment=place) for part in parts for place in ("", "prod")}

    assert len(causes) == 6
    assert all(len(cause) <= 255 for cause in causes)


def test_a_service_younger_than_a_day_has_no_findings(open_store: Callable[..., Store]) -> None:
    clock = Clock()
    store = open_store(clock=clock)
    world = Simulation(store, evaluator(store), clock)
    world.write(120)
    world.run(30, (Slow("preprocess", 8.0),))

    assert (world.events, references(store)) == ([], [])


@pytest.mark.parametrize("text", ["", "regressions: off", "regressions:\n  ignore: [shop, other]"])
def test_an_ignored_service_is_not_monitored(world: Simulation, read_slos: ReadSlos, text: str) -> None:
    found = read_slos(f"{EXAMPLE}{text}\n")
    named = {cause for cause, one in RegressionRule(world.store)(found, world.at, {}) if one() is None}

    assert found.regressions is None or not found.regressions.watches("shop")
    assert named <= {"tail:"}


def test_stored_state_round_trips_and_never_becomes_older(store: Store) -> None:
    reference = Reference(
        5, (Row("", 0.99, 3, 1.0, 0.01, 0.4),), ExpectationModel((5,), (0.0, 1.0, 2.0), ((0.5,),), ((0.1,),)), (), ()
    )
    learnt = LearntBaseline(5, reference, StageBaseline(("forward",), ((0.02,),), (0.001,)))
    with store.transaction() as connection:
        for _ in range(2):
            state_store.save_learnt(connection, "tail:shop", learnt)
        older = {"cause": "tail:older", "learnt_at": 9, "reference": "{}", "habits": "{}"}
        connection.execute(insert(tail_references).values(**older))
        state_store.save_progress(
            connection, {"tail:shop": AlarmState(at=9, fired_at=7), "tail:old": AlarmState(at=9)}, 9
        )
        state_store.save_progress(connection, {"tail:shop": AlarmState(at=8)}, 8)
        state_store.save_progress(connection, {"tail:shop": AlarmState(at=10, since=4, fired_at=7)}, 10)
        for cause, at in (("tail:shop", 8), ("tail:old", 9), ("tail:old", 8 - 28 * 1440)):
            state_store.save_accepted(connection, cause, AcceptedLevel(at - 3, at))
    with store.transaction() as connection:
        state_store.delete_stale(connection, 10)

        assert state_store.load_learnt(connection) == {"tail:shop": learnt}
        assert state_store.load_progress(connection) == {"tail:shop": AlarmState(at=10, since=4, fired_at=7)}
        assert state_store.load_accepted(connection) == {"tail:shop": AcceptedLevel(5, 8)}
        assert state_store.last_evaluated_minute(connection) == 10
