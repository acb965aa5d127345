"""Hostile collectors: the exporter survives them, logs one line and delivers to the next collector."""

from __future__ import annotations

from typing import Any

import pytest

from stagelens.instrumentors.export.http_post import explain
from tests.instrumentors.conftest import Sink
from tests.instrumentors.export.conftest import Exporters, batch
from tests.support.hostile_peer import PEERS, listening

OTLP_PORT = "Set OTEL_EXPORTER_OTLP_ENDPOINT to http://127.0.0.1:4318"
ADDRESS = "Set OTEL_EXPORTER_OTLP_ENDPOINT to the address of the collector"


@pytest.fixture
def login_page(monkeypatch: pytest.MonkeyPatch) -> None:
    page = b"<!DOCTYPE html>\n<html><head><title>Sign in\x1b[2J</title>"
    monkeypatch.setitem(PEERS, "a page to log in", [b"HTTP/1.0 200 OK\r\nContent-Type: text/html\r\n\r\n", page])


@pytest.mark.usefixtures("login_page")
@pytest.mark.parametrize(
    ("name", "message", "fix"),
    [
        ("speaks HTTP/2", "(it is a port for OTLP/gRPC, and the agent speaks OTLP/HTTP)", OTLP_PORT),
        ("speaks TLS", "(it uses TLS)", "Set OTEL_EXPORTER_OTLP_ENDPOINT to https://127.0.0.1:"),
        ("speaks Redis", "(it does not speak HTTP: its response starts with \"-ERR unknown command 'POST'", OTLP_PORT),
        ("speaks something else", "starts with 'SSH-2.0-OpenSSH_9.2\\r\\n'", OTLP_PORT),
        ("hangs up", "(it closed the connection without a response", "Start a collector there"),
        ("headers without end", "its response is no valid HTTP: got more than", "Start a collector there"),
        ("a page to log in", "responded with a web page with the title Sign in", ADDRESS),
        ("a page that is in the way", "dropped: HTTP 400 a web page with the title Blocked", ""),
        ("an error that is compressed", "which is dropped: HTTP 400", ""),
        ("a redirect to metadata", "HTTP 302 redirects to http://169.254.169.254.", ADDRESS),
        ("a redirect to nowhere", "HTTP 308 redirects to nowhere.", ADDRESS),
    ],
)
def test_a_peer_that_is_no_collector_is_named_in_one_line(
    exporter: Exporters, name: str, message: str, fix: str, caplog: pytest.LogCaptureFixture
) -> None:
    with listening(name) as url:
        agent: Any = exporter(1.0, timeout_seconds=5.0)
        for number in range(2):
            agent.offer(batch(url, number))
            agent.wake()
            with agent._attempt:
                agent._attempt.wait_for(lambda: agent._outbox.empty or agent.retry_in_seconds is not None, 60)

    (line,) = caplog.messages
    assert message in line
    assert fix in line
    assert line.isprintable()
    assert "\N{REPLACEMENT CHARACTER}" not in line
    assert len(line) < 500


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://[::1]:4317/v1/metrics", "http://[::1]:4318"),
        ("http://user:secret@collector:4317/v1/metrics", "http://collector:4318"),
        ("http://collector:4318/v1/metrics", ""),
        ("http://collector/v1/metrics", ""),
    ],
)
def test_the_usual_port_of_grpc_is_enough_for_the_fix(url: str, address: str) -> None:
    assert explain(ConnectionRefusedError(111, "Connection refused"), url) == (
        "[Errno 111] Connection refused",
        address,
    )


@pytest.mark.parametrize("name", PEERS)
def test_the_exporter_survives_a_hostile_collector(
    name: str, sink: Sink, exporter: Exporters, caplog: pytest.LogCaptureFixture
) -> None:
    # One attempt for each `drain`, and a buffer for one batch: the next one replaces a waiting one.
    agent = exporter(3600.0, timeout_seconds=5.0, buffer_bytes=4)
    with listening(name) as url:
        agent.offer(batch(url))
        agent.drain(60)
    logged = [record.getMessage() for record in caplog.records]
    agent.offer(batch(sink.address, 2))

    assert agent.drain(60)
    assert [post.name for post in sink.posts] == ["instance:2"]
    assert len(logged) <= 1
    assert [line for line in logged if not line.isprintable()] == []
