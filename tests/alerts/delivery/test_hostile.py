"""Hostile receivers: a delivery ends with a channel error that people can read."""

from __future__ import annotations

import pytest

from stagelens.alerts.delivery import channel
from stagelens.alerts.delivery.channels.heartbeat import Heartbeat
from stagelens.alerts.delivery.message import Message
from stagelens.core.errors import ChannelError
from tests.alerts.alert_processes import channel_of
from tests.support.hostile_peer import PEERS, listening

pytestmark = [pytest.mark.stacks, pytest.mark.flaky(reruns=0)]

# Successful deliveries for a webhook or heartbeat, which ignores the response body.
TAKEN = {"a bomb", "an encoding that is none", "JSON that is nested without end", "text that is none"}


@pytest.mark.parametrize("kind", ["webhook", "pagerduty", "slack_bot", "heartbeat"])
@pytest.mark.parametrize("name", PEERS)
def test_a_hostile_receiver_is_an_error_of_its_channel(
    message: Message, monkeypatch: pytest.MonkeyPatch, name: str, kind: str
) -> None:
    monkeypatch.setattr(channel, "DEADLINE_SECONDS", 2.0)
    error = ""
    with listening(name) as url:
        try:
            Heartbeat(kind, url).ping() if kind == "heartbeat" else channel_of(kind, url).send(message)
        except ChannelError as caught:
            error = str(caught)

    assert bool(error) is (name not in TAKEN or kind not in ("webhook", "heartbeat"))
    assert error.isprintable()
    assert len(error) < 300
