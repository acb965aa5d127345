"""Slow growth of a latency on a real store: one incident, its end, and its acceptance."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta

import pytest

from stagelens.alerts.delivery.message_text import comparison_basis, headline, impact_text, small_print
from stagelens.alerts.evaluation.evaluator import Evaluator
from stagelens.alerts.regression.acceptance import accept_regression
from stagelens.alerts.regression.drift import DriftRule
from stagelens.alerts.regression.series import delete_stale, load_accepted
from stagelens.store import Store
from tests.alerts.simulated_services import DAY, MINUTE, NOW, Clock, Service, Simulation, Slow, messages, write

GROWTH_A_DAY = 1.02


def evaluator(store: Store) -> Evaluator:
    return Evaluator(store, "me", lease_seconds=30, rules=[DriftRule(store)])


def run_days(world: Simulation, days: int, first: float, growth: float = 1.0) -> None:
    for day in range(days):
        slower = (Slow("preprocess", first * growth**day),)
        for _ in range(4):
            write(world.store, list(world.service.points(world.at, slower)))
            world.clock.at += DAY / 4


def evaluate(world: Simulation) -> None:
    """Evaluate ten times within twenty minutes, in which an incident ends that does not fire."""
    for _ in range(10):
        world.evaluate(1)
        world.clock.at += 2 * MINUTE


@pytest.fixture
def new_world(open_store: Callable[..., Store]) -> Simulation:
    clock = Clock((NOW - 29 * DAY).replace(hour=0, minute=0))
    store = open_store(clock=clock)
    return Simulation(store, evaluator(store), clock, Service(rate=5000))


@pytest.fixture
def world(new_world: Simulation) -> Simulation:
    run_days(new_world, 28, 1.0, GROWTH_A_DAY)
    evaluate(new_world)

    assert new_world.events == ["opened"]
    return new_world


def test_a_slow_growth_is_notified_with_its_stage(world: Simulation) -> None:
    world.evaluator = evaluator(world.store)
    evaluate(world)
    (message,) = messages(world.store)
    finding = message.finding
    text = r"shop: p\d+ grew slowly over 4 weeks: [\d.]+ ms → [\d.]+ ms \(\+\d+ %\) — preprocess grew \+[\d.]+ ms \(.* of the excess.*\)"

    assert re.fullmatch(text, headline(message))
    assert impact_text(finding).endswith("requests in 7 days.")
    assert "compared with 3 weeks before" in comparison_basis(finding)
    assert small_print(message)[0].startswith("drift: 3 weeks before, p")
    assert (finding.name, finding.kind, finding.severity) == ("drift", "tail", "ticket")
    start, end = (int(each) for each in re.findall(r"(?:from|to)=(\d+)", finding.link))
    assert timedelta(milliseconds=end - start) >= 28 * DAY
    assert finding.course is not None
    assert len(finding.course.values) == 28


def test_a_growing_load_is_named(new_world: Simulation) -> None:
    for day in range(28):
        new_world.service.rate = 3000 * 1.03**day
        run_days(new_world, 1, GROWTH_A_DAY**day)
    evaluate(new_world)
    (message,) = messages(new_world.store)

    assert re.search(r"The traffic also changed: \d+ requests per minute, before \d+\.", impact_text(message.finding))


def test_an_incident_continues_while_the_latency_stays_higher(world: Simulation) -> None:
    run_days(world, 14, GROWTH_A_DAY**27)
    evaluate(world)
    standing = list(world.events)
    run_days(world, 8, 1.0)
    evaluate(world)

    assert (standing, world.events) == (["opened"], ["opened", "resolved"])


def test_an_accepted_latency_starts_anew(world: Simulation) -> None:
    accept_regression(world.store, world.turns[0][1].record.id, "ann", world.at)
    evaluate(world)
    run_days(world, 14, GROWTH_A_DAY**27, GROWTH_A_DAY)
    evaluate(world)
    accepted = list(world.events)
    with world.store.transaction() as connection:
        delete_stale(connection, int(world.at.timestamp()) // 60 - 10 * 1440)
        assert list(load_accepted(connection)) == ["drift:shop"]
    run_days(world, 16, GROWTH_A_DAY**41, GROWTH_A_DAY)
    evaluate(world)

    assert (accepted, world.events) == (["opened"], ["opened", "opened"])
    assert [each.ending for each in messages(world.store)] == ["", "accepted", ""]
    assert headline(messages(world.store)[1]).count("ann accepted it as the new baseline") == 1
