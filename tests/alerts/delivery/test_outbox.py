"""The outbox: delivery at least once and in order, superseded messages, retries and repetition."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelens.alerts.delivery import outbox
from stagelens.alerts.delivery.channel import OutcomeUnknownError, Refresh
from stagelens.alerts.delivery.message import Message
from stagelens.alerts.delivery.outbox import DeliveryWorker
from stagelens.alerts.reader import Delivery
from stagelens.core.errors import ChannelError
from stagelens.store import Store
from stagelens.store.lease import new_holder
from tests.alerts.stored import open_incident, stored_incidents

AT = 1_795_143_840.0
HOUR = 3600.0
RNG = random.Random(7)
TRANSIENT = ChannelError("Slack responded 503", permanent=False)


@pytest.fixture
def first(store: Store, message: Message) -> Message:
    open_incident(store, message)
    with store.transaction() as connection:
        outbox.record_transition(connection, message, ["slack", "pagerduty"])
    return message


def add(store: Store, message: Message) -> None:
    with store.transaction() as connection:
        outbox.record_transition(connection, message, ["slack"])


def due(store: Store, at: float, holder: str = "me", channel: str = "slack") -> outbox.Claim | None:
    with store.transaction() as connection:
        return outbox.claim_message(connection, channel, holder, at, 60.0)


def claim(store: Store, at: float, holder: str = "me", channel: str = "slack") -> outbox.Claim:
    claimed = due(store, at, holder, channel)
    assert claimed is not None
    return claimed


def fail(store: Store, claimed: outbox.Claim, error: ChannelError, at: float) -> None:
    with store.transaction() as connection:
        outbox.mark_failed(connection, claimed, error, at, RNG)


def accept(store: Store, claimed: outbox.Claim, at: float) -> None:
    with store.transaction() as connection:
        outbox.mark_sent(connection, claimed, at)


def slack_rows(store: Store) -> list[Delivery]:
    return [row for incident in stored_incidents(store) for row in incident.deliveries if row.channel == "slack"]


def test_a_leased_row_is_exclusive(store: Store, first: Message) -> None:
    assert claim(store, AT).message == first
    assert due(store, AT + 1, "you") is None
    assert claim(store, AT + 1, "you", "pagerduty").message == first


def test_a_row_with_an_expired_lease_is_sent_again_as_a_repeat(store: Store, first: Message) -> None:
    claim(store, AT)
    again = claim(store, AT + 61, "you")

    assert (again.attempts, again.message.repeat, again.message.key) == (2, True, first.key)


@pytest.mark.usefixtures("first")
def test_the_outcome_of_a_lost_lease_is_ignored(store: Store) -> None:
    late = claim(store, AT)
    claim(store, AT + 61, "you")
    fail(store, late, ChannelError("no", permanent=True), AT + 62)

    assert [row.state for row in slack_rows(store)] == ["sending"]


def test_a_temporary_refusal_is_retried_later(store: Store, first: Message) -> None:
    fail(store, claim(store, AT), TRANSIENT, AT)
    row = slack_rows(store)[0]
    assert row.next_attempt is not None
    again = claim(store, row.next_attempt.timestamp() + 0.001)

    assert (row.state, row.attempts, row.error) == ("waiting", 1, "Slack responded 503")
    assert again.message == first


def test_a_lost_response_makes_later_attempts_repeats(store: Store, first: Message) -> None:
    fail(store, claim(store, AT), OutcomeUnknownError("no answer"), AT)
    second = claim(store, AT + 10)
    fail(store, second, TRANSIENT, AT + 10)
    third = claim(store, AT + 20)

    assert (second.message.repeat, third.message.repeat) == (True, True)
    assert second.message.key == first.key


def test_a_permanent_refusal_ends_the_retries(store: Store, first: Message) -> None:
    fail(store, claim(store, AT), ChannelError("Slack responded 404: no_service", permanent=True), AT)
    row = slack_rows(store)[0]
    add(store, replace(first, sequence=2, transition="resolved"))
    following = claim(store, AT + 1)

    assert (row.state, row.error, row.next_attempt) == ("dead", "Slack responded 404: no_service", None)
    assert (following.message.sequence, following.message.first) == (2, True)


@pytest.mark.parametrize(("severity", "hours"), [("page", 24), ("ticket", 6)])
def test_a_message_older_than_its_limit_is_dead(store: Store, first: Message, severity: str, hours: int) -> None:
    claimed = claim(store, AT)
    late = replace(first, finding=replace(first.finding, severity=severity))
    fail(store, replace(claimed, message=late, attempts=99), TRANSIENT, AT + hours * HOUR)
    row = slack_rows(store)[0]

    assert (row.state, row.error) == ("dead", "dropped after 99 attempts; last: Slack responded 503")


def test_the_newest_transition_supersedes_unsent_ones(store: Store, first: Message) -> None:
    add(store, replace(first, sequence=2, transition="updated"))
    add(store, replace(first, sequence=3, transition="resolved", ending="recovered"))
    only = claim(store, AT)
    accept(store, only, AT + 1)

    assert (only.message.sequence, only.message.first) == (3, True)
    assert [row.state for row in slack_rows(store)] == ["superseded", "superseded", "sent"]
    assert due(store, AT + HOUR) is None


def test_order_is_preserved_while_a_message_is_being_sent(store: Store, first: Message) -> None:
    claimed = claim(store, AT)
    add(store, replace(first, sequence=2, transition="resolved"))
    overtaking = due(store, AT + 1, "you")
    accept(store, claimed, AT + 2)
    following = claim(store, AT + 3, "you")

    assert overtaking is None
    assert (following.message.sequence, following.message.first) == (2, False)


def test_pages_are_sent_before_tickets(store: Store, first: Message) -> None:
    ticket = replace(first, incident="sl-ticket", at=AT - HOUR, finding=replace(first.finding, severity="ticket"))
    open_incident(store, ticket)
    add(store, ticket)

    assert claim(store, AT).message.incident == first.incident


def test_messages_of_a_removed_channel_are_dead(store: Store, first: Message) -> None:
    with store.transaction() as connection:
        outbox.abandon_removed_channels(connection, ["pagerduty"], AT)

    assert [(row.state, row.error) for row in slack_rows(store)] == [
        ("dead", "the channel was removed from the SLO file")
    ]
    assert claim(store, AT, channel="pagerduty").message == first


@given(attempts=st.integers(1, 10_000), seed=st.integers())
def test_the_backoff_is_bounded(attempts: int, seed: int) -> None:
    assert 0 <= outbox.retry_delay(attempts, None, random.Random(seed)) <= 300


@given(attempts=st.integers(1, 100), asked=st.floats(300, 3600))
def test_retry_after_delays_the_retry(attempts: int, asked: float) -> None:
    assert outbox.retry_delay(attempts, asked, RNG) == asked


@given(attempts=st.integers(1, 10_000), asked=st.floats(-10, 1) | st.none(), seed=st.integers())
def test_a_past_retry_after_still_backs_off(attempts: int, asked: float | None, seed: int) -> None:
    assert outbox.retry_delay(attempts, asked, random.Random(seed)) >= min(2 ** min(attempts - 1, 10), 300) / 2


def test_retry_after_is_limited_to_an_hour() -> None:
    assert outbox.retry_delay(1, 365 * 86_400.0, RNG) == 3600


@pytest.mark.usefixtures("first")
def test_an_error_with_invalid_characters_is_stored(store: Store) -> None:
    fail(store, claim(store, AT), ChannelError("Slack responded \0\ud800", permanent=False), AT)

    assert [row.state for row in slack_rows(store)] == ["waiting"]


REFRESH = Refresh(every_seconds=60.0, after_end_seconds=300.0)


def remind(store: Store, claimed: outbox.Claim, at: float) -> None:
    with store.transaction() as connection:
        outbox.mark_sent(connection, claimed, at, "", REFRESH)


def test_a_repeating_message_is_due_again_after_a_minute(store: Store, first: Message) -> None:
    remind(store, claim(store, AT), AT)
    early, again = due(store, AT + 59), claim(store, AT + 60)
    remind(store, again, AT + 61)
    row = slack_rows(store)[0]

    assert early is None
    assert (again.message.key, again.message.repeat, again.reminder) == (first.key, False, True)
    assert (row.state, row.attempts, row.at.timestamp()) == ("sent", 1, AT)
    assert due(store, AT + 120) is None
    assert due(store, AT + 121) is not None


def test_a_failed_repetition_is_retried_and_never_dead(store: Store, first: Message) -> None:
    remind(store, claim(store, AT), AT)
    fail(store, claim(store, AT + 60), ChannelError("no", permanent=True), AT + 60)

    assert [row.state for row in slack_rows(store)] == ["sent"]
    assert claim(store, AT + 62).message.key == first.key


def test_only_the_last_message_is_repeated(store: Store, first: Message) -> None:
    remind(store, claim(store, AT), AT)
    reminder = claim(store, AT + 60)
    add(store, replace(first, sequence=2, transition="resolved", at=AT + 61))
    overtaking = due(store, AT + 61, "you")
    remind(store, reminder, AT + 62)
    end = claim(store, AT + 62)
    remind(store, end, AT + 62)
    later = AT + 62
    while (again := due(store, later + 60)) is not None:
        assert again.message.sequence == 2
        later += 60
        remind(store, again, later)

    assert overtaking is None
    assert end.message.sequence == 2
    assert later == AT + 302


def test_the_reference_of_a_channel_is_passed_to_the_next_message(store: Store, first: Message) -> None:
    references: list[str] = []
    for sequence, returned in ((2, "C1:1"), (3, "C1:1"), (4, "C1:7"), (5, "")):
        claimed = claim(store, AT + sequence)
        references.append(claimed.message.reference)
        with store.transaction() as connection:
            outbox.mark_sent(connection, claimed, AT + sequence, returned)
        add(store, replace(first, sequence=sequence, transition="updated"))
    last = claim(store, AT + 9)

    assert references == ["", "C1:1", "C1:1", "C1:7"]
    assert (last.message.reference, last.message.first) == ("C1:7", False)


def test_a_channel_with_a_long_name_can_lease(store: Store, message: Message) -> None:
    name = "n" * 64
    open_incident(store, message)
    with store.transaction() as connection:
        outbox.record_transition(connection, message, [name])
    channel = AcceptingChannel(name)
    DeliveryWorker(store, channel, new_holder(), clock=lambda: AT).step()

    assert [received.key for received in channel.heard] == [message.key]


@dataclass
class AcceptingChannel:
    name: str
    heard: list[Message] = field(default_factory=list[Message])
    gap_seconds: float = 0.0
    refresh: Refresh | None = None

    def send(self, message: Message) -> str:
        self.heard.append(message)
        return ""


def test_the_oldest_unsent_page_is_found(store: Store, first: Message) -> None:
    with store.engine.connect() as connection:
        waiting = outbox.oldest_waiting_page(connection)
    accept(store, claim(store, AT), AT)
    accept(store, claim(store, AT, channel="pagerduty"), AT)
    with store.engine.connect() as connection:
        none = outbox.oldest_waiting_page(connection)

    assert (waiting, none) == (first.at, None)
