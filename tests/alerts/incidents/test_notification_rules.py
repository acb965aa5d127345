"""Who is told what: one rule for silences, planned work and stories."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stagelens.alerts.delivery.message import Finding
from stagelens.alerts.incidents.lifecycle import IncidentRecord, Step, close_incident, next_step
from stagelens.alerts.incidents.notification_rules import IncidentUpdate, decide_notifications
from stagelens.analysis.policies import Severity, default_burn_rate_policy, default_incident_policy

FLEET, PATIENCE = default_incident_policy().fleet, default_burn_rate_policy().patience
START, MINUTE = 1_795_143_840.0, 60.0
# What fires, what is silenced, what nobody can see, and how long after the one before. [seconds]
Tick = tuple[dict[str, Severity], list[str], list[str], float]
# Nobody is told of anything while it is there.
DEPLOY = "silenced by ann until 04:00 UTC on 20 November: deploy"


@dataclass
class Simulation:
    """Causes that fire or not, and what the incidents and the channels make of it."""

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
        """Go on; causes are written `service/name`. Return (name, event, told) of what happened."""
        self.now += seconds
        steps = [step for cause in {*self.last, *firing} if (step := self._step(cause, firing, blind)) is not None]
        moved = {step.record.cause for step in steps}
        standing = [Step(record) for cause, record in self.last.items() if record.is_open and cause not in moved]
        excuses = {step.record.id: DEPLOY for step in (*steps, *standing) if step.record.cause in silenced}
        found = decide_notifications([*steps, *standing], excuses, FLEET, self.now)
        self.last |= {turn.record.cause: turn.record for turn in found}
        self.turns += found
        happened = sorted((turn.record.cause, turn.event, turn.told) for turn in found if turn.event)
        self.heard += [(self.last[cause].id, event) for cause, event, told in happened if told]
        return happened

    def live_through(self, ticks: Sequence[Tick]) -> Iterator[tuple[Mapping[str, Severity], Sequence[str]]]:
        """Go on by *ticks*; yield what fired and what was silenced in each, once it is over."""
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
            patience=PATIENCE,
        )

    def one_by_one(self, services: str, *, seconds: float = 10.0) -> list[list[tuple[str, str, bool]]]:
        """Let a page begin in one service after the other, and burn on; return what was told each time."""
        firing: dict[str, Severity] = {}
        told: list[list[tuple[str, str, bool]]] = []
        for name in services:
            firing[f"{name}/p"] = "page"
            told.append([event for event in self.tick(firing, seconds=seconds) if event[2]])
        return told

    def also(self, cause: str) -> list[str]:
        """Return what was told with the last message of *cause*."""
        told = [turn for turn in self.turns if turn.record.cause == cause and turn.told]
        return [each.cause for each in told[-1].also]


@pytest.fixture
def world(finding: Finding) -> Simulation:
    return Simulation(finding)


def test_what_begins_under_a_silence_is_kept_and_not_told(world: Simulation) -> None:
    """It is in the history with the reason, and so is its end."""
    begun = world.tick({"shop/p": "page"}, ["shop/p"])
    record = world.last["shop/p"]
    over = [world.tick({}, ["shop/p"], seconds=seconds) for seconds in (10, 130)]

    assert begun == [("shop/p", "opened", False)]
    assert (record.muted, record.heard) == (DEPLOY, "")
    assert over == [[], [("shop/p", "resolved", False)]]


def test_what_still_burns_when_the_silence_ends_is_told_then(world: Simulation) -> None:
    """The opening is told late rather than never, and then its end."""
    world.tick({"shop/p": "page"}, ["shop/p"])
    still = world.tick({"shop/p": "page"})
    world.tick({})
    over = world.tick({}, seconds=130)

    assert still == [("shop/p", "opened", True)]
    assert over == [("shop/p", "resolved", True)]


def test_what_is_quiet_when_the_silence_ends_is_not_told(world: Simulation) -> None:
    """It may be over in a moment; told is what still burns."""
    world.tick({"shop/p": "page"}, ["shop/p"])
    world.tick({}, ["shop/p"])

    assert world.tick({}) == []
    assert world.tick({"shop/p": "page"}) == [("shop/p", "opened", True)]


def test_what_cannot_be_seen_when_the_silence_ends_is_not_told(world: Simulation) -> None:
    """Without data nobody knows whether it still burns."""
    world.tick({"shop/p": "page"}, ["shop/p"])

    assert world.tick({}, blind=["shop/p"]) == []
    assert world.last["shop/p"].muted == DEPLOY


def test_the_end_is_told_to_those_who_heard_the_beginning(world: Simulation) -> None:
    """A silence that comes later keeps quiet about growth, not about the end."""
    world.tick({"shop/p": "ticket"})
    silenced = world.tick({"shop/p": "page"}, ["shop/p"])
    world.tick({}, ["shop/p"])
    over = world.tick({}, ["shop/p"], seconds=130)

    assert silenced == [("shop/p", "muted", False)]
    assert over == [("shop/p", "resolved", True)]


def test_a_silence_that_ends_is_in_the_history(world: Simulation) -> None:
    """Channels know that it is open: there is nothing to tell them."""
    world.tick({"shop/p": "page"})
    world.tick({"shop/p": "page"}, ["shop/p"])

    assert world.tick({"shop/p": "page"}) == [("shop/p", "unmuted", False)]


def test_what_was_resolved_unheard_and_comes_back_is_opened(world: Simulation) -> None:
    """Channels hear of an opening first, whatever the incident has been through."""
    world.tick({"shop/p": "page"}, ["shop/p"])
    world.tick({})
    world.tick({}, seconds=130)

    assert world.tick({"shop/p": "page"}) == [("shop/p", "opened", True)]


def test_incidents_of_one_service_are_one_story(world: Simulation) -> None:
    """The second is told as an update of the first, once; when the first is over, the second is told by itself."""
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


def test_what_ends_within_a_story_was_never_told(world: Simulation) -> None:
    """Nobody hears the end of what was told as part of another."""
    world.tick({"shop/p": "page", "shop/ttft": "ticket"})
    world.tick({"shop/p": "page"})

    assert world.tick({"shop/p": "page"}, seconds=130) == [("shop/ttft", "resolved", False)]


def test_a_page_is_never_told_within_a_ticket(world: Simulation) -> None:
    """What is urgent is opened by itself, also when it becomes so later."""
    world.tick({"shop/a": "ticket", "shop/b": "ticket"})
    urgent = world.tick({"shop/a": "ticket", "shop/b": "page"})

    assert urgent == [("shop/b", "opened", True)]


def test_incidents_that_begin_together_are_one_message(world: Simulation) -> None:
    """The page is opened, and what begins with it is in its message."""
    begun = world.tick({"shop/a": "ticket", "shop/b": "page", "shop/c": "page"})

    assert [event for event in begun if event[2]] == [("shop/b", "opened", True)]
    assert world.also("shop/b") == ["shop/c", "shop/a"]


def test_environments_are_stories_of_their_own(world: Simulation) -> None:
    """What fails in staging is not told with production; what is about all environments is told with either."""
    one, other = (replace(world.finding, where={"environment": name}) for name in ("prod", "staging"))
    steps = [
        next_step(None, each, cause=str(at), now=START, has_data=True, patience=PATIENCE)
        for at, each in enumerate((one, other))
    ]
    told = [turn.told for turn in decide_notifications([step for step in steps if step], {}, FLEET, START)]

    assert told == [True, True]


def test_a_silenced_incident_takes_no_other_with_it(world: Simulation) -> None:
    """What is told with an incident nobody hears of would be lost, so it is told by itself."""
    world.tick({"shop/p": "page"}, ["shop/p"])

    assert world.tick({"shop/p": "page", "shop/q": "page"}, ["shop/p"]) == [("shop/q", "opened", True)]


def test_of_an_acknowledged_incident_only_another_page_is_news(world: Simulation) -> None:
    """Somebody is there already; a ticket can wait for them."""
    world.tick({"shop/p": "page"})
    world.last["shop/p"] = replace(world.last["shop/p"], acked_at=START, acked_by="ann")
    ticket = world.tick({"shop/p": "page", "shop/t": "ticket"})
    page = world.tick({"shop/p": "page", "shop/t": "ticket", "shop/q": "page"})

    assert ticket == [("shop/t", "opened", False)]
    assert page == [("shop/p", "updated", True), ("shop/q", "opened", False)]


def test_many_services_at_once_are_one_message(world: Simulation) -> None:
    """Five services in one evaluation are one story, with the others in its message."""
    firing: dict[str, Severity] = {f"{name}/p": "page" for name in "abcde"}
    begun = world.tick(firing)

    assert [event for event in begun if event[2]] == [("a/p", "opened", True)]
    assert world.also("a/p") == ["b/p", "c/p", "d/p", "e/p"]


def test_many_services_one_after_the_other_become_one_story(world: Simulation) -> None:
    """The first four were told by themselves; from the fifth on the first one speaks for all."""
    told = world.one_by_one("abcdef")

    assert [len(events) for events in told] == [1] * 6
    assert told[3:] == [[("d/p", "opened", True)], [("a/p", "updated", True)], [("a/p", "updated", True)]]
    assert world.also("a/p") == ["e/p", "f/p"]


def test_what_comes_later_is_told_with_its_own_service(world: Simulation) -> None:
    """Of a story of many services, the incident of the same one speaks for it."""
    world.one_by_one("abcde")
    firing: dict[str, Severity] = {f"{name}/p": "page" for name in "abcde"}
    firing["b/q"] = "page"

    assert world.tick(firing, seconds=3600) == [("b/p", "updated", True), ("b/q", "opened", False)]


def test_services_hours_apart_are_not_one_story(world: Simulation) -> None:
    """A slow series of troubles is not one event."""
    told = world.one_by_one("abcdefg", seconds=3600)

    assert told == [[(f"{name}/p", "opened", True)] for name in "abcdefg"]


def test_an_slo_that_was_removed_ends_untold_if_nobody_heard(world: Simulation) -> None:
    """A story's part that is closed says nothing."""
    world.tick({"shop/p": "page", "shop/q": "page"})
    closed = decide_notifications(
        [close_incident(world.last["shop/q"], "removed", world.now), Step(world.last["shop/p"])], {}, FLEET, world.now
    )

    assert [(turn.event, turn.told) for turn in closed if turn.event] == [("resolved", False)]


CAUSES = ("a/p", "a/q", "b/p", "c/p", "d/p", "e/p")
TICK = st.tuples(
    st.dictionaries(st.sampled_from(CAUSES), st.sampled_from(["page", "ticket"])),
    st.lists(st.sampled_from(CAUSES), unique=True),
    st.lists(st.sampled_from(CAUSES), unique=True),
    st.sampled_from([10.0, 130.0, 1000.0]),
)
# The finding is only ever copied.
whatever_happens = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


@whatever_happens
@given(ticks=st.lists(TICK, max_size=25))
def test_every_channel_hears_openings_and_ends_in_turn(finding: Finding, ticks: list[Tick]) -> None:
    """Whatever fires and whatever silences come and go: no end without a beginning, no second beginning before the end."""
    world = Simulation(finding)
    for firing, _ in world.live_through(ticks):
        for cause, record in world.last.items():
            burns = cause in firing and record.is_open
            # Nobody is left out: what burns is told, or there is a reason.
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
def test_a_page_nobody_excused_is_heard_at_once(finding: Finding, ticks: list[Tick]) -> None:
    """Every page that burns and is not silenced is open at the channels, or told with another page that is."""
    world = Simulation(finding)
    for firing, silenced in world.live_through(ticks):
        by_id = {record.id: record for record in world.last.values()}
        for cause, severity in firing.items():
            record = world.last[cause]
            if severity == "page" and cause not in silenced and record.heard != "open":
                lead = by_id[record.muted.removeprefix("told with ")]
                assert (lead.heard, lead.finding.severity, lead.is_open) == ("open", "page", True)
                assert lead.cause not in silenced
