"""Delivery: one name per batch whatever happens, bounded memory, and a host that never notices."""

from __future__ import annotations

import shutil
import ssl
import threading
from collections.abc import Callable
from email.utils import formatdate
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from google.rpc.status_pb2 import Status
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsPartialSuccess,
    ExportMetricsServiceResponse,
)

from stagelens.instrumentors.config import ClientTlsFiles
from stagelens.instrumentors.export.http_post import limit_connection, post
from stagelens.instrumentors.export.outbox import ExportBatch, Outbox
from stagelens.instrumentors.export.responses import MAX_RETRY_AFTER_SECONDS
from tests.instrumentors.conftest import Sink, until
from tests.instrumentors.export.conftest import Exporters, batch, clients_of, send
from tests.support.certificate_authority import Authorities, Pem
from tests.support.http_server import Recorded
from tests.support.trickle import trickling

# Where a server goes while a client's connection waits to be accepted, Python's ssl leaves the client's socket to the collector of
# garbage, which tells (python/cpython#108310: the peer reset before `wrap_socket` looked at it).
pytestmark = pytest.mark.filterwarnings("ignore:.*SSLSocket:pytest.PytestUnraisableExceptionWarning")


def test_a_batch_is_posted_with_its_name_and_the_users_headers(sink: Sink, exporter: Exporters) -> None:
    offered = ExportBatch("instance:1", f"{sink.address}/v1/metrics?a=b", b"body", 1)
    exporter.delivering(offered, headers={"x-api-key": "k", "content-type": "text/plain"})
    (sent,) = sink.posts
    expected = {"x-api-key": "k", "content-type": "application/x-protobuf", "content-encoding": "gzip"}

    assert (sent.path, sent.body, sent.name) == ("/v1/metrics?a=b", b"body", "instance:1")
    assert sent.headers.items() >= expected.items()
    assert sent.headers["user-agent"].startswith("stagelens/")


@pytest.mark.parametrize(
    "response",
    [
        (429, {"Retry-After": "0"}, b""),
        (502, {}, b"<html>"),
        (503, {"Retry-After": "nonsense"}, Status(message="store is read-only").SerializeToString()),
        (504, {"Retry-After": formatdate(0, usegmt=True)}, b""),
        b"",
        b"this is not HTTP\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
    ],
)
def test_a_batch_that_was_not_acknowledged_is_sent_again_the_same(
    sink: Sink, exporter: Exporters, response: Any
) -> None:
    sink.answers.extend([response, response])
    agent = exporter.sending(batch(sink.address, 1), batch(sink.address, 2))
    until(lambda: len(sink.posts) == 4 and agent.drain(60))

    assert [sent.name for sent in sink.posts] == ["instance:1"] * 3 + ["instance:2"]
    assert {sent.body for sent in sink.posts} == {b"body"}
    assert exporter.losses == []


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 301, 500])
def test_a_refused_batch_is_dropped_counted_and_logged_once_with_the_fix(
    sink: Sink, exporter: Exporters, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    body = Status(code=3, message="bad\nbody").SerializeToString()
    sink.answers.extend([(status, {}, body)] * 2)
    exporter.delivering(*(batch(sink.address, number, requests=number) for number in (3, 4, 5)))

    assert exporter.losses == [("rejected", 3), ("rejected", 4)]
    assert [sent.name for sent in sink.posts] == ["instance:3", "instance:4", "instance:5"]

    (line,) = caplog.messages

    assert f"HTTP {status} bad body" in line
    for setting in ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE"):
        assert (setting in line) == (status in {401, 403})


@pytest.mark.parametrize("body", ["<html>Forbidden</html>", '{"message": "no token"}', "Unauthorized", "\u00fc"])
def test_a_refusal_that_is_not_protobuf_is_logged_unchanged(
    sink: Sink, exporter: Exporters, caplog: pytest.LogCaptureFixture, body: str
) -> None:
    sink.answers.append((403, {}, body.encode()))
    exporter.delivering(batch(sink.address))

    assert caplog.messages[0].endswith(f"HTTP 403 {body}")


def test_a_partial_success_is_delivered_and_its_message_logged_once(
    sink: Sink, exporter: Exporters, caplog: pytest.LogCaptureFixture
) -> None:
    partial = ExportMetricsPartialSuccess(rejected_data_points=2, error_message="clock is wrong")
    refusal = ExportMetricsServiceResponse(partial_success=partial).SerializeToString()
    nothing = ExportMetricsServiceResponse(partial_success=ExportMetricsPartialSuccess()).SerializeToString()
    sink.answers.extend([(200, {}, refusal), (200, {}, refusal), (200, {}, nothing)])
    exporter.delivering(*(batch(sink.address, number) for number in range(3)))

    assert len(sink.posts) == 3
    assert exporter.losses == []
    assert [message.partition("data: ")[2] for message in caplog.messages] == ["2 rejected: clock is wrong"]


@pytest.mark.parametrize(
    "body", [b"\xff\xfe", b"\x80" * 50_000, b"<html>", b"{}", b"\x08\x07", b"\x0a\x02\x12\x09", b"\x0a\x7f", b"\x0a"]
)
def test_a_200_with_an_invalid_body_is_an_acknowledgement(sink: Sink, exporter: Exporters, body: bytes) -> None:
    sink.answers.append((200, {"Content-Length": str(len(body) + 1)}, body))
    exporter.delivering(batch(sink.address))

    assert exporter.losses == []


FULL = "stagelens: the buffer for the collector (STAGELENS_BUFFER_SIZE) is full: "


@pytest.mark.parametrize(
    ("batches", "lost", "consequence"),
    [
        ([(40, count) for count in range(10, 15)], [10, 11, 12], "the oldest requests are not counted"),
        ([(20, 0), (30, 7)] * 3, [], "retained traces are dropped"),
    ],
    ids=["oldest first", "traces before counts"],
)
def test_the_queue_is_bounded(
    exporter: Exporters,
    caplog: pytest.LogCaptureFixture,
    batches: list[tuple[int, int]],
    lost: list[int],
    consequence: str,
) -> None:
    agent = exporter(buffer_bytes=100)
    for size, requests in batches:
        agent.offer(batch("http://127.0.0.1:1", 1, b"x" * size, requests))

    assert exporter.losses == [("buffer_full", count) for count in lost]
    assert caplog.messages == [FULL + consequence]


def a_batch(number: int, size: int, requests: int = 1) -> ExportBatch:
    return ExportBatch(str(number), "", b"x" * size, requests)


@given(sizes=st.lists(st.tuples(st.integers(0, 150), st.integers(0, 3)), max_size=30))
def test_counts_are_dropped_only_when_the_queue_is_full(sizes: list[tuple[int, int]]) -> None:
    outbox = Outbox(100)
    waiting: list[ExportBatch] = []
    for number, (size, requests) in enumerate(sizes):
        new = a_batch(number, size, requests)
        waiting.append(new)
        evicted = outbox.put(new)
        waiting = [each for each in waiting if each not in evicted]

        assert sum(len(each.body) for each in waiting) <= 100
        assert all(size > 100 or each.requests == 0 or all(left.requests for left in waiting) for each in evicted)
        assert not evicted or size > 100 or sum(len(each.body) for each in [*waiting, evicted[-1]]) > 100
    left: list[ExportBatch] = []
    while (oldest := outbox.take()) is not None:
        left.append(oldest)

    assert left == waiting


def test_a_batch_in_flight_is_neither_delivered_nor_dropped() -> None:
    outbox = Outbox(100)
    first, second, third = (a_batch(number, 40, number) for number in (1, 2, 4))
    outbox.put(first)
    outbox.put(second)

    assert outbox.take() == first
    assert outbox.requests == 3
    assert outbox.put(third) == [second]
    assert outbox.put(large := a_batch(4, 70)) == [third, large]

    outbox.give_back(first)

    assert outbox.requests == 1
    assert outbox.take() == first

    outbox.done(first)

    assert outbox.empty
    assert outbox.requests == 0


def test_a_flapping_server_does_not_fill_the_log(
    sink: Sink, exporter: Exporters, caplog: pytest.LogCaptureFixture
) -> None:
    sink.answers.extend([(503, {}, b"full\n"), (200, {}, b"")] * 3)
    agent = exporter()
    for number in range(3):
        send(agent, batch(sink.address, number))
        until(lambda expected=2 * (number + 1): len(sink.posts) == expected)
        # Answered, too.
        assert agent.drain(60)

    assert caplog.messages == [
        f"stagelens: {sink.address} does not accept data (HTTP 503 full); data is buffered and sent later."
    ]


def test_the_remainder_is_sent_when_no_thread_can_start(
    sink: Sink, exporter: Exporters, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def at_exit(thread: threading.Thread) -> None:
        if thread.name == "stagelens-export":
            message = "can't create new thread at interpreter shutdown"
            raise RuntimeError(message)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", at_exit)
    agent = exporter.sending(batch(sink.address, 1), batch(sink.address, 2))

    assert agent.drain(60)
    assert [sent.name for sent in sink.posts] == ["instance:1", "instance:2"]


@pytest.mark.parametrize("asked", ["0", "-5", formatdate(0, usegmt=True)])
def test_retry_after_zero_still_waits(sink: Sink, exporter: Exporters, asked: str) -> None:
    sink.answers.append((503, {"Retry-After": asked}, b""))
    agent = exporter.sending(batch(sink.address, 1), backoff_seconds=3600.0)
    until(lambda: agent.retry_in_seconds)

    assert (agent.retry_in_seconds or 0) >= 1800


def test_retry_after_is_obeyed(sink: Sink, exporter: Exporters) -> None:
    sink.answers.append((503, {"Retry-After": "3600"}, b""))
    agent = exporter.sending(batch(sink.address, 1))
    until(lambda: agent.retry_in_seconds == MAX_RETRY_AFTER_SECONDS)
    send(agent, batch(sink.address, 2))

    assert len(sink.posts) == 1
    assert agent.drain(60)
    assert [sent.name for sent in sink.posts] == ["instance:1", "instance:1", "instance:2"]


class NotedEvent(threading.Event):
    def __init__(self) -> None:
        super().__init__()
        self.waits: list[tuple[float | None, bool]] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append((timeout, self.is_set()))
        return super().wait(timeout)


def test_a_wake_during_an_attempt_does_not_cut_the_wait_short(sink: Sink, exporter: Exporters) -> None:
    sink.answers.append((503, {"Retry-After": "3600"}, b""))
    sink.answering.clear()
    agent = exporter()
    agent._wake = noted = NotedEvent()  # pyright: ignore[reportPrivateUsage] - else the wait would have to be waited for
    send(agent, batch(sink.address, 1))
    until(lambda: sink.posts)
    send(agent, batch(sink.address, 2))
    sink.answering.set()
    until(lambda: len(noted.waits) > 1)

    assert noted.waits[1] == (MAX_RETRY_AFTER_SECONDS, False)


def test_batches_in_flight_at_exit_are_reported(
    sink: Sink, exporter: Exporters, caplog: pytest.LogCaptureFixture
) -> None:
    sink.answers.append((503, {"Retry-After": "3600"}, b""))
    agent = exporter.sending(batch(sink.address, 1, requests=7))
    until(lambda: agent.retry_in_seconds)
    sink.answering.clear()

    assert not agent.drain(0.5)
    assert caplog.messages[1:] == [
        "stagelens: requests that are still not delivered: 7; they are lost if the process ends now"
    ]


def test_the_time_of_a_main_thread_after_a_fork_is_not_that_of_sending(
    exporter: Exporters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading.main_thread(), "_native_id", 1)
    agent = exporter()
    agent._note_cpu()  # pyright: ignore[reportPrivateUsage]

    assert agent.cpu_ns == 0


@pytest.mark.parametrize(
    "beginning", [b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"]
)
def test_a_trickling_response_times_out(beginning: bytes) -> None:
    with trickling(beginning) as port, pytest.raises(TimeoutError):
        post(f"http://127.0.0.1:{port}/v1/metrics", b"body", {}, 0.3, ssl.create_default_context)


def test_a_long_response_needs_an_explicit_limit(sink: Sink) -> None:
    sink.answers.extend([(200, {}, b"x" * 500_000)] * 2)
    connection = HTTPConnection("127.0.0.1", int(sink.address.rpartition(":")[2]))
    limit_connection(connection, 60, max_bytes=1_000_000)
    connection.request("POST", "/", b"")

    assert len(connection.getresponse().read()) == 500_000

    connection.close()
    limit_connection(connection, 60)
    connection.request("POST", "/", b"")
    with pytest.raises(OSError, match="too long"):
        connection.getresponse().read()
    connection.close()


def shown(authority: Authorities, client: Pem, key: Path | None = None) -> ClientTlsFiles:
    return ClientTlsFiles(str(authority("servers").file), str(client.certificate), str(key or client.key))


@pytest.mark.parametrize(("seconds", "lines"), [(0.0, 2), (3600.0, 1)])
def test_a_token_that_expires_later_is_logged_again(
    sink: Sink, exporter: Exporters, caplog: pytest.LogCaptureFixture, seconds: float, lines: int
) -> None:
    sink.answers.extend([(401, {}, b""), (200, {}, b""), (401, {}, b"")])
    exporter.delivering(*(batch(sink.address, number) for number in range(3)), quiet_seconds=seconds)

    assert len(caplog.messages) == lines


def test_a_client_certificate_is_presented(guarded: Recorded, authority: Authorities, exporter: Exporters) -> None:
    exporter.delivering(batch(guarded.url), trust=shown(authority, authority("clients").sign("checkout")))

    assert clients_of(guarded) == ["checkout"]


def encrypted(authority: Authorities) -> ClientTlsFiles:
    own = authority("clients").sign("checkout")
    locked = own.key.with_name("locked.key")
    own.encrypt_key(locked)
    return shown(authority, own, locked)


@pytest.mark.parametrize(
    ("trust", "named"),
    [
        (lambda authority: ClientTlsFiles(str(authority("servers").file)), ""),
        (lambda authority: shown(authority, authority("strangers").sign("checkout")), ""),
        (lambda _: ClientTlsFiles(), "OTEL_EXPORTER_OTLP_CERTIFICATE"),
        # No user is asked for the password.
        (encrypted, "OTEL_EXPORTER_OTLP_CLIENT_KEY"),
    ],
    ids=["no certificate", "another authority", "an untrusted server", "an encrypted key"],
)
def test_without_valid_certificates_data_waits_and_the_settings_are_named(
    guarded: Recorded,
    authority: Authorities,
    exporter: Exporters,
    caplog: pytest.LogCaptureFixture,
    *,
    trust: Callable[[Authorities], ClientTlsFiles],
    named: str,
) -> None:
    agent = exporter.sending(batch(guarded.url), trust=trust(authority))
    until(lambda: caplog.messages)
    (line,) = caplog.messages

    assert named in line
    assert guarded.requests == []
    assert not agent.drain(1)


def test_a_renewed_certificate_is_used_at_the_next_attempt(
    guarded: Recorded, authority: Authorities, exporter: Exporters, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own, good = authority("strangers").sign("old"), authority("clients").sign("new")
    trust = ClientTlsFiles(str(authority("servers").file), str(tmp_path / "own.pem"), str(tmp_path / "own.key"))
    for source in (own, good):
        shutil.copyfile(source.certificate, tmp_path / "own.pem")
        shutil.copyfile(source.key, tmp_path / "own.key")
        if source is own:
            exporter.sending(batch(guarded.url), trust=trust)
            until(lambda: caplog.messages)
    until(lambda: guarded.requests)

    assert clients_of(guarded) == ["new"]
