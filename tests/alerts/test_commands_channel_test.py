"""`stagelens alerts test`: a sample goes out, and what comes back is said with its cure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from stagelens.alerts.commands import check_channel
from stagelens.alerts.delivery.channel import Channel
from stagelens.alerts.delivery.channels import ChannelEntry
from stagelens.alerts.delivery.channels.email import EmailChannel
from stagelens.alerts.delivery.channels.heartbeat import Heartbeat
from stagelens.alerts.delivery.channels.pagerduty import PagerDutyChannel
from stagelens.alerts.delivery.channels.slack import SlackBot, SlackWebhook
from tests.alerts.mail_server import MailServer
from tests.alerts.receiver import Moods, Receiver
from tests.alerts.slack_workspace import CHANNEL, TOKEN, SlackWorkspace
from tests.alerts.vendors import PagerDutyService, SlackHook

WILLING = Moods(failing=0.0)
Open = Callable[[Any], Any]


@pytest.fixture
def open_one() -> Iterator[Open]:
    """Takes receivers, and closes them in the end."""
    opened: list[Receiver | MailServer] = []

    def take(one: Receiver | MailServer) -> Receiver | MailServer:
        opened.append(one)
        return one

    yield take
    for one in opened:
        one.close()


def lines(kind: str, channel: Channel) -> list[str]:
    return list(check_channel(ChannelEntry(kind, kind, channel), sleep=lambda _: None))


def test_a_sample_is_opened_and_resolved(open_one: Open) -> None:
    """Both reach PagerDuty as one alert, and the last line says that all is well."""
    service = open_one(PagerDutyService(WILLING))
    said = lines("pagerduty", PagerDutyChannel("pagerduty", "K" * 32, service.url))

    assert said[0].startswith("to pagerduty (pagerduty): stagelens-test: latency SLO burning 6.2")
    assert said[1:] == [
        "opened: accepted",
        "resolved: accepted",
        "ok: pagerduty accepted both; check there how they are displayed",
    ]
    assert list(service.created.values()) == list(service.resolved.values()) == [1]


def test_a_sample_is_one_thread_in_slack(open_one: Open) -> None:
    """The second message goes where the first went."""
    workspace = open_one(SlackWorkspace(WILLING))
    said = lines("slack", SlackBot("slack", TOKEN, CHANNEL, base_url=f"{workspace.url}/api"))

    assert said[1] == f"opened: accepted as {CHANNEL}:1795143840.000000:F000000000"
    assert [len(workspace.parents), len(workspace.replies)] == [1, 1]


def test_a_usual_mistake_comes_with_its_cure(open_one: Open) -> None:
    """Slack's word, whether it would be retried, and what to do."""
    workspace = open_one(SlackWorkspace(WILLING))
    workspace.refuse_once = ["not_in_channel"]
    said = lines("slack", SlackBot("slack", TOKEN, CHANNEL, base_url=f"{workspace.url}/api"))

    assert said[1:] == [
        "opened: not accepted (it would not be retried): Slack responded not_in_channel to chat.postMessage",
        "failed: The bot is not in the channel: write /invite @<its name> there.",
    ]


def test_what_may_have_arrived_is_closed_all_the_same(open_one: Open) -> None:
    """A page that was perhaps opened must not stay open because it was a test."""
    server = open_one(MailServer(WILLING, answers={".": ""}))
    said = lines(
        "email", EmailChannel("email", "127.0.0.1", "a@b.example", ("c@d.example",), security="none", port=server.port)
    )

    assert [line.partition(":")[0] for line in said[1:]] == ["opened", "resolved", "failed"]
    assert said[3] == "failed: The receiver sent no response: check there whether the message arrived."


def test_a_receiver_that_is_not_there() -> None:
    """Nothing listens: said so, with what to look at."""
    hook = SlackHook(WILLING)
    hook.close()

    assert lines("slack", SlackWebhook("slack", f"{hook.url}/services/x"))[-1].startswith("failed: Nothing listens at")


def test_a_heartbeat_is_pinged_once() -> None:
    """There is no incident to tell it of."""
    entry = ChannelEntry("pulse", "heartbeat", None, heartbeat=Heartbeat("pulse", "http://127.0.0.1:9/x"))

    assert next(check_channel(entry)) == "to pulse (heartbeat): one ping"
    assert list(check_channel(entry))[1].startswith("failed: Nothing listens at")


def test_a_secret_that_is_missing_is_named() -> None:
    """Nothing can be sent, and the line says what to add."""
    said = list(check_channel(ChannelEntry("slack", "slack", None, lacking="SLACK_WEBHOOK_URL")))

    assert said == ["failed: SLACK_WEBHOOK_URL is not there, so slack can send nothing; add it and try again"]
