"""Acceptance of a latency regression as the new baseline: the incident ends, and only a further rise is notified."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import select

from stagelens.alerts.delivery.message import Finding, MissingTraffic
from stagelens.alerts.delivery.message_text import headline, icon, small_print
from stagelens.alerts.evaluation.alert_rules import Verdict
from stagelens.alerts.evaluation.evaluator import Evaluator
from stagelens.alerts.incidents import lifecycle
from stagelens.alerts.incidents.journal import IncidentError
from stagelens.alerts.incidents.notification_rules import grouped_reason
from stagelens.alerts.objectives.slo_file import Definitions
from stagelens.alerts.regression import series
from stagelens.alerts.regression.acceptance import accept_regression
from stagelens.alerts.regression.series import AcceptedLevel, cause_of_group
from stagelens.alerts.schema import incidents, outbox, transitions
from stagelens.store import Group, Store
from tests.alerts.simulated_services import DAY, MINUTE, SLOW, Simulation, Slow, evaluator, messages, watched
from tests.alerts.stored import REGRESSION, SLOWER, notify_opening
from tests.alerts.traffic import NOW

pytestmark = [pytest.mark.stacks, pytest.mark.flaky(reruns=0)]

SHOP = cause_of_group(Group("shop"))
WORSE = (Slow("preprocess", 2.4),)


@pytest.fixture
def slow(history: Path, tmp_path: Path) -> Iterable[Simulation]:
    """Simulation with an open incident because a stage is slower."""
    with watched(history, tmp_path / "stagelens.db") as found:
        found.run(40, SLOW)

        assert found.events == ["opened"]
        yield found


def test_an_accepted_level_resolves_and_a_further_regression_notifies(slow: Simulation) -> None:
    accept_regression(slow.store, slow.turns[0][1].record.id, "ann", slow.at, "the new tokenizer")
    slow.run(2, SLOW)
    slow.restart()
    slow.run(180, SLOW)
    quiet = list(slow.events)
    slow.run(45, WORSE)
    first, over, again = messages(slow.store)
    assert first.finding.shift is not None
    assert again.finding.shift is not None
    assert again.finding.blamed is not None

    assert (quiet, slow.events) == (["opened"], ["opened", "opened"])
    assert [(each.transition, each.ending) for each in (over, again)] == [("resolved", "accepted"), ("opened", "")]
    assert headline(over).startswith("shop: p")
    assert "ann accepted it as the new baseline — preprocess grew +" in headline(over)
    assert (icon(over), small_print(over)[-1]) == ("⚪", "Accepted by ann: the new tokenizer")
    assert again.incident != first.incident
    assert again.finding.shift.before_seconds > 1.1 * first.finding.shift.before_seconds
    assert again.finding.blamed.stage == "preprocess"
    assert again.finding.blamed.seconds < again.finding.shift.after_seconds - first.finding.shift.before_seconds


def test_an_accepted_level_survives_a_process_crash(slow: Simulation) -> None:
    accept_regression(slow.store, slow.turns[0][1].record.id, "ann", slow.at)
    slow.restart()
    slow.run(30, SLOW)

    assert slow.events == ["opened"]


def test_the_baseline_after_a_day_contains_only_the_accepted_level(slow: Simulation) -> None:
    began = slow.at - 40 * MINUTE
    accept_regression(slow.store, slow.turns[0][1].record.id, "ann", slow.at)
    slow.run(2, SLOW)
    with slow.store.transaction() as connection:
        settled = series.load_learnt(connection)[SHOP]
        (accepted,) = series.load_accepted(connection).values()
    for _ in range(25):
        slow.write(60, SLOW)
    slow.evaluator = evaluator(slow.store)
    slow.evaluate(40)
    with slow.store.transaction() as connection:
        learnt = series.load_learnt(connection)[SHOP]
    whole = next(row for row in learnt.reference.rows if row.at == 0.99)

    assert slow.events == ["opened"]
    assert abs(accepted.since - began.timestamp() / 60) <= 10
    assert settled.at == accepted.at
    assert learnt.at >= accepted.at + DAY / MINUTE
    assert abs(whole.edge - next(row for row in settled.reference.rows if row.at == 0.99).edge) <= 1


def test_an_accepted_version_pair_is_not_compared_again(history: Path, tmp_path: Path) -> None:
    with watched(history, tmp_path / "stagelens.db") as world:
        world.run(10)
        world.run(30, **{"2": SLOW})
        canary = world.turns[0][1].record
        accept_regression(world.store, canary.id, "ann", world.at)
        world.run(10, **{"2": SLOW})
        world.restart()
        world.run(10, **{"2": SLOW})
        sent = [(message.finding.name, message.transition) for message in messages(world.store)]

    assert [each for each in sent if each[1] != "updated"] == [("canary", "opened"), ("canary", "resolved")]


def opened(store: Store, name: str, finding: Finding, cause: str = "", *, muted: str = "") -> None:
    notify_opening(store, name, finding, cause or f"x:{name}", muted=muted)


@pytest.fixture
def slower(finding: Finding) -> Finding:
    return replace(finding, **SLOWER, name="tail", severity="ticket", since=(NOW - timedelta(hours=1)).timestamp())


def endings(store: Store) -> dict[str, str]:
    with store.engine.connect() as connection:
        return {row.id: row.ending for row in connection.execute(select(incidents))}


def accepted(store: Store) -> dict[str, AcceptedLevel]:
    with store.transaction() as connection:
        return series.load_accepted(connection)


def test_accepting_a_service_includes_its_routes_and_models(store: Store, slower: Finding) -> None:
    prod = {"environment": "prod"}
    opened(store, "route", replace(slower, where={**prod, "route": "/a"}), "tail:prod:shop/route//a")
    opened(store, "whole", replace(slower, where=prod), "tail:prod:shop")
    model = replace(slower, where={**prod, "model": "m"})
    opened(store, "model", model, "tail:prod:shop/model/m", muted=grouped_reason("whole", "shop"))
    version = replace(slower, name="canary", where={**prod, "version": "2"}, shift=replace(REGRESSION, against="1"))
    opened(store, "canary", version, "canary:prod:magika-demo")
    opened(store, "elsewhere", replace(slower, where={"environment": "staging"}), "tail:staging:shop")
    opened(store, "burns", replace(slower, shift=None, burn=None, absence=MissingTraffic(30, 86_400.0, 900.0)))
    accept_regression(store, "route", "ann", NOW)
    alone = endings(store)
    accept_regression(store, "whole", "ann", NOW)
    after, at, since = endings(store), int(NOW.timestamp()) // 60 + 1, int(slower.since) // 60

    assert {name for name, ending in alone.items() if ending} == {"route"}
    assert {name for name, ending in after.items() if ending == "accepted"} == {"route", "whole", "model", "canary"}
    assert accepted(store) == dict.fromkeys(
        ("tail:prod:shop/route//a", "tail:prod:shop", "tail:prod:shop/model/m", "canary:prod:magika-demo/1/2"),
        AcceptedLevel(since, at),
    )


def test_a_drift_is_accepted_alone(store: Store, slower: Finding) -> None:
    opened(store, "drift", replace(slower, name="drift", shift=replace(REGRESSION, weeks=4)), "drift:shop")
    opened(store, "whole", slower, "tail:shop", muted=grouped_reason("drift", "shop"))
    accept_regression(store, "drift", "ann", NOW)

    assert endings(store) == {"drift": "accepted", "whole": ""}
    assert list(accepted(store)) == ["drift:shop"]


def test_channels_are_notified_of_an_acceptance_once(store: Store, slower: Finding) -> None:
    opened(store, "sl-1", slower)
    first = accept_regression(store, "sl-1", "ann", NOW, "the new tokenizer")
    again = accept_regression(store, "sl-1", "bob", NOW + timedelta(hours=1))
    with store.engine.connect() as connection:
        happened = [(row.transition, row.note) for row in connection.execute(select(transitions))]
        sent = [(row.channel, row.transition) for row in connection.execute(select(outbox).order_by(outbox.c.id))]

    assert again == first
    assert (first.ending, first.acked_by, first.resolved_at) == ("accepted", "ann", NOW.timestamp())
    assert happened == [("opened", ""), ("accepted", "ann: the new tokenizer")]
    assert sent == [("slack", "opened"), ("slack", "resolved")]


def test_a_long_regression_is_accepted_at_its_recent_level(store: Store, slower: Finding) -> None:
    opened(store, "sl-1", replace(slower, since=slower.since - 3 * 86_400), "tail:shop")
    accept_regression(store, "sl-1", "ann", NOW)
    at = int(NOW.timestamp()) // 60 + 1

    assert accepted(store) == {"tail:shop": AcceptedLevel(at - 240, at)}


def test_accepting_other_incidents_is_refused_with_a_fix(store: Store, slower: Finding, finding: Finding) -> None:
    opened(store, "burns", finding)
    opened(store, "silent", replace(finding, burn=None, absence=MissingTraffic(30, 86_400.0, 900.0)))
    opened(store, "ended", slower)
    with store.transaction() as connection:
        ended = lifecycle.get_incident(connection, "ended")
        assert ended is not None
        lifecycle.save_incident(connection, replace(ended, resolved_at=NOW.timestamp(), ending="recovered"))
    before = endings(store)
    for name, error in (
        ("burns", r"the objective magika-latency, .*; change the objective or threshold"),
        ("silent", r"missing traffic; .*; silence it \(`stagelens alerts silence "),
        ("ended", r"ended was resolved at 03:04 UTC on 20 November; it cannot be accepted"),
        ("sl-2", "there is no incident 'sl-2'"),
    ):
        with pytest.raises(IncidentError, match=error):
            accept_regression(store, name, "ann", NOW)

    assert endings(store) == before
    assert accepted(store) == {}


def test_an_acceptance_during_an_evaluation_persists(store: Store, slower: Finding) -> None:
    opened(store, "sl-1", slower, "tail:shop")

    def find() -> Verdict:
        accept_regression(store, "sl-1", "ann", NOW)
        return Verdict("tail:shop", slower)

    judging = Evaluator(store, "me", lease_seconds=30, rules=[lambda *_: [("tail:shop", find)]])
    turns = judging.tick(Definitions(), NOW)
    later = Evaluator(
        store, "me", lease_seconds=30, rules=[lambda *_: [("tail:shop", partial(Verdict, "tail:shop", slower))]]
    )
    further = later.tick(Definitions(), NOW + MINUTE)

    assert turns == []
    assert endings(store)["sl-1"] == "accepted"
    assert [(turn.event, turn.record.id == "sl-1") for turn in further] == [("opened", False)]
