"""Servers for the services: a proxy to the collector that records every byte, and upstream servers."""

from __future__ import annotations

import gzip
import http.client
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self

import grpc

from tests.instrumentors.privacy.planted import secret


class Sent(NamedTuple):
    path: str
    head: bytes
    raw: bytes
    body: bytes
    status: int


class _Server:
    """An HTTP server on a free port; a context manager that stops it."""

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self.address = f"127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _SilentHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def read(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def respond(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name http.server gives it
        """Log nothing."""


class Recording(_Server):
    """Passes on to a collector what it is sent, and keeps it.

    Args:
        collector: Host and port of the collector.
    """

    def __init__(self, collector: tuple[str, int]) -> None:
        self.ours: list[Sent] = []
        self.others: list[Sent] = []
        recording = self

        class Handler(_SilentHandler):
            def do_POST(self) -> None:
                raw = self.read()
                connection = http.client.HTTPConnection(*collector, timeout=60)
                connection.request("POST", self.path, raw, dict(self.headers.items()))
                response = connection.getresponse()
                body = response.read()
                unpacked = gzip.decompress(raw) if self.headers.get("Content-Encoding") == "gzip" else raw
                ours = self.headers.get("User-Agent", "").startswith("stagelens/")
                head = f"{self.requestline}\n{self.headers}".encode()
                sent = Sent(self.path, head, raw, unpacked, response.status)
                (recording.ours if ours else recording.others).append(sent)
                self.respond(response.status, body, response.headers["Content-Type"])
                connection.close()

        super().__init__(Handler)


class Upstream(_Server):
    """Upstream server whose responses contain a secret; a chat response is a stream."""

    def __init__(self) -> None:
        class Handler(_SilentHandler):
            def do_POST(self) -> None:
                self.read()
                kind = f"text/plain; {secret('incomingheader')}"
                body = secret("incomingbody").encode()
                if self.path.endswith("/chat/completions"):
                    kind, body = "text/event-stream", b"".join(b"data: %b\n\n" % part for part in _chat())
                self.respond(200, body, kind)

        super().__init__(Handler)


def _chat() -> Iterator[bytes]:
    head = {"id": secret("answerid"), "object": "chat.completion.chunk", "created": 1, "model": secret("modelanswered")}
    for text in (secret("answer"), secret("answeragain")):
        delta = {"content": text, secret("deltakey"): secret("deltavalue")}
        yield json.dumps({**head, "choices": [{"index": 0, "delta": delta}]}).encode()
    numbers = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3, secret("usagekey"): secret("usagevalue")}
    # One number that can be true, and one that is none.
    times = {"queue_time_ms": 0.001, "time_to_first_token_ms": secret("metric"), secret("metrickey"): 1}
    yield json.dumps({**head, "choices": [], "usage": numbers, "metrics": times}).encode()
    yield b"[DONE]"


class Rpc(grpc.GenericRpcHandler):
    """A gRPC server that has every method; a context manager that stops it."""

    def __init__(self) -> None:
        self._server = grpc.server(ThreadPoolExecutor(2), handlers=[self])
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def service(self, handler_call_details: Any) -> Any:  # noqa: ARG002 - the name gRPC gives it
        return grpc.unary_unary_rpc_method_handler(_grpc_response)

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(None).wait()


def _grpc_response(request: bytes, context: Any) -> bytes:
    if request == secret("refuse").encode():
        context.abort(grpc.StatusCode.NOT_FOUND, secret("details"))
    context.set_trailing_metadata(((secret("trailer"), secret("trailer")),))
    return secret("rpcanswer").encode()
