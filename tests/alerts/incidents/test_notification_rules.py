"""Notification rules: silences, maintenance windows and groups of incidents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stagelens.alerts.delivery.message import Finding
from stagelens.alerts.incidents.lifecycle import IncidentRecord, Step, close_incident, next_step
from stagelens.alerts.incidents.notification_rules import IncidentUpdate, decide_notifications, group_lead
from stagelens.analysis.policies import Severity, default_burn_rate_policy, default_incident_policy

FLEET, HYSTERESIS = default_incident_policy().fleet, default_burn_rate_policy().hysteresis
START, MINUTE = 1_795_143_840.0, 60.0
# Firing causes, silenced causes, causes without data, and the time since the previous tick. [seconds]
Tick = tuple[dict[str, Severity], list[str], list[str], float]
# No incident is notified while this reason is present.
DEPLOY = "silenced by ann until 04:00 UTC on 20 November: deploy"


@dataclass
class Simulation:
    finding: Finding
    now: float = START
    last: dict[str, IncidentRecord] = field(default_factory=dict[str, IncidentRecord])
    heard: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    turns: list[IncidentUpdate] = field(default_factory=list[IncidentUpdate])

    def tick(
        self,
        firing: Mapping[str, Severity],
        silenced: Sequence[str] = (),
        *,
        blind: Sequence[str] = (),
        seconds: float = 10.0,
    ) -> list[tuple[str, str, bool]]:
        self.now += seconds
        steps = [step for cause in {*self.last, *firing} if (step := self._step(cause, firing, blind)) is not None]
        moved = {step.record.cause for step in steps}
        standing = [Step(record) for cause, record in self.last.items() if record.is_open and cause not in moved]
        excuses = {step.record.id: DEPLOY for step in (*steps, *standing) if step.record.cause in silenced}
        found = decide_notifications([*steps, *standing], excuses, FLEET, self.now)
        self.last |= {turn.record.cause: turn.record for turn in found}
        self.turns += found
        happened = sorted((turn.record.cause, turn.event, turn.notifies) for turn in found if turn.event)
        self.heard += [(self.last[cause].id, event) for cause, event, notifies in happened if notifies]
        return happened

    def live_through(self, ticks: Sequence[Tick]) -> Iterator[tuple[Mapping[str, Severity], Sequence[str]]]:
        for firing, silenced, blind, seconds in ticks:
            self.tick(firing, silenced, blind=blind, seconds=seconds)
            yield firing, silenced

    def _step(self, cause: str, firing: Mapping[str, Severity], blind: Sequence[str]) -> Step | None:
        service, _, name = cause.partition("/")
        found = replace(self.finding, name=name, service=service, severity=firing.get(cause, "page"))
        return next_step(
            self.last.get(cause),
            found if cause in firing else None,
            cause=cause,
            now=self.now,
            has_data=cause not in blind,
            hysteresis=HYSTERESIS,
        )

    def one_by_one(self, services: str, *, seconds: float = 10.0) -> list[list[tuple[str, str, bool]]]:
        firing: dict[str, Severity] = {}
        notifications: list[list[tuple[str, str, bool]]] = []
        for name in services:
            firing[f"{name}/p"] = "page"
            notifications.append([event for event in self.tick(firing, seconds=seconds) if event[2]])
        return notifications

    def also(self, cause: str) -> list[str]:
        updates = [turn for turn in self.turns if turn.record.cause == cause and turn.notifies]
        return [each.cause for each in updates[-1].also]


@pytest.fixture
def world(finding: Finding) -> Simulation:
    return Simulation(finding)


P, Q, A, B, C = "shop/p", "shop/q", "shop/a", "shop/b", "shop/c"
PAGE: dict[str, Severity] = {P: "page"}
OPENED, RESOLVED = (P, "opened", True), (P, "resolved", True)
# Ticks in each: firing causes, silenced causes, the time since the previous tick, and the expected events.
SCENARIOS: dict[str, list[tuple[dict[str, Severity], list[str], float, list[tuple[str, str, bool]]]]] = {
    "an ended incident is not notified at the end of the silence": [
        (PAGE, [P], 10, [(P, "opened", False)]),
        ({}, [P], 10, []),
        ({}, [], 10, []),
        (PAGE, [], 10, [OPENED]),
    ],
    "a relapse of an unannounced incident is an opening": [
        (PAGE, [P], 10, [(P, "opened", False)]),
        ({}, [], 10, []),
        ({}, [], 130, [(P, "resolved", False)]),
        (PAGE, [], 10, [OPENED]),
    ],
    "the end is sent to channels notified of the opening": [
        ({P: "ticket"}, [], 10, [OPENED]),
        (PAGE, [P], 10, [(P, "muted", False)]),
        ({}, [P], 10, []),
        ({}, [P], 130, [RESOLVED]),
    ],
    "the end of a silence is in the history": [
        (PAGE, [], 10, [OPENED]),
        (PAGE, [P], 10, [(P, "muted", False)]),
        (PAGE, [], 10, [(P, "unmuted", False)]),
    ],
    "incidents are not grouped with a silenced one": [
        (PAGE, [P], 10, [(P, "opened", False)]),
        ({P: "page", Q: "page"}, [P], 10, [(Q, "opened", True)]),
    ],
    "the next incident of a group is notified when its lead ends": [
        (PAGE, [], 10, [OPENED]),
        ({P: "page", Q: "page"}, [], 10, [(P, "updated", True), (Q, "opened", False)]),
        ({P: "page", Q: "page"}, [], 10, []),
        ({Q: "page"}, [], 10, []),
        ({Q: "page"}, [], 130, [RESOLVED, (Q, "opened", True)]),
    ],
    "the end of a grouped incident is not notified": [
        ({P: "page", Q: "ticket"}, [], 10, [OPENED, (Q, "opened", False)]),
        (PAGE, [], 10, []),
        (PAGE, [], 130, [(Q, "resolved", False)]),
    ],
    "a page is never grouped under a ticket": [
        ({A: "ticket", B: "ticket"}, [], 10, [(A, "opened", True), (B, "opened", False)]),
        ({A: "ticket", B: "page"}, [], 10, [(B, "opened", True)]),
    ],
    "simultaneous incidents are one message": [
        ({A: "ticket", B: "page", C: "page"}, [], 10, [(A, "opened", False), (B, "opened", True), (C, "opened", False)])
    ],
}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_scenario_has_these_notifications(world: Simulation, scenario: str) -> None:
    for firing, silenced, seconds, events in SCENARIOS[scenario]:
        assert world.tick(firing, silenced, seconds=seconds) == events


def test_a_message_names_the_other_incidents_of_its_group(world: Simulation) -> None:
    world.tick({A: "ticket", B: "page", C: "page"})
    together = world.also(B)
    world.tick({A: "ticket", B: "page", C: "page", P: "page"})

    assert (together, world.also(B)) == ([C, A], [C, P, A])


def test_an_incident_without_data_is_not_notified_at_the_end_of_the_silence(world: Simulation) -> None:
    world.tick({"shop/p": "page"}, ["shop/p"])

    assert world.tick({}, blind=["shop/p"]) == []
    assert world.last["shop/p"].muted == DEPLOY


def test_environments_are_separate_groups(world: Simulation) -> None:
    one, other = (replace(world.finding, where={"environment": name}) for name in ("prod", "staging"))
    steps = [
        next_step(None, each, cause=str(at), now=START, has_data=True, hysteresis=HYSTERESIS)
        for at, each in enumerate((one, other))
    ]
    notified = [turn.notifies for turn in decide_notifications([step for step in steps if step], {}, FLEET, START)]

    assert notified == [True, True]


def test_an_acknowledged_incident_notifies_further_pages_only(world: Simulation) -> None:
    world.tick({"shop/p": "page"})
    world.last["shop/p"] = replace(world.last["shop/p"], acked_at=START, acked_by="ann")
    ticket = world.tick({"shop/p": "page", "shop/t": "ticket"})
    page = world.tick({"shop/p": "page", "shop/t": "ticket", "shop/q": "page"})

    assert ticket == [("shop/t", "opened", False)]
    assert page == [("shop/p", "updated", True), ("shop/q", "opened", False)]


def test_many_services_at_once_are_one_message(world: Simulation) -> None:
    firing: dict[str, Severity] = {f"{name}/p": "page" for name in "abcde"}
    events = world.tick(firing)

    assert [event for event in events if event[2]] == [("a/p", "opened", True)]
    assert world.also("a/p") == ["b/p", "c/p", "d/p", "e/p"]


def test_many_services_in_succession_form_a_group(world: Simulation) -> None:
    notifications = world.one_by_one("abcdef")

    assert [len(events) for events in notifications] == [1] * 6
    assert notifications[3:] == [[("d/p", "opened", True)], [("a/p", "updated", True)], [("a/p", "updated", True)]]
    assert world.also("a/p") == ["e/p", "f/p"]


def test_a_later_incident_is_grouped_with_its_service(world: Simulation) -> None:
    world.one_by_one("abcde")
    firing: dict[str, Severity] = {f"{name}/p": "page" for name in "abcde"}
    firing["b/q"] = "page"

    assert world.tick(firing, seconds=3600) == [("b/p", "updated", True), ("b/q", "opened", False)]


def test_services_hours_apart_are_not_grouped(world: Simulation) -> None:
    notifications = world.one_by_one("abcdefg", seconds=3600)

    assert notifications == [[(f"{name}/p", "opened", True)] for name in "abcdefg"]


def test_a_removed_slo_in_a_group_ends_without_notification(world: Simulation) -> None:
    world.tick({"shop/p": "page", "shop/q": "page"})
    closed = decide_notifications(
        [close_incident(world.last["shop/q"], "removed", world.now), Step(world.last["shop/p"])], {}, FLEET, world.now
    )

    assert [(turn.event, turn.notifies) for turn in closed if turn.event] == [("resolved", False)]


CAUSES = ("a/p", "a/q", "b/p", "c/p", "d/p", "e/p")
TICK = st.tuples(
    st.dictionaries(st.sampled_from(CAUSES), st.sampled_from(["page", "ticket"])),
    st.lists(st.sampled_from(CAUSES), unique=True),
    st.lists(st.sampled_from(CAUSES), unique=True),
    st.sampled_from([10.0, 130.0, 1000.0]),
)
# The tests copy the finding and never change it.
whatever_happens = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


@whatever_happens
@given(ticks=st.lists(TICK, max_size=25))
def test_openings_and_ends_alternate_in_every_channel(finding: Finding, ticks: list[Tick]) -> None:
    world = Simulation(finding)
    for firing, _ in world.live_through(ticks):
        for cause, record in world.last.items():
            burns = cause in firing and record.is_open
            # Every firing incident is either notified or has a reason for muting.
            assert not burns or record.heard == "open" or record.muted

    is_open: dict[str, bool] = {}
    numbers: dict[str, int] = {}
    for name, event in world.heard:
        begins, ends = event in ("opened", "reopened"), event == "resolved"
        assert begins is not is_open.get(name, False)
        is_open[name] = not ends
    for turn in world.turns:
        assert turn.record.sequence == numbers.get(turn.record.id, 0) + bool(turn.event)
        numbers[turn.record.id] = turn.record.sequence


@whatever_happens
@given(ticks=st.lists(TICK, max_size=12))
def test_an_unsilenced_page_is_notified_immediately(finding: Finding, ticks: list[Tick]) -> None:
    world = Simulation(finding)
    for firing, silenced in world.live_through(ticks):
        by_id = {record.id: record for record in world.last.values()}
        for cause, severity in firing.items():
            record = world.last[cause]
            if severity == "page" and cause not in silenced and record.heard != "open":
                lead = by_id[group_lead(record.muted)]
                assert (lead.heard, lead.finding.severity, lead.is_open) == ("open", "page", True)
                assert lead.cause not in silenced
