"""One delivery of an HTTP channel: accepted responses, errors that are retried, and error texts."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from stagelens.alerts.delivery import channel as http
from stagelens.alerts.delivery.channel import OutcomeUnknownError
from stagelens.alerts.delivery.channels.pagerduty import PagerDutyChannel
from stagelens.alerts.delivery.channels.slack import SlackWebhook
from stagelens.alerts.delivery.channels.webhook import WebhookChannel
from stagelens.alerts.delivery.message import Message
from stagelens.core.errors import ChannelError
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

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            planned.paths.append(self.path)
            if planned.status:
                self.send_response(planned.status)
                for key, value in {"Content-Length": str(len(planned.body)), **planned.headers}.items():
                    self.send_header(key, value)
                self.end_headers()
                self.wfile.write(planned.body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name it is called by
            """Log nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    planned.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield planned
    server.shutdown()
    server.server_close()
    thread.join()


def refusal(channel: SlackWebhook | PagerDutyChannel | WebhookChannel, message: Message) -> ChannelError:
    with pytest.raises(ChannelError) as caught:
        channel.send(message)
    return caught.value


@pytest.mark.parametrize("status", [302, 400, 403, 404, 408, 409, 410, 425, 429, 500, 502, 503, 504])
def test_only_temporary_errors_are_retried(receiver_response: FakeResponse, message: Message, status: int) -> None:
    receiver_response.status, receiver_response.body = status, b"no_service"
    error = refusal(SlackWebhook("slack", receiver_response.url), message)

    assert error.permanent is (status in {302, 400, 403, 404, 410})
    assert str(error) == f"Slack responded {status}: no_service"


def test_retry_after_is_passed_to_the_outbox(receiver_response: FakeResponse, message: Message) -> None:
    receiver_response.status, receiver_response.headers = 429, {"Retry-After": "17"}

    assert refusal(PagerDutyChannel("pagerduty", "K" * 32, receiver_response.url), message).retry_after_seconds == 17


def test_a_slack_response_without_ok_is_not_a_delivery(receiver_response: FakeResponse, message: Message) -> None:
    receiver_response.body = b"<html>log in</html>"
    error = refusal(SlackWebhook("slack", receiver_response.url), message)

    assert (error.permanent, "without its ok" in str(error)) == (False, True)


def test_a_cut_connection_is_an_unknown_outcome(receiver_response: FakeResponse, message: Message) -> None:
    receiver_response.status = 0
    error = refusal(WebhookChannel("webhook", receiver_response.url), message)

    assert isinstance(error, OutcomeUnknownError)
    assert not error.permanent


def test_a_refused_connection_is_a_known_failure(receiver_response: FakeResponse, message: Message) -> None:
    error = refusal(WebhookChannel("webhook", "http://127.0.0.1:9"), message)

    assert not isinstance(error, OutcomeUnknownError)
    assert not error.permanent
    assert receiver_response.paths == []


def test_pagerduty_is_reached_below_its_base_url(receiver_response: FakeResponse, message: Message) -> None:
    receiver_response.status, receiver_response.body = 202, b"{}"
    reference = PagerDutyChannel("pagerduty", "K" * 32, receiver_response.url + "/").send(message)

    assert reference == ""
    assert receiver_response.paths == ["/v2/enqueue"]


def test_an_error_never_contains_the_url(receiver_response: FakeResponse, message: Message) -> None:
    receiver_response.status = 500
    secret = f"{receiver_response.url}/services/T0/B0/SECRET"
    errors = [
        refusal(SlackWebhook("slack", address), message)
        for address in (secret, "http://127.0.0.1:9/SECRET", "http://host:port/SECRET")
    ]

    assert not any("SECRET" in str(error) for error in errors)
    assert [error.permanent for error in errors] == [False, False, True]


def test_a_response_that_repeats_the_url_is_redacted(receiver_response: FakeResponse, message: Message) -> None:
    path = "/services/T0123456789/B0123456789/abcdefghijklmnop"
    receiver_response.status, receiver_response.body = 404, f"Cannot POST {path} (abcdefghijklmnop)".encode()
    hook = refusal(SlackWebhook("slack", receiver_response.url + path), message)
    receiver_response.status, receiver_response.body = 400, b"routing_key " + b"K" * 32 + b" is invalid"
    key = refusal(PagerDutyChannel("pagerduty", "K" * 32, receiver_response.url), message)

    assert str(hook) == "Slack responded 404: Cannot POST … (…)"
    assert str(key) == "PagerDuty responded 400: routing_key … is invalid"


def test_retry_after_accepts_a_date(receiver_response: FakeResponse, message: Message) -> None:
    waits: list[float | None] = []
    for text in (format_datetime(datetime.now(UTC) + timedelta(seconds=60)), "Fri, 20 Nov 2015 03:04:00 GMT", "soon"):
        receiver_response.status, receiver_response.headers = 503, {"Retry-After": text}
        waits.append(
            refusal(PagerDutyChannel("pagerduty", "K" * 32, receiver_response.url), message).retry_after_seconds
        )

    assert waits[0] is not None
    assert 50 < waits[0] <= 60
    assert waits[1:] == [0.0, None]


def test_only_a_202_is_a_delivery_to_pagerduty(receiver_response: FakeResponse, message: Message) -> None:
    error = refusal(PagerDutyChannel("pagerduty", "K" * 32, receiver_response.url), message)

    assert (error.permanent, str(error)) == (
        False,
        "PagerDuty responded 200 instead of 202; check the URL",
    )


def test_an_endless_response_is_an_unknown_outcome(
    receiver_response: FakeResponse, message: Message, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "MAX_ANSWER_BYTES", 1000)
    receiver_response.body = b"x" * 100_000
    error = refusal(WebhookChannel("webhook", receiver_response.url), message)

    assert isinstance(error, OutcomeUnknownError)
    assert "does not end" in str(error)


@pytest.mark.parametrize(
    "beginning", [b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"]
)
def test_a_trickling_response_does_not_hold_the_channel(
    message: Message, monkeypatch: pytest.MonkeyPatch, beginning: bytes
) -> None:
    monkeypatch.setattr(http, "DEADLINE_SECONDS", 0.3)
    with trickling(beginning) as port:
        error = refusal(WebhookChannel("webhook", f"http://127.0.0.1:{port}"), message)

    assert isinstance(error, OutcomeUnknownError)
    assert "no response within 0.3 s" in str(error)


def test_slack_gets_plain_text_if_it_refuses_the_blocks(receiver_response: FakeResponse, message: Message) -> None:
    receiver_response.status, receiver_response.body = 400, b"invalid_blocks"
    error = refusal(SlackWebhook("slack", receiver_response.url), message)

    assert error.permanent
    assert len(receiver_response.paths) == 2


def test_a_hanging_name_lookup_is_a_known_failure(message: Message, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "DEADLINE_SECONDS", 0.2)
    over = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: over.wait(60))
    error = refusal(WebhookChannel("webhook", "http://receiver.example/alerts"), message)
    is_waiting = not over.is_set()
    over.set()

    assert is_waiting
    assert not isinstance(error, OutcomeUnknownError)
    assert "cannot be reached within 0.2 s" in str(error)
