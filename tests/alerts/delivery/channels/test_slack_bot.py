"""Slack channel with a bot token: one message per incident, transitions in its thread, and no duplicates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from stagelens.alerts.delivery.channel import OutcomeUnknownError
from stagelens.alerts.delivery.channels.slack import SlackBot
from stagelens.alerts.delivery.message import Message, Transition
from stagelens.core.errors import ChannelError
from tests.alerts.receiver import Moods
from tests.alerts.slack_workspace import CHANNEL, TOKEN, SlackWorkspace

WILLING = Moods(failing=0.0)


@pytest.fixture
def slack() -> Iterator[SlackWorkspace]:
    # Two messages per page, so that a search reads several pages.
    workspace = SlackWorkspace(WILLING, page=2)
    yield workspace
    workspace.close()
    assert workspace.violations == []


def bot(workspace: SlackWorkspace) -> SlackBot:
    return SlackBot("slack", TOKEN, CHANNEL, buttons=True, base_url=f"{workspace.url}/api")


def stamp_of(reference: str) -> str:
    return reference.split(":")[1]


def later(message: Message, transition: Transition, reference: str = "") -> Message:
    return replace(
        message,
        sequence=message.sequence + 1,
        transition=transition,
        ending="recovered" if transition == "resolved" else "",
        first=False,
        reference=reference,
    )


def test_an_incident_is_one_message_with_a_thread(slack: SlackWorkspace, message: Message) -> None:
    reference = bot(slack).send(message)
    again = bot(slack).send(later(message, "resolved", reference))

    assert again == reference == f"{CHANNEL}:{slack.parents[0]['ts']}:F000000000"
    assert [len(slack.parents), len(slack.replies)] == [1, 1]
    assert slack.replies[0]["thread_ts"] == slack.parents[0]["ts"]
    assert slack.parents[0]["said"][-1]["text"].startswith("🟢")


def test_a_possible_repeat_is_searched_before_sending(slack: SlackWorkspace, message: Message) -> None:
    mine = bot(slack).send(message)
    for number in range(3):
        bot(slack).send(replace(message, incident=f"sl-other-{number}"))
    found = bot(slack).send(replace(message, repeat=True))
    over = later(message, "resolved", mine)
    bot(slack).send(over)
    bot(slack).send(replace(over, repeat=True))

    assert stamp_of(found) == stamp_of(mine)
    assert len(slack.parents) == 4
    assert len(slack.replies) == 1


def test_a_repeat_that_is_not_found_is_sent(slack: SlackWorkspace, message: Message) -> None:
    bot(slack).send(replace(message, repeat=True))

    assert "may be a duplicate" not in str(slack.parents[0]["said"])


def test_a_bot_without_the_read_scope_notes_a_possible_duplicate(slack: SlackWorkspace, message: Message) -> None:
    slack.scopes = frozenset({"chat:write"})
    reference = bot(slack).send(message)
    bot(slack).send(replace(message, repeat=True))
    bot(slack).send(replace(later(message, "resolved", reference), repeat=True))

    assert ["may be a duplicate" in str(parent["said"][0]) for parent in slack.parents] == [False, True]
    assert "may be a duplicate" in str(slack.replies)
    assert "may be a duplicate" not in str(slack.parents[0]["said"])


def test_a_later_transition_updates_the_message_of_a_lost_response(slack: SlackWorkspace, message: Message) -> None:
    bot(slack).send(message)
    reference = bot(slack).send(later(message, "resolved"))

    assert [len(slack.parents), len(slack.replies)] == [1, 1]
    assert reference == f"{CHANNEL}:{slack.parents[0]['ts']}"


def test_a_deleted_message_is_posted_again(slack: SlackWorkspace, message: Message) -> None:
    reference = bot(slack).send(later(message, "updated", f"{CHANNEL}:1.000000"))

    assert stamp_of(reference) == slack.parents[0]["ts"]
    assert slack.replies == []


def test_refused_slack_blocks_become_text_once(slack: SlackWorkspace, message: Message) -> None:
    slack.refuse_once = ["invalid_blocks"]
    bot(slack).send(message)
    slack.refuse_once = ["invalid_blocks", "no_text"]
    with pytest.raises(ChannelError, match="no_text") as refused:
        bot(slack).send(message)

    assert "blocks" not in slack.parents[0]["said"][0]
    assert message.finding.link.replace("&", "&amp;") in slack.parents[0]["said"][0]["text"]
    assert refused.value.permanent


@pytest.mark.parametrize(
    ("word", "permanent"),
    [
        ("invalid_auth", True),
        ("channel_not_found", True),
        ("is_archived", True),
        ("restricted_action", True),
        ("msg_too_long", True),
        ("ratelimited", False),
        ("internal_error", False),
        ("fatal_error", False),
        ("service_unavailable", False),
        ("request_timeout", False),
    ],
)
def test_a_200_with_ok_false_is_a_refusal(slack: SlackWorkspace, message: Message, word: str, permanent: bool) -> None:
    slack.refuse_once = [word, word]
    with pytest.raises(ChannelError, match=word) as refused:
        bot(slack).send(message)

    assert refused.value.permanent is permanent
    assert not isinstance(refused.value, OutcomeUnknownError)


def test_the_token_is_never_in_a_repr(slack: SlackWorkspace) -> None:
    assert TOKEN not in repr(bot(slack))
