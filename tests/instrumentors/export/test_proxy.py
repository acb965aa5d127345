"""Delivery through a real HTTP proxy: absolute URLs for http, a tunnel with TLS to the collector inside for https."""

from __future__ import annotations

import contextlib
import http.client
import os
import select
import socket
import ssl
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import pytest

from stagelens.core.proxies import ProxyError
from stagelens.instrumentors.config import ClientTlsFiles
from stagelens.instrumentors.export.exporter import Exporter
from stagelens.instrumentors.export.http_post import post
from tests.instrumentors.conftest import Sink, until
from tests.instrumentors.export.conftest import Exporters, batch, clients_of
from tests.support.certificate_authority import Authorities
from tests.support.http_server import Recorded
from tests.support.ports import free_port

LOGIN = "Basic YWRhOnMzL2NyZXQ="


@dataclass
class Proxy:
    url: str = ""
    targets: list[str] = field(default_factory=list[str])


def _relay(one: socket.socket, other: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            for side in select.select([one, other], [], [])[0]:
                data = side.recv(65536)
                if not data:
                    return
                (other if side is one else one).sendall(data)


class Passing(BaseHTTPRequestHandler):
    def _refused(self) -> bool:
        if self.headers.get("Proxy-Authorization") != LOGIN:
            self.send_error(407)
            return True
        self.server.proxy.targets.append(f"{self.command} {self.path}")  # type: ignore[attr-defined]
        return False

    def do_CONNECT(self) -> None:
        if self._refused():
            return
        host, _, port = self.path.rpartition(":")
        with socket.create_connection((host, int(port))) as target:
            self.send_response(200)
            self.end_headers()
            _relay(self.connection, target)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self._refused():
            return
        url = urlsplit(self.path)
        connection = http.client.HTTPConnection(url.hostname or "", url.port)
        kept = {key: value for key, value in self.headers.items() if not key.startswith("Proxy-")}
        connection.request("POST", url.path, body, kept)
        self.send_response(connection.getresponse().status)
        self.end_headers()
        connection.close()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name in the base class
        """Log nothing."""


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Generator[Proxy]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Passing)
    proxy = server.proxy = Proxy(f"http://ada:s3%2Fcret@127.0.0.1:{server.server_port}")  # type: ignore[attr-defined]
    monkeypatch.setenv("HTTP_PROXY", proxy.url)
    monkeypatch.setenv("https_proxy", proxy.url)
    monkeypatch.setenv("no_proxy", "")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    yield proxy
    server.shutdown()
    server.server_close()


@pytest.fixture
def send(exporter: Exporters) -> Callable[..., Exporter]:
    def send(url: str, trust: ClientTlsFiles) -> Exporter:
        agent = exporter(1.0, headers={"authorization": "Bearer t"}, trust=trust)
        agent.offer(batch(url))
        agent.drain(60)
        return agent

    return send


def test_exports_pass_the_proxy(proxy: Proxy, send: Any, sink: Sink, guarded: Recorded, authority: Authorities) -> None:
    client = authority("clients").sign("agent")
    trust = ClientTlsFiles(str(authority("servers").file), str(client.certificate), str(client.key))
    send(sink.address, trust)
    send(guarded.url, trust)

    assert proxy.targets == [f"POST {sink.address}/v1/metrics", f"CONNECT {urlsplit(guarded.url).netloc}"]
    assert clients_of(guarded) == ["agent"]
    assert "proxy-authorization" not in sink.posts[0].headers
    assert sink.posts[0].headers["authorization"] == "Bearer t"

    os.environ["no_proxy"] = "localhost,127.0.0.0/8"  # restored by the fixture `proxy`
    send(sink.address, trust)
    send(guarded.url, trust)

    assert (len(sink.posts), clients_of(guarded), len(proxy.targets)) == (2, ["agent"] * 2, 2)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_refused_login_keeps_the_data_and_names_the_proxy(
    proxy: Proxy, send: Any, scheme: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    place = proxy.url.rpartition("@")[2]
    monkeypatch.setenv("HTTP_PROXY", f"http://ada:wr%2Fong@{place}")
    monkeypatch.setenv("https_proxy", f"http://ada:wr%2Fong@{place}")
    exporter = send(f"{scheme}://collector.example", ClientTlsFiles())
    exporter._leaving = False  # pyright: ignore[reportPrivateUsage] - drain logs nothing of what may be sent later
    exporter.wake()

    assert exporter._outbox.requests == 1  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(ProxyError, match=f"the proxy http://{place} .*407") as failed:
        post(f"{scheme}://collector.example", b"", {}, 60, ssl.create_default_context, proxy=f"http://a:b@{place}")
    assert failed.value.fix == f"Correct {scheme.upper()}_PROXY or ALL_PROXY, or add collector.example to NO_PROXY"
    assert "ong" not in caplog.text


@pytest.mark.parametrize(
    ("proxy_url", "reason"),
    [
        ("http://127.0.0.1:{port}", r"the proxy http://127.0.0.1:\d+ does not connect"),
        ("http://ada:s3/cret@proxy:1", "the proxy http://proxy:1 is not a valid URL"),
        ("https://proxy:1", "is called by TLS"),
    ],
)
def test_an_unusable_proxy_is_named(proxy_url: str, reason: str) -> None:
    proxy = proxy_url.format(port=free_port())
    with pytest.raises(ProxyError, match=reason) as failed:
        post("https://collector.example", b"", {}, 60, ssl.create_default_context, proxy=proxy)
    assert "s3" not in str(failed.value)


def test_the_log_names_the_proxy_and_the_fix(
    exporter: Exporters, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("http_proxy", f"127.0.0.1:{free_port()}")
    monkeypatch.setenv("no_proxy", "")
    exporter.sending(batch("http://collector.example"), backoff_seconds=1.0)
    until(lambda: "Correct HTTP_PROXY or ALL_PROXY, or add collector.example to NO_PROXY" in caplog.text)

    assert "http://collector.example does not accept data (the proxy http://127.0.0.1:" in caplog.text
