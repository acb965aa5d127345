"""A destination over gRPC for tests: a real server that keeps what it gets, and answers as the test says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from stagelens.collector.server.grpc_server import SERVICES

METHODS = {f"/{service}/Export": signal for service, signal in SERVICES.items()}


@dataclass(frozen=True)
class Abort:
    """How a call ends that is no success; with a RetryInfo where it may come back after so many seconds."""

    code: grpc.StatusCode
    message: str = ""
    retry_seconds: float | None = None

    def end(self, context: grpc.ServicerContext) -> None:
        """End the call so."""
        if self.retry_seconds is not None:
            info, status = RetryInfo(), Status(code=self.code.value[0], message=self.message)
            info.retry_delay.CopyFrom(Duration(nanos=int(self.retry_seconds * 1e9)))
            status.details.add().Pack(info)
            context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
        context.abort(self.code, self.message)


@dataclass
class Destination(grpc.GenericRpcHandler):
    """What it got, and how it answers.

    Args:
        port: Where it listens on the loopback.
        taken: The messages it has taken, inflated, by signal and how often.
        asked: The metadata of every call.
        decide: Says for a message and its number what to answer; None takes it.
    """

    port: int = 0
    taken: Counter[tuple[str, bytes]] = field(default_factory=Counter[tuple[str, bytes]])
    asked: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    decide: Callable[[bytes, int], Abort | bytes | None] = lambda _message, _number: None

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.port}"

    def bodies(self, signal: str = "metrics") -> set[bytes]:
        """What it has taken of *signal*."""
        # Copied in one step: another thread goes on taking.
        return {body for at, body in list(self.taken) if at == signal}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any]:
        """Answer a call; there is one thread, so one at a time."""
        signal = METHODS[handler_call_details.method]

        def export(message: bytes, context: grpc.ServicerContext) -> bytes:
            self.asked.append({str(key): str(value) for key, value in context.invocation_metadata()})
            answer = self.decide(message, len(self.asked))
            if isinstance(answer, Abort):
                answer.end(context)
            self.taken[signal, message] += 1
            return answer if isinstance(answer, bytes) else b""

        return grpc.unary_unary_rpc_method_handler(export)


@contextmanager
def serving(
    destination: Destination | None = None, port: int = 0, credentials: grpc.ServerCredentials | None = None
) -> Generator[Destination]:
    """Give a destination that serves until the end of the block, with *credentials* over TLS."""
    found = destination or Destination()
    server = grpc.server(ThreadPoolExecutor(1), handlers=[found], options=[("grpc.so_reuseport", 0)])
    where = f"127.0.0.1:{port}"
    found.port = server.add_secure_port(where, credentials) if credentials else server.add_insecure_port(where)
    server.start()
    try:
        yield found
    finally:
        server.stop(None).wait()
