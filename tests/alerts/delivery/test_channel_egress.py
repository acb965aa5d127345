"""Egress policy for channels: URLs in the SLO file and in responses must not lead to cloud metadata addresses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stagelens.alerts.delivery.channel import post_json
from stagelens.alerts.delivery.channels.heartbeat import Heartbeat
from stagelens.alerts.delivery.channels.slack import api
from stagelens.core.errors import ChannelError
from tests.support.http_server import http_server

METADATA = "http://169.254.169.254/latest/meta-data/iam/security-credentials/"


@pytest.fixture
def slack() -> Iterator[str]:
    body = b'{"ok": true, "file_id": "F1", "upload_url": "%s"}' % METADATA.encode()
    with http_server(lambda _: (200, {}, body)) as server:
        yield server.url


def test_a_metadata_address_in_the_slo_file_is_not_called() -> None:
    with pytest.raises(
        ChannelError, match=r"^the webhook was not contacted: 169.254.169.254 is an address of a cloud metadata service"
    ) as raised:
        post_json(METADATA + "s3cret-role", b"{}", {}, receiver="the webhook")
    with pytest.raises(ChannelError, match="not allowed"):
        Heartbeat("watcher", "http://metadata.google.internal/computeMetadata/v1/").ping()

    assert not raised.value.permanent
    assert "s3cret" not in str(raised.value)


def test_a_metadata_address_in_a_response_is_not_called(slack: str) -> None:
    with pytest.raises(ChannelError, match=r"Slack was not contacted: 169.254.169.254"):
        api.upload_file(slack, "xoxb-1", b"png", "chart.png", "a chart")
