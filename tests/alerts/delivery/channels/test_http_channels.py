"""One delivery of each channel over HTTP: accepted responses, errors that are retried, and error texts."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from stagelens.alerts.delivery import channel as http
from stagelens.alerts.delivery.channel import OutcomeUnknownError, post_json
from stagelens.alerts.delivery.channels.heartbeat import Heartbeat
from stagelens.alerts.delivery.channels.pagerduty import PagerDutyChannel
from stagelens.alerts.delivery.channels.slack import SlackWebhook, api
from stagelens.alerts.delivery.message import Message
from stagelens.core.errors import ChannelError
from tests.alerts.alert_processes import channel_of
from tests.support.http_server import Request, Response, http_server
from tests.support.ports import free_port
from tests.support.trickle import trickling


@dataclass
class FakeResponse:
    status: int = 200
    body: bytes = b"ok"
    headers: dict[str, str] = field(default_factory=dict[str, str])
    paths: list[str] = field(default_factory=list[str])
    url: str = ""


@pytest.fixture
def receiver_response() -> Iterator[FakeResponse]:
    planned = FakeResponse()

    def respond(request: Request) -> Response:
        planned.paths.append(request.path)
        if not planned.status:
            raise ConnectionAbortedError
        return planned.status, planned.headers, planned.body

    with http_server(respond) as server:
        planned.url = server.url
        yield planned


# Channels over HTTP, by the names of their receivers in errors.
KINDS = {
    "slack": "Slack",
    "slack_bot": "Slack",
    "pagerduty": "PagerDuty",
    "alertmanager": "Alertmanager",
    "webhook": "the webhook",
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def refusal(kind: str, url: str, message: Message) -> ChannelError:
    with pytest.raises(ChannelError) as caught:
        channel_of(kind, url).send(message)
    return caught.value


@every_kind
@pytest.mark.parametrize("status", [302, 400, 403, 404, 408, 409, 410, 425, 429, 500, 502, 503, 504])
def test_only_temporary_errors_are_retried(
    receiver_response: FakeResponse, message: Message, kind: str, status: int
) -> None:
    receiver_response.status, receiver_response.body = status, b"no_service"
    error = refusal(kind, receiver_response.url, message)

    assert error.permanent is (status in {302, 400, 403, 404, 410})
    assert str(error) == f"{KINDS[kind]} responded {status}: no_service"


@every_kind
def test_retry_after_is_passed_to_the_outbox(receiver_response: FakeResponse, message: Message, kind: str) -> None:
    waits: list[float | None] = []
    in_a_minute = format_datetime(datetime.now(UTC) + timedelta(seconds=60))
    for text in ("17", in_a_minute, "Fri, 20 Nov 2015 03:04:00 GMT", "soon"):
        receiver_response.status, receiver_response.headers = 503, {"Retry-After": text}
        waits.append(refusal(kind, receiver_response.url, message).retry_after_seconds)

    assert waits == [17.0, pytest.approx(55, abs=5), 0.0, None]


@every_kind
def test_a_cut_connection_is_an_unknown_outcome_and_a_refused_one_is_not(
    receiver_response: FakeResponse, message: Message, kind: str
) -> None:
    receiver_response.status = 0
    errors = [refusal(kind, url, message) for url in (receiver_response.url, f"http://127.0.0.1:{free_port()}")]

    assert [isinstance(error, OutcomeUnknownError) for error in errors] == [True, False]
    assert not any(error.permanent for error in errors)


@every_kind
def test_an_endless_response_is_an_unknown_outcome(
    receiver_response: FakeResponse, message: Message, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(http, "MAX_ANSWER_BYTES", 1000)
    receiver_response.body = b"x" * 100_000
    error = refusal(kind, receiver_response.url, message)

    assert isinstance(error, OutcomeUnknownError)
    assert "does not end" in str(error)


@every_kind
@pytest.mark.parametrize(
    "beginning", [b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"]
)
def test_a_trickling_response_does_not_hold_the_channel(
    message: Message, monkeypatch: pytest.MonkeyPatch, kind: str, beginning: bytes
) -> None:
    monkeypatch.setattr(http, "DEADLINE_SECONDS", 0.3)
    with trickling(beginning) as port:
        error = refusal(kind, f"http://127.0.0.1:{port}", message)

    assert isinstance(error, OutcomeUnknownError)
    assert "no response within 0.3 s" in str(error)


@every_kind
def test_a_hanging_name_lookup_is_a_known_failure(message: Message, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(http, "DEADLINE_SECONDS", 0.2)
    over = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: over.wait(60))
    error = refusal(kind, "http://receiver.example:80", message)
    is_waiting = not over.is_set()
    over.set()

    assert is_waiting
    assert not isinstance(error, OutcomeUnknownError)
    assert "cannot be reached within 0.2 s" in str(error)


@pytest.mark.parametrize(
    ("kind", "status", "body", "error"),
    [
        # The page of a proxy is not a delivery.
        ("slack", 200, b"<html>log in</html>", "200 without its ok; check that the URL is an incoming webhook"),
        ("slack_bot", 200, b"[1, 2]", "200 with a body that is not a Slack API response: [1, 2]"),
        ("pagerduty", 200, b"ok", "200 instead of 202; check the URL"),
        # A response repeats a secret.
        ("slack", 404, b"Cannot POST /services/T0/B0/x", "404: Cannot POST …"),
        ("slack_bot", 403, b"bad token xoxb-1-2-secret", "403: bad token …"),
        ("pagerduty", 400, b"routing_key " + b"K" * 32 + b" is invalid", "400: routing_key … is invalid"),
    ],
)
def test_an_unexpected_response_is_an_error_without_secrets(  # noqa: PLR0917 - fixtures
    receiver_response: FakeResponse, message: Message, kind: str, status: int, body: bytes, error: str
) -> None:
    receiver_response.status, receiver_response.body = status, body
    refused = refusal(kind, receiver_response.url, message)

    assert str(refused) == f"{KINDS[kind]} responded {error}"
    assert refused.permanent is (status != 200)


def test_an_error_never_contains_the_url(receiver_response: FakeResponse, message: Message) -> None:
    receiver_response.status = 500
    errors = list[ChannelError]()
    for url in (receiver_response.url, "http://127.0.0.1:9", "http://host:port"):
        with pytest.raises(ChannelError) as caught:
            SlackWebhook("slack", f"{url}/services/T0/B0/SECRET").send(message)
        errors.append(caught.value)

    assert not any("SECRET" in str(error) for error in errors)
    assert [error.permanent for error in errors] == [False, False, True]


def test_pagerduty_is_reached_below_its_base_url(receiver_response: FakeResponse, message: Message) -> None:
    receiver_response.status, receiver_response.body = 202, b"{}"
    reference = PagerDutyChannel("pagerduty", "K" * 32, receiver_response.url + "/").send(message)

    assert reference == ""
    assert receiver_response.paths == ["/v2/enqueue"]


def test_slack_gets_plain_text_if_it_refuses_the_blocks(receiver_response: FakeResponse, message: Message) -> None:
    receiver_response.status, receiver_response.body = 400, b"invalid_blocks"
    error = refusal("slack", receiver_response.url, message)

    assert error.permanent
    assert len(receiver_response.paths) == 2


# Neither URLs in the SLO file nor those in responses may lead to cloud metadata.
METADATA = "http://169.254.169.254/latest/meta-data/iam/security-credentials/"


def test_a_metadata_address_in_the_slo_file_is_not_called() -> None:
    with pytest.raises(
        ChannelError, match=r"^the webhook was not contacted: 169.254.169.254 is an address of a cloud metadata service"
    ) as raised:
        post_json(METADATA + "s3cret-role", b"{}", {}, receiver="the webhook")
    with pytest.raises(ChannelError, match="not allowed"):
        Heartbeat("watcher", "http://metadata.google.internal/computeMetadata/v1/").ping()

    assert not raised.value.permanent
    assert "s3cret" not in str(raised.value)


def test_a_metadata_address_in_a_response_is_not_called(receiver_response: FakeResponse) -> None:
    receiver_response.body = b'{"ok": true, "file_id": "F1", "upload_url": "%s"}' % METADATA.encode()
    with pytest.raises(ChannelError, match=r"Slack was not contacted: 169.254.169.254"):
        api.upload_file(receiver_response.url, "xoxb-1", b"png", "chart.png", "a chart")
