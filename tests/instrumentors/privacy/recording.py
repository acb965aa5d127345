"""Servers for the services: a proxy to the collector that records every byte, and upstream servers."""

from __future__ import annotations

import gzip
import http.client
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Self

import grpc

from tests.instrumentors.privacy.planted import secret
from tests.support.http_server import Request, Response


class Sent(NamedTuple):
    path: str
    head: bytes
    raw: bytes
    body: bytes
    status: int


class Recording:
    def __init__(self, collector: tuple[str, int]) -> None:
        self.ours: list[Sent] = []
        self.others: list[Sent] = []
        # Where it is served.
        self.address = ""
        self._collector = collector

    def respond(self, request: Request) -> Response:
        connection = http.client.HTTPConnection(*self._collector, timeout=60)
        connection.request("POST", request.path, request.body, dict(request.headers))
        response = connection.getresponse()
        body = response.read()
        connection.close()
        is_packed = request.headers.get("content-encoding") == "gzip"
        unpacked = gzip.decompress(request.body) if is_packed else request.body
        head = f"{request.method} {request.path}\n{request.headers}".encode()
        sent = Sent(request.path, head, request.body, unpacked, response.status)
        (self.ours if request.headers.get("user-agent", "").startswith("stagelens/") else self.others).append(sent)
        return response.status, {"Content-Type": response.headers["Content-Type"], "Connection": "close"}, body


def respond_with_secrets(request: Request) -> Response:
    """Respond as an upstream server; a chat response is a stream."""
    kind, body = f"text/plain; {secret('incomingheader')}", secret("incomingbody").encode()
    if request.path.endswith("/chat/completions"):
        kind, body = "text/event-stream", b"".join(b"data: %b\n\n" % part for part in _chat())
    return 200, {"Content-Type": kind, "Connection": "close"}, body


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
