"""The outbox: delivery at least once and in order, superseded messages, retries and repetition."""

from __future__ import annotations

import random
from dataclasses import replace

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
from tests.alerts.stored import FakeChannel, about, open_incident, stored_incidents

AT = 1_795_143_840.0
HOUR = 3600.0
RNG = random.Random(7)
TRANSIENT = ChannelError("Slack responded 503", permanent=False)


@pytest.fixture
def first(store: Store, message: Message) -> Message:
    return add(store, open_incident(store, message), "slack", "pagerduty")


def add(store: Store, message: Message, *channels: str) -> Message:
    with store.transaction() as connection:
        outbox.record_transition(connection, message, channels or ["slack"])
    return message


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


def accept(store: Store, claimed: outbox.Claim, at: float, reference: str = "", refresh: Refresh | None = None) -> None:
    with store.transaction() as connection:
        outbox.mark_sent(connection, claimed, at, reference, refresh)


def slack_rows(store: Store) -> list[Delivery]:
    return [row for incident in stored_incidents(store) for row in incident.deliveries if row.channel == "slack"]


def test_a_row_belongs_to_one_process_until_its_lease_expires(store: Store, first: Message) -> None:
    late = claim(store, AT)
    early = due(store, AT + 1, "you")
    again = claim(store, AT + 61, "you")
    fail(store, late, ChannelError("no", permanent=True), AT + 62)

    assert (late.message, early) == (first, None)
    assert claim(store, AT + 1, "you", "pagerduty").message == first
    assert (again.attempts, again.message.repeat, again.message.key) == (2, True, first.key)
    assert [row.state for row in slack_rows(store)] == ["sending"]


def test_a_temporary_refusal_is_retried_later(store: Store, first: Message) -> None:
    # No database stores these characters.
    fail(store, claim(store, AT), ChannelError("Slack responded 503 \0\ud800", permanent=False), AT)
    row = slack_rows(store)[0]
    assert row.next_attempt is not None
    again = claim(store, row.next_attempt.timestamp() + 0.001)

    assert (row.state, row.attempts, row.error[:19]) == ("waiting", 1, "Slack responded 503")
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
    fail(store, replace(claimed, message=about(first, severity=severity), attempts=99), TRANSIENT, AT + hours * HOUR)
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
    ticket = replace(about(first, severity="ticket"), incident="sl-ticket", at=AT - HOUR)
    add(store, open_incident(store, ticket))

    assert claim(store, AT).message.incident == first.incident


def test_messages_of_a_removed_channel_are_dead(store: Store, first: Message) -> None:
    with store.transaction() as connection:
        outbox.abandon_removed_channels(connection, ["pagerduty"], AT)

    assert [(row.state, row.error) for row in slack_rows(store)] == [
        ("dead", "the channel was removed from the SLO file")
    ]
    assert claim(store, AT, channel="pagerduty").message == first


@given(attempts=st.integers(1, 10_000), asked=st.floats(-10, 1e9) | st.none(), seed=st.integers())
def test_a_past_retry_after_still_backs_off(attempts: int, asked: float | None, seed: int) -> None:
    delay, wanted = outbox.retry_delay(attempts, asked, random.Random(seed)), min(asked or 0.0, 3600)

    assert max(wanted, min(2 ** min(attempts - 1, 10), 300) / 2) <= delay <= max(wanted, 300)


REFRESH = Refresh(every_seconds=60.0, after_end_seconds=300.0)


def test_a_repeating_message_is_due_again_after_a_minute(store: Store, first: Message) -> None:
    accept(store, claim(store, AT), AT, refresh=REFRESH)
    early, again = due(store, AT + 59), claim(store, AT + 60)
    accept(store, again, AT + 61, refresh=REFRESH)
    row = slack_rows(store)[0]

    assert early is None
    assert (again.message.key, again.message.repeat, again.reminder) == (first.key, False, True)
    assert (row.state, row.attempts, row.at.timestamp()) == ("sent", 1, AT)
    assert due(store, AT + 120) is None
    assert due(store, AT + 121) is not None


def test_a_failed_repetition_is_retried_and_never_dead(store: Store, first: Message) -> None:
    accept(store, claim(store, AT), AT, refresh=REFRESH)
    fail(store, claim(store, AT + 60), ChannelError("no", permanent=True), AT + 60)

    assert [row.state for row in slack_rows(store)] == ["sent"]
    assert claim(store, AT + 62).message.key == first.key


def test_only_the_last_message_is_repeated(store: Store, first: Message) -> None:
    accept(store, claim(store, AT), AT, refresh=REFRESH)
    reminder = claim(store, AT + 60)
    add(store, replace(first, sequence=2, transition="resolved", at=AT + 61))
    overtaking = due(store, AT + 61, "you")
    accept(store, reminder, AT + 62, refresh=REFRESH)
    end = claim(store, AT + 62)
    accept(store, end, AT + 62, refresh=REFRESH)
    later = AT + 62
    while (again := due(store, later + 60)) is not None:
        assert again.message.sequence == 2
        later += 60
        accept(store, again, later, refresh=REFRESH)

    assert overtaking is None
    assert end.message.sequence == 2
    assert later == AT + 302


def test_the_reference_of_a_channel_is_passed_to_the_next_message(store: Store, first: Message) -> None:
    references: list[str] = []
    for sequence, returned in ((2, "C1:1"), (3, "C1:1"), (4, "C1:7"), (5, "")):
        claimed = claim(store, AT + sequence)
        references.append(claimed.message.reference)
        accept(store, claimed, AT + sequence, returned)
        add(store, replace(first, sequence=sequence, transition="updated"))
    last = claim(store, AT + 9)

    assert references == ["", "C1:1", "C1:1", "C1:7"]
    assert (last.message.reference, last.message.first) == ("C1:7", False)


def test_a_channel_with_a_long_name_can_lease(store: Store, message: Message) -> None:
    channel = FakeChannel("n" * 64)
    add(store, open_incident(store, message), channel.name)
    DeliveryWorker(store, channel, new_holder(), clock=lambda: AT).step()

    assert channel.sent == [message.key]


def test_the_oldest_unsent_page_is_found(store: Store, first: Message) -> None:
    with store.engine.connect() as connection:
        waiting = outbox.oldest_waiting_page(connection)
    accept(store, claim(store, AT), AT)
    accept(store, claim(store, AT, channel="pagerduty"), AT)
    with store.engine.connect() as connection:
        none = outbox.oldest_waiting_page(connection)

    assert (waiting, none) == (first.at, None)
