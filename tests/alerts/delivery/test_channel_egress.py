"""Egress policy for channels: URLs in the SLO file and in responses must not lead to cloud metadata addresses."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from stagelens.alerts.config import AlertsConfig
from stagelens.alerts.delivery.channel import post_json
from stagelens.alerts.delivery.channels.heartbeat import Heartbeat
from stagelens.alerts.delivery.channels.slack import api
from stagelens.core.egress import ENV
from stagelens.core.errors import ChannelError, ConfigError
from tests.alerts.receiver import Moods, Receiver

METADATA = "http://169.254.169.254/latest/meta-data/iam/security-credentials/"


class Slack(Receiver):
    def __init__(self, upload_url: str) -> None:
        super().__init__(Moods(failing=0.0))
        self._upload_url = upload_url.encode()

    def take(self, path: str, headers: Any, body: bytes) -> tuple[int, bytes]:
        del path, headers, body
        return 200, b'{"ok": true, "file_id": "F1", "upload_url": "%s"}' % self._upload_url


@pytest.fixture
def evil() -> Iterator[Slack]:
    opened = Slack(METADATA)
    yield opened
    opened.close()


def test_a_metadata_address_in_the_slo_file_is_not_called() -> None:
    with pytest.raises(
        ChannelError, match=r"^the webhook was not contacted: 169.254.169.254 is an address of a cloud metadata service"
    ) as raised:
        post_json(METADATA + "s3cret-role", b"{}", {}, receiver="the webhook")
    with pytest.raises(ChannelError, match="not allowed"):
        Heartbeat("watcher", "http://metadata.google.internal/computeMetadata/v1/").ping()

    assert not raised.value.permanent
    assert "s3cret" not in str(raised.value)


def test_a_metadata_address_in_a_response_is_not_called(evil: Slack) -> None:
    with pytest.raises(ChannelError, match=r"Slack was not contacted: 169.254.169.254"):
        api.upload_file(evil.url, "xoxb-1", b"png", "chart.png", "a chart")


def test_a_name_resolving_to_a_metadata_address_is_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("169.254.169.254", 80))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)

    with pytest.raises(ChannelError, match=r"hooks.example \(169.254.169.254\)"):
        post_json("http://hooks.example/x", b"{}", {}, receiver="the webhook")


def test_an_allow_list_is_enforced(evil: Slack, monkeypatch: pytest.MonkeyPatch) -> None:
    assert post_json(evil.url, b"{}", {}, receiver="the webhook").status == 200
    monkeypatch.setenv(ENV, "public, hooks.slack.com")
    with pytest.raises(ChannelError, match="this machine, which is not allowed"):
        post_json(evil.url, b"{}", {}, receiver="the webhook")
    with pytest.raises(ConfigError, match=r"STAGELENS_MAY_CALL has 'https://hooks.slack.com'"):
        AlertsConfig.from_env({ENV: "https://hooks.slack.com"})
