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


def test_an_incident_under_a_silence_is_recorded_and_not_notified(world: Simulation) -> None:
    opening = world.tick({"shop/p": "page"}, ["shop/p"])
    record = world.last["shop/p"]
    over = [world.tick({}, ["shop/p"], seconds=seconds) for seconds in (10, 130)]

    assert opening == [("shop/p", "opened", False)]
    assert (record.muted, record.heard) == (DEPLOY, "")
    assert over == [[], [("shop/p", "resolved", False)]]


def test_a_firing_incident_is_notified_at_the_end_of_the_silence(world: Simulation) -> None:
    world.tick({"shop/p": "page"}, ["shop/p"])
    still = world.tick({"shop/p": "page"})
    world.tick({})
    over = world.tick({}, seconds=130)

    assert still == [("shop/p", "opened", True)]
    assert over == [("shop/p", "resolved", True)]


def test_an_ended_incident_is_not_notified_at_the_end_of_the_silence(world: Simulation) -> None:
    world.tick({"shop/p": "page"}, ["shop/p"])
    world.tick({}, ["shop/p"])

    assert world.tick({}) == []
    assert world.tick({"shop/p": "page"}) == [("shop/p", "opened", True)]


def test_an_incident_without_data_is_not_notified_at_the_end_of_the_silence(world: Simulation) -> None:
    world.tick({"shop/p": "page"}, ["shop/p"])

    assert world.tick({}, blind=["shop/p"]) == []
    assert world.last["shop/p"].muted == DEPLOY


def test_the_end_is_sent_to_channels_notified_of_the_opening(world: Simulation) -> None:
    world.tick({"shop/p": "ticket"})
    silenced = world.tick({"shop/p": "page"}, ["shop/p"])
    world.tick({}, ["shop/p"])
    over = world.tick({}, ["shop/p"], seconds=130)

    assert silenced == [("shop/p", "muted", False)]
    assert over == [("shop/p", "resolved", True)]


def test_the_end_of_a_silence_is_in_the_history(world: Simulation) -> None:
    world.tick({"shop/p": "page"})
    world.tick({"shop/p": "page"}, ["shop/p"])

    assert world.tick({"shop/p": "page"}) == [("shop/p", "unmuted", False)]


def test_a_relapse_of_an_unannounced_incident_is_an_opening(world: Simulation) -> None:
    world.tick({"shop/p": "page"}, ["shop/p"])
    world.tick({})
    world.tick({}, seconds=130)

    assert world.tick({"shop/p": "page"}) == [("shop/p", "opened", True)]


def test_incidents_of_one_service_are_grouped(world: Simulation) -> None:
    world.tick({"shop/p": "page"})
    joined = world.tick({"shop/p": "page", "shop/ttft": "page"})
    also = world.also("shop/p")
    same = world.tick({"shop/p": "page", "shop/ttft": "page"})
    world.tick({"shop/ttft": "page"})
    alone = world.tick({"shop/ttft": "page"}, seconds=130)

    assert joined == [("shop/p", "updated", True), ("shop/ttft", "opened", False)]
    assert also == ["shop/ttft"]
    assert same == []
    assert alone == [("shop/p", "resolved", True), ("shop/ttft", "opened", True)]


def test_the_end_of_a_grouped_incident_is_not_notified(world: Simulation) -> None:
    world.tick({"shop/p": "page", "shop/ttft": "ticket"})
    world.tick({"shop/p": "page"})

    assert world.tick({"shop/p": "page"}, seconds=130) == [("shop/ttft", "resolved", False)]


def test_a_page_is_never_grouped_under_a_ticket(world: Simulation) -> None:
    world.tick({"shop/a": "ticket", "shop/b": "ticket"})
    urgent = world.tick({"shop/a": "ticket", "shop/b": "page"})

    assert urgent == [("shop/b", "opened", True)]


def test_simultaneous_incidents_are_one_message(world: Simulation) -> None:
    events = world.tick({"shop/a": "ticket", "shop/b": "page", "shop/c": "page"})

    assert [event for event in events if event[2]] == [("shop/b", "opened", True)]
    assert world.also("shop/b") == ["shop/c", "shop/a"]


def test_environments_are_separate_groups(world: Simulation) -> None:
    one, other = (replace(world.finding, where={"environment": name}) for name in ("prod", "staging"))
    steps = [
        next_step(None, each, cause=str(at), now=START, has_data=True, hysteresis=HYSTERESIS)
        for at, each in enumerate((one, other))
    ]
    notified = [turn.notifies for turn in decide_notifications([step for step in steps if step], {}, FLEET, START)]

    assert notified == [True, True]


def test_incidents_are_not_grouped_with_a_silenced_one(world: Simulation) -> None:
    world.tick({"shop/p": "page"}, ["shop/p"])

    assert world.tick({"shop/p": "page", "shop/q": "page"}, ["shop/p"]) == [("shop/q", "opened", True)]


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
