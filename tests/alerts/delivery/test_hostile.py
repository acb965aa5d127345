"""Hostile receivers: a delivery ends with a channel error that people can read."""

from __future__ import annotations

from collections.abc import Callable

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


def error_of(act: Callable[[], object]) -> str:
    try:
        act()
    except ChannelError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("kind", ["webhook", "pagerduty", "slack_bot"])
@pytest.mark.parametrize("name", PEERS)
def test_a_hostile_receiver_is_an_error_of_its_channel(
    message: Message, monkeypatch: pytest.MonkeyPatch, name: str, kind: str
) -> None:
    monkeypatch.setattr(channel, "DEADLINE_SECONDS", 2.0)
    with listening(name) as url:
        error = error_of(lambda: channel_of(kind, url).send(message))

    assert bool(error) is (kind != "webhook" or name not in TAKEN)
    assert error.isprintable()
    assert len(error) < 300


@pytest.mark.parametrize("name", PEERS)
def test_a_hostile_heartbeat_is_an_error(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(channel, "DEADLINE_SECONDS", 2.0)
    with listening(name) as url:
        error = error_of(Heartbeat("heartbeat", url).ping)

    assert bool(error) is (name not in TAKEN)
    assert error.isprintable()
