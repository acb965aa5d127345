"""Forwarding destination over HTTP for tests: a real server that parses OTLP messages and responds as the test decides."""

from __future__ import annotations

import json
import ssl
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import zstandard
from google.protobuf.message import Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

MESSAGES: dict[str, tuple[type[Message], type[Message]]] = {
    "/v1/metrics": (ExportMetricsServiceRequest, ExportMetricsServiceResponse),
    "/v1/traces": (ExportTraceServiceRequest, ExportTraceServiceResponse),
    "/v1/logs": (ExportLogsServiceRequest, ExportLogsServiceResponse),
}


@dataclass(frozen=True)
class FakeResponse:
    """Response other than a plain success."""

    status: int
    body: bytes = b""
    media_type: str = "application/x-protobuf"
    headers: dict[str, str] = field(default_factory=dict[str, str])


@dataclass
class Destination:
    """Recorded requests, and the responses to them.

    Args:
        port: Port on the loopback interface.
        taken: Accepted bodies, decompressed, by path, with their number.
        asked: Headers of every request.
        refused: Refused bodies by status.
        broken: Bodies that were not valid OTLP messages.
        decide: Function that returns the response for a path, a body and its number; None accepts it.
    """

    port: int = 0
    taken: Counter[tuple[str, bytes]] = field(default_factory=Counter[tuple[str, bytes]])
    asked: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    refused: Counter[int] = field(default_factory=Counter[int])
    broken: list[str] = field(default_factory=list[str])
    decide: Callable[[str, bytes, int], FakeResponse | None] = lambda _path, _body, _number: None

    @property
    def url(self) -> str:
        """Return the base URL."""
        return f"http://127.0.0.1:{self.port}"

    def bodies(self, path: str = "/v1/metrics") -> set[bytes]:
        """Return the accepted bodies at *path*."""
        # Copied in one step, because another thread adds bodies.
        return {body for at, body in list(self.taken) if at == path}

    def take(self, path: str, headers: dict[str, str], raw: bytes) -> FakeResponse:
        """Handle one request."""
        self.asked.append(headers)
        body = _inflated(raw, headers.get("content-encoding", ""))
        try:
            if headers["content-type"] == "application/json":
                json.loads(body)
            else:
                MESSAGES[path][0].FromString(body)
        except Exception as error:  # noqa: BLE001 - the test checks it
            self.broken.append(f"{path}: {error}")
        response = self.decide(path, body, len(self.asked))
        if response is not None and response.status >= 300:
            self.refused[response.status] += 1
            return response
        self.taken[path, body] += 1
        return response or FakeResponse(200, MESSAGES[path][1]().SerializeToString())


def _inflated(raw: bytes, encoding: str) -> bytes:
    if encoding == "gzip":
        return zlib.decompress(raw, 16 + zlib.MAX_WBITS)
    return zstandard.ZstdDecompressor().decompress(raw) if encoding == "zstd" else raw


@contextmanager
def listening(
    port: int = 0, destination: Destination | None = None, tls: ssl.SSLContext | None = None
) -> Generator[Destination]:
    """Run a destination until the end of the block, with HTTPS if *tls* is given."""
    found = destination or Destination()
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers["Content-Length"]))
            with lock:
                response = found.take(self.path, {key.lower(): value for key, value in self.headers.items()}, raw)
            self.send_response(response.status)
            for key, value in {"Content-Type": response.media_type, **response.headers}.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(response.body)))
            self.end_headers()
            self.wfile.write(response.body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name it has there
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        server.daemon_threads = True
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        found.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield found
        finally:
            server.shutdown()
            thread.join()
