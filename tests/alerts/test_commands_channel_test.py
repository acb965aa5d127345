"""`stagelens alerts test`: sends a sample incident, and prints responses and fixes."""

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
    service = open_one(PagerDutyService(WILLING))
    output = lines("pagerduty", PagerDutyChannel("pagerduty", "K" * 32, service.url))

    assert output[0].startswith("to pagerduty (pagerduty): stagelens-test: latency SLO burning 6.2")
    assert output[1:] == [
        "opened: accepted",
        "resolved: accepted",
        "ok: pagerduty accepted both; check how it displays them",
    ]
    assert list(service.created.values()) == list(service.resolved.values()) == [1]


def test_a_sample_is_one_thread_in_slack(open_one: Open) -> None:
    workspace = open_one(SlackWorkspace(WILLING))
    output = lines("slack", SlackBot("slack", TOKEN, CHANNEL, base_url=f"{workspace.url}/api"))

    assert output[1] == f"opened: accepted as {CHANNEL}:1795143840.000000:F000000000"
    assert [len(workspace.parents), len(workspace.replies)] == [1, 1]


def test_a_common_error_is_printed_with_its_fix(open_one: Open) -> None:
    workspace = open_one(SlackWorkspace(WILLING))
    workspace.refuse_once = ["not_in_channel"]
    output = lines("slack", SlackBot("slack", TOKEN, CHANNEL, base_url=f"{workspace.url}/api"))

    assert output[1:] == [
        "opened: not accepted (would not be retried): Slack responded not_in_channel to chat.postMessage",
        "failed: The bot is not in the channel: write /invite @<its name> there.",
    ]


def test_a_sample_with_unknown_outcome_is_resolved(open_one: Open) -> None:
    server = open_one(MailServer(WILLING, replies={".": ""}))
    output = lines(
        "email", EmailChannel("email", "127.0.0.1", "a@b.example", ("c@d.example",), security="none", port=server.port)
    )

    assert [line.partition(":")[0] for line in output[1:]] == ["opened", "resolved", "failed"]
    assert output[3] == "failed: The receiver sent no response: check there whether the message arrived."


def test_a_refused_connection_is_printed_with_a_hint() -> None:
    hook = SlackHook(WILLING)
    hook.close()

    assert lines("slack", SlackWebhook("slack", f"{hook.url}/services/x"))[-1].startswith("failed: Nothing listens at")


def test_a_heartbeat_is_pinged_once() -> None:
    entry = ChannelEntry("pulse", "heartbeat", None, heartbeat=Heartbeat("pulse", "http://127.0.0.1:9/x"))

    assert next(check_channel(entry)) == "to pulse (heartbeat): one ping"
    assert list(check_channel(entry))[1].startswith("failed: Nothing listens at")


def test_a_missing_secret_is_printed_with_its_variable() -> None:
    output = list(check_channel(ChannelEntry("slack", "slack", None, lacking="SLACK_WEBHOOK_URL")))

    assert output == ["failed: SLACK_WEBHOOK_URL is not set, so slack cannot send; set it and try again"]
