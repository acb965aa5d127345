"""Forwarding destination over gRPC for tests: a real server that records messages and responds as the test decides."""

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
    """Failure of a call, with RetryInfo if it should be retried after some seconds."""

    code: grpc.StatusCode
    message: str = ""
    retry_seconds: float | None = None

    def end(self, context: grpc.ServicerContext) -> None:
        """End the call with this failure."""
        if self.retry_seconds is not None:
            info, status = RetryInfo(), Status(code=self.code.value[0], message=self.message)
            info.retry_delay.CopyFrom(Duration(nanos=int(self.retry_seconds * 1e9)))
            status.details.add().Pack(info)
            context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
        context.abort(self.code, self.message)


@dataclass
class Destination(grpc.GenericRpcHandler):
    """Recorded messages, and the responses to them.

    Args:
        port: Port on the loopback interface.
        taken: Accepted messages, decompressed, by signal, with their number.
        asked: Metadata of every call.
        decide: Function that returns the failure for a message and its number; None accepts it.
    """

    port: int = 0
    taken: Counter[tuple[str, bytes]] = field(default_factory=Counter[tuple[str, bytes]])
    asked: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    decide: Callable[[bytes, int], Abort | bytes | None] = lambda _message, _number: None

    @property
    def url(self) -> str:
        """Return the URL of the server."""
        return f"http://127.0.0.1:{self.port}"

    def bodies(self, signal: str = "metrics") -> set[bytes]:
        """Return the accepted messages of *signal*."""
        # Copied in one step, because another thread adds messages.
        return {body for at, body in list(self.taken) if at == signal}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any]:
        """Handle a call; one thread handles one call after the other."""
        signal = METHODS[handler_call_details.method]

        def export(message: bytes, context: grpc.ServicerContext) -> bytes:
            self.asked.append({str(key): str(value) for key, value in context.invocation_metadata()})
            response = self.decide(message, len(self.asked))
            if isinstance(response, Abort):
                response.end(context)
            self.taken[signal, message] += 1
            return response if isinstance(response, bytes) else b""

        return grpc.unary_unary_rpc_method_handler(export)


@contextmanager
def serving(
    destination: Destination | None = None, port: int = 0, credentials: grpc.ServerCredentials | None = None
) -> Generator[Destination]:
    """Run a destination until the end of the block, with TLS if *credentials* are given."""
    found = destination or Destination()
    server = grpc.server(ThreadPoolExecutor(1), handlers=[found], options=[("grpc.so_reuseport", 0)])
    where = f"127.0.0.1:{port}"
    found.port = server.add_secure_port(where, credentials) if credentials else server.add_insecure_port(where)
    server.start()
    try:
        yield found
    finally:
        server.stop(None).wait()
