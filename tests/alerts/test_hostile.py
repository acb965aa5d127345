"""Receivers that answer as no server should: the message waits or is dead, for a reason people can read."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stagelens.alerts.delivery import http
from stagelens.alerts.delivery.channel import Channel
from stagelens.alerts.delivery.heartbeat import Heartbeat
from stagelens.alerts.delivery.message import Message
from stagelens.alerts.delivery.pagerduty import PagerDuty
from stagelens.alerts.delivery.slack_bot import SlackBot
from stagelens.alerts.delivery.webhook import Webhook
from stagelens.core.errors import ChannelError
from tests.support.hostile_peer import PEERS, listening

CHANNELS: dict[str, Callable[[str], Channel]] = {
    "webhook": lambda url: Webhook("webhook", url),
    "pagerduty": lambda url: PagerDuty("pagerduty", "K" * 32, url),
    "slack_bot": lambda url: SlackBot("slack_bot", "xoxb-1-2-secret", "C0123456789", base_url=url),
}
# A success and nothing else is what a webhook hears of these: it does not look at bodies.
TAKEN = {"a bomb", "an encoding that is none", "JSON that is nested without end", "text that is none"}


def error_of(act: Callable[[], object]) -> str:
    """Return what people read of the error *act* ends with; empty for none."""
    try:
        act()
    except ChannelError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("kind", CHANNELS)
@pytest.mark.parametrize("name", PEERS)
def test_a_hostile_receiver_is_an_error_of_its_channel(
    message: Message, monkeypatch: pytest.MonkeyPatch, name: str, kind: str
) -> None:
    """Within its time and size, and what people read of it is one line of text."""
    monkeypatch.setattr(http, "DEADLINE_SECONDS", 2.0)
    with listening(name) as url:
        said = error_of(lambda: CHANNELS[kind](url).send(message))

    assert bool(said) is (kind != "webhook" or name not in TAKEN)
    assert said.isprintable()
    assert len(said) < 300


@pytest.mark.parametrize("name", PEERS)
def test_a_hostile_heartbeat_is_an_error(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Whoever watches us may be anybody."""
    monkeypatch.setattr(http, "DEADLINE_SECONDS", 2.0)
    with listening(name) as url:
        said = error_of(Heartbeat("heartbeat", url).ping)

    assert bool(said) is (name not in TAKEN)
    assert said.isprintable()
