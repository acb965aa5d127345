"""Regressions of a route, a model, the mean, one environment, and a version that was rolled back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from stagelens.alerts.delivery.message import Message
from stagelens.alerts.delivery.message_text import comparison_basis, headline, worst_impact
from stagelens.alerts.incidents import journal
from stagelens.alerts.regression.findings import pooled_attribute
from stagelens.alerts.regression.series import load_learnt
from stagelens.analysis.attributes import AttributeCounts
from stagelens.analysis.regression.strata import Strata
from tests.alerts.simulated_services import SLOW, Service, Simulation, Slow, Slower, messages, recorded, watched

pytestmark = [pytest.mark.stacks, pytest.mark.flaky(reruns=0)]

# The rare route has a different model, and staging is always slower than production.
RARE = Service(route="/rare", model="large", rate=120)
STAGED: Slower = (Slow("forward", 2.0),)
LARGE = Slow("forward", 3.0)


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("history") / "stagelens.db"
    recorded(path, [(Service(model="small"), ()), (RARE, ())])
    return path


@pytest.fixture
def world(history: Path, tmp_path: Path) -> Iterator[Simulation]:
    with watched(history, tmp_path / "stagelens.db", looks=6) as found:
        found.service = Service(model="small")
        yield found


def openings(world: Simulation) -> list[Message]:
    return [journal.message_for(turn, at.timestamp()) for at, turn in world.turns if turn.event == "opened"]


def test_a_route_and_a_model_are_named(world: Simulation) -> None:
    world.beside = [(RARE, (Slow("preprocess", 2.5),))]
    world.run(45)
    found = {tuple(each.finding.where.values()): each for each in openings(world)}

    assert set(found) >= {("/rare",), ("large",)}
    assert not set(found) & {("/fast",), ("small",)}
    assert " of route /rare is slower than on previous days: " in headline(found["/rare",])
    assert " of model large is slower than on previous days: " in headline(found["large",])
    assert "&r=/rare&" in found["/rare",].finding.link
    assert "&m=large&" in found["large",].finding.link
    assert all("preprocess grew +" in headline(each) for each in found.values())


def test_a_slower_mean_is_reported_with_the_stages_of_all_requests(world: Simulation) -> None:
    world.beside = [(RARE, ())]
    world.run(45, (Slow("forward", 1.4, up_to=0.6),))
    opening = next(each for each in openings(world) if not each.finding.where)
    finding = opening.finding
    assert finding.shift is not None
    assert finding.blamed is not None

    assert headline(opening).startswith("shop: mean latency is slower than on previous days: ")
    assert finding.shift.at == "mean"
    assert finding.promise.startswith("in the same hours of previous days, the mean was ")
    assert comparison_basis(finding) == "mean of requests, compared with previous days"
    assert worst_impact(finding, 1.2) == "mean latency was up to 20 % slower than before"
    assert finding.blamed.stage == "forward"
    assert finding.blamed.seconds == pytest.approx(finding.shift.after_seconds - finding.shift.before_seconds, rel=0.3)


def test_environments_are_evaluated_separately(tmp_path: Path) -> None:
    path, staging = tmp_path / "history.db", Service(environment="staging", rate=150)
    recorded(path, [(Service(environment="prod"), ()), (staging, STAGED)])
    with watched(path, tmp_path / "stagelens.db", looks=3) as world:
        world.service, staging.rate = Service(environment="prod"), 600
        world.beside = [(staging, STAGED)]
        world.run(45)
        quiet = list(world.events)
        world.run(40, SLOW)
        sent = messages(world.store)
    finding = sent[0].finding

    assert (quiet, [message.transition for message in sent]) == ([], ["opened"])
    assert finding.where == {"environment": "prod"}
    assert headline(sent[0]).startswith("shop: p")
    assert " in prod is slower than on previous days: " in headline(sent[0])
    assert "&env=prod&" in finding.link
    assert finding.shift is not None
    assert finding.shift.mix == ""


def test_routes_are_pooled_by_their_usual_latency(tmp_path: Path) -> None:
    path, slow = tmp_path / "history.db", Service(route="/slow", rate=200)
    recorded(path, [(Service(rate=400), ()), (slow, (LARGE,))])
    with watched(path, tmp_path / "stagelens.db", looks=4) as world:
        world.service, slow.rate = Service(rate=200), 400
        world.beside = [(slow, (LARGE,))]
        world.run(60)
        with world.store.engine.connect() as connection:
            learnt = load_learnt(connection)
        reference = learnt["tail:shop"].reference
        quiet = of_whole(world)
        world.restart()
        slow.version = world.service.version = "2"
        world.beside = [(slow, (LARGE, *SLOW))]
        world.run(25, SLOW)

    assert reference.strata is not None
    assert reference.strata.dimension == "route"
    assert set(reference.strata.shifts) == {"/fast", "/slow"}
    assert len(reference.version_rows) == len(reference.rows)
    assert learnt["tail:shop/route//slow"].reference.strata is None
    assert (quiet, of_whole(world)) == ([], ["opened"])


@pytest.mark.parametrize(("rare", "expected"), [(4, "route"), (40, "")])
def test_a_pooled_attribute_explains_only_requests_without_stratum(rare: int, expected: str) -> None:
    requests = {"route": {"/fast": np.array([[60]]), "/slow": np.array([[36]]), "/rare": np.array([[rare]])}}
    now = AttributeCounts(2, np.array([0]), np.array([0]), requests)
    strata = Strata("route", {"/fast": {}, "/slow": {}})

    assert pooled_attribute(strata, now, 0.05) == expected
    assert pooled_attribute(None, now, 0.05) == ""


def of_whole(world: Simulation) -> list[str]:
    return [turn.event for _, turn in world.turns if turn.record.cause == "tail:shop"]


def test_a_regression_ended_by_a_rollback_is_not_reopened_after_a_restart(world: Simulation) -> None:
    world.beside = [(RARE, ())]
    world.run(35)
    world.service.version = "2"
    world.run(90, SLOW)
    world.service.version = "1"
    world.run(25)
    ended = of_whole(world)
    world.restart()
    world.run(20)

    assert ended == ["opened", "resolved"]
    assert of_whole(world) == ended
