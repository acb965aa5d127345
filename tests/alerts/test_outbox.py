"""The outbox: at least once, in order, the newest first when late, and nothing lost without a word."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelens.alerts import outbox
from stagelens.alerts.channel import OutcomeUnknownError
from stagelens.alerts.message import Message
from stagelens.alerts.reader import AlertsReader, Delivery
from stagelens.alerts.schema import incidents
from stagelens.alerts.slo_file import LiveFile
from stagelens.collector.store import Store
from stagelens.core.errors import ChannelError

AT = 1_795_143_840.0
HOUR = 3600.0
RNG = random.Random(7)
TRANSIENT = ChannelError("Slack answered 503", permanent=False)


@pytest.fixture
def first(store: Store, message: Message) -> Message:
    """The first message of an incident, in the outbox for Slack and PagerDuty."""
    open_incident(store, message, "slo:x")
    with store.transaction() as connection:
        outbox.record(connection, message, ["slack", "pagerduty"])
    return message


def open_incident(store: Store, message: Message, cause: str) -> None:
    """Open the incident *message* is about."""
    with store.transaction() as connection:
        connection.execute(
            incidents.insert().values(
                id=message.incident,
                cause=cause,
                service="s",
                severity="page",
                opened_at=AT,
                since=AT,
                seen_at=AT,
                told_at=AT,
                ending="",
                sequence=1,
                peak_burn=1.0,
                finding=message.finding.to_json(),
            )
        )


def add(store: Store, message: Message) -> None:
    with store.transaction() as connection:
        outbox.record(connection, message, ["slack"])


def claim(store: Store, at: float, holder: str = "me", channel: str = "slack") -> outbox.Claim | None:
    with store.transaction() as connection:
        return outbox.claim(connection, channel, holder, at, 60.0)


def fail(store: Store, claimed: outbox.Claim | None, error: ChannelError, at: float) -> None:
    assert claimed is not None
    with store.transaction() as connection:
        outbox.failed(connection, claimed, error, at, RNG)


def accept(store: Store, claimed: outbox.Claim | None, at: float) -> None:
    assert claimed is not None
    with store.transaction() as connection:
        outbox.sent(connection, claimed, at)


def slack_rows(store: Store) -> list[Delivery]:
    found = AlertsReader(store, LiveFile(None, {})).incidents()
    return [row for incident in found for row in incident.deliveries if row.channel == "slack"]


def test_a_leased_row_is_nobody_elses(store: Store, first: Message) -> None:
    """Two processes never hold the same message; another channel's row is free."""
    mine = claim(store, AT)

    assert mine is not None
    assert mine.message == first
    assert claim(store, AT + 1, "you") is None
    assert claim(store, AT + 1, "you", "pagerduty") is not None


def test_a_lease_that_ran_out_is_sent_again_as_a_repeat(store: Store, first: Message) -> None:
    """A process that died while it was sending leaves a message whose fate is unknown, and it says so."""
    claim(store, AT)
    again = claim(store, AT + 61, "you")

    assert again is not None
    assert (again.attempts, again.message.repeat, again.message.key) == (2, True, first.key)


def test_the_outcome_of_a_lost_lease_is_not_believed(store: Store, first: Message) -> None:
    """Whoever comes back late cannot settle what another process sends now."""
    late = claim(store, AT)
    claim(store, AT + 61, "you")
    fail(store, late, ChannelError("no", permanent=True), AT + 62)

    assert [row.state for row in slack_rows(store)] == ["sending"]
    assert first.key


def test_a_refusal_is_tried_again_later(store: Store, first: Message) -> None:
    """A transient refusal waits its turn and is no repeat: the receiver said it has not taken it."""
    fail(store, claim(store, AT), TRANSIENT, AT)
    row = slack_rows(store)[0]
    assert row.next_attempt is not None
    again = claim(store, row.next_attempt.timestamp() + 0.001)

    assert (row.state, row.attempts, row.error) == ("waiting", 1, "Slack answered 503")
    assert again is not None
    assert again.message == first


def test_no_answer_makes_the_next_one_a_repeat(store: Store, first: Message) -> None:
    """A connection cut after the request may have delivered it, whatever the later answers are."""
    fail(store, claim(store, AT), OutcomeUnknownError("no answer"), AT)
    second = claim(store, AT + 10)
    fail(store, second, TRANSIENT, AT + 10)
    third = claim(store, AT + 20)

    assert second is not None
    assert third is not None
    assert (second.message.repeat, third.message.repeat) == (True, True)
    assert second.message.key == first.key


def test_a_permanent_refusal_is_dead_and_shown(store: Store, first: Message) -> None:
    """It is not tried again, and people see why; later transitions are."""
    fail(store, claim(store, AT), ChannelError("Slack answered 404: no_service", permanent=True), AT)
    row = slack_rows(store)[0]
    add(store, replace(first, sequence=2, transition="resolved"))
    following = claim(store, AT + 1)

    assert (row.state, row.error, row.next_attempt) == ("dead", "Slack answered 404: no_service", None)
    assert following is not None
    assert (following.message.sequence, following.message.first) == (2, True)


@pytest.mark.parametrize(("severity", "hours"), [("page", 24), ("ticket", 6)])
def test_yesterdays_alert_is_given_up(store: Store, first: Message, severity: str, hours: int) -> None:
    """After a day (a ticket: six hours) of refusals a message is dead, and says how often it was tried."""
    claimed = claim(store, AT)
    assert claimed is not None
    late = replace(first, finding=replace(first.finding, severity=severity))
    fail(store, replace(claimed, message=late, attempts=99), TRANSIENT, AT + hours * HOUR)
    row = slack_rows(store)[0]

    assert (row.state, row.error) == ("dead", "given up after 99 attempts; last: Slack answered 503")


def test_the_newest_transition_supersedes_what_was_not_sent(store: Store, first: Message) -> None:
    """After an outage of Slack people hear how it stands, in one message that knows it is the first."""
    add(store, replace(first, sequence=2, transition="updated"))
    add(store, replace(first, sequence=3, transition="resolved", ending="recovered"))
    only = claim(store, AT)
    accept(store, only, AT + 1)

    assert only is not None
    assert (only.message.sequence, only.message.first) == (3, True)
    assert [row.state for row in slack_rows(store)] == ["superseded", "superseded", "sent"]
    assert claim(store, AT + HOUR) is None


def test_order_is_kept_while_a_message_is_on_its_way(store: Store, first: Message) -> None:
    """A resolve does not overtake the message that is being sent, and knows it is not the first."""
    claimed = claim(store, AT)
    add(store, replace(first, sequence=2, transition="resolved"))
    overtaking = claim(store, AT + 1, "you")
    accept(store, claimed, AT + 2)
    following = claim(store, AT + 3, "you")

    assert overtaking is None
    assert following is not None
    assert (following.message.sequence, following.message.first) == (2, False)


def test_pages_go_before_tickets(store: Store, first: Message) -> None:
    """When both wait, the page is sent first, though the ticket is older."""
    ticket = replace(first, incident="sl-ticket", at=AT - HOUR, finding=replace(first.finding, severity="ticket"))
    open_incident(store, ticket, "slo:y")
    add(store, ticket)
    chosen = claim(store, AT)

    assert chosen is not None
    assert chosen.message.incident == first.incident


def test_a_channel_that_is_gone_keeps_nothing_waiting(store: Store, first: Message) -> None:
    """What waits for a channel that was taken out of the file is dead, with the reason."""
    with store.transaction() as connection:
        outbox.abandon(connection, ["pagerduty"], AT)

    assert [(row.state, row.error) for row in slack_rows(store)] == [
        ("dead", "the channel is not in the SLO file any more")
    ]
    assert claim(store, AT, channel="pagerduty") is not None
    assert first.key


@given(attempts=st.integers(1, 10_000), seed=st.integers())
def test_the_backoff_is_bounded(attempts: int, seed: int) -> None:
    """However often it failed, the next try is within five minutes."""
    assert 0 <= outbox.delay(attempts, None, random.Random(seed)) <= 300


@given(attempts=st.integers(1, 100), asked=st.floats(0, 3600))
def test_what_the_receiver_asked_for_wins(attempts: int, asked: float) -> None:
    """`Retry-After` is obeyed to the second."""
    assert outbox.delay(attempts, asked, RNG) == asked


def test_nobody_waits_for_ever() -> None:
    """A receiver that asks for a year gets an hour."""
    assert outbox.delay(1, 365 * 86_400.0, RNG) == 3600


def test_an_answer_that_is_no_text_is_kept(store: Store, first: Message) -> None:
    """What a receiver answers may hold anything; the row waits for its next try all the same."""
    fail(store, claim(store, AT), ChannelError("Slack answered \0\ud800", permanent=False), AT)

    assert [row.state for row in slack_rows(store)] == ["waiting"]
    assert first.key
