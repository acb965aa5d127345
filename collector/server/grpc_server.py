"""OTLP/gRPC: the three OpenTelemetry services and the gRPC health service.

Messages are received as bytes and inflated within limits in a worker thread. Only a few are received at once: flow control keeps
further messages at their senders.

Source: OpenTelemetry protocol specification, "OTLP/gRPC"; google.golang.org/grpc/health/grpc_health_v1.
"""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, TypeAlias
from urllib.parse import unquote

import grpc
import grpc.aio

from ...core import names
from ...core.addresses import host_and_port
from ...core.errors import StagelensError
from ..ingest.pipeline import IngestPipeline, IngestRequest
from ..ingest.writer import FullError
from ..otlp.model import PROTOBUF, BodyTooLargeError, ExportSignal
from ..otlp.responses import Failure, OtlpResponse
from ..self_metrics import Health
from .auth import Caller
from .bodies import MAX_RECEIVE_SECONDS, Hold
from .connection_limits import client_of

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

SERVICES: dict[str, ExportSignal] = {
    "opentelemetry.proto.collector.metrics.v1.MetricsService": "metrics",
    "opentelemetry.proto.collector.trace.v1.TraceService": "traces",
    "opentelemetry.proto.collector.logs.v1.LogsService": "logs",
}
_METHODS: dict[str, ExportSignal] = {f"/{service}/Export": signal for service, signal in SERVICES.items()}
_CHECK = "/grpc.health.v1.Health/Check"
_SERVING, _NOT_SERVING = b"\x08\x01", b"\x08\x02"  # HealthCheckResponse {ServingStatus status = 1}
_BUSY = Failure(14, "the collector has too many calls; send it again", 1)

# Calls in progress. Each takes about 20 kB besides its message.
MAX_CALLS = 1000
# HTTP and gRPC connections together stay below the usual limit of 1024 open files; the database needs some of them, too.
_MAX_CONNECTIONS = 200
_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.so_reuseport", 0),  # a port in use is an error
    ("grpc.max_allowed_incoming_connections", _MAX_CONNECTIONS),
    ("grpc.max_concurrent_streams", 100),
    ("grpc.max_metadata_size", 16 * 1024),
    ("grpc.per_message_decompression", 0),
    ("grpc.compression_enabled_algorithms_bitset", 0b101),  # identity and gzip, which `encoding_of` distinguishes
    ("grpc.http2.bdp_probe", 0),  # keeps the receive window small, however fast the sender is
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.http2.settings_timeout", 10_000),
    ("grpc.max_connection_idle_ms", 300_000),
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
)
_STATUS = {code.value[0]: code for code in grpc.StatusCode}


# The size of a message is known only after it was received, so few are received at once. [count]
MESSAGES_AT_ONCE = 16
# Receiving time of a message after which it gives way to others. [seconds]
MAX_UNSHARED_SECONDS = 1.0


class _Receipts:
    """Messages that are received, and those that wait for it. For use in one event loop.

    The next one is the newest of the sender of which the fewest are received, so that unfinished messages exclude no sender.
    """

    def __init__(self) -> None:
        self._started = Counter[str]()
        self._waiting: dict[asyncio.Future[None], str] = {}  # sender of each, the oldest first

    async def receive(self, sender: str, read: Callable[[], Awaitable[bytes]]) -> bytes:
        start = asyncio.get_running_loop().create_future()
        self._waiting[start] = sender
        self._start()
        try:
            async with asyncio.timeout(MAX_RECEIVE_SECONDS):
                await start
                return await self._read(sender, read)
        finally:
            if self._waiting.pop(start, None) is None:
                self._started -= Counter({sender: 1})
                self._start()

    def replace(self) -> bool:
        """End the oldest waiting message of the sender with most of them; return whether there is one."""
        waiting = {start: sender for start, sender in self._waiting.items() if not start.done()}
        number = Counter(waiting.values())
        start = max(waiting, key=lambda receipt: number[waiting[receipt]], default=None)
        if start is not None:
            start.set_exception(FullError(_BUSY.message))
        return start is not None

    def _start(self) -> None:
        while self._started.total() < MESSAGES_AT_ONCE:
            waiting = [start for start in reversed(self._waiting) if not start.done()]
            start = min(waiting, key=lambda receipt: self._started[self._waiting[receipt]], default=None)
            if start is None:
                break
            self._started[self._waiting.pop(start)] += 1
            start.set_result(None)

    async def _read(self, sender: str, read: Callable[[], Awaitable[bytes]]) -> bytes:
        reading = asyncio.ensure_future(read())
        try:
            while not (await asyncio.wait({reading}, timeout=MAX_UNSHARED_SECONDS))[0]:
                if any(self._started[other] <= self._started[sender] for other in self._waiting.values()):
                    raise FullError(_BUSY.message)
            return reading.result()
        finally:
            reading.cancel()


class GrpcServer(grpc.GenericRpcHandler):
    def __init__(
        self,
        address: tuple[str, int],
        *,
        max_body_bytes: int,
        pipeline: IngestPipeline,
        health: Health,
        credentials: grpc.ServerCredentials | None = None,
    ) -> None:
        self._address, self._max_body_bytes, self._credentials = address, max_body_bytes, credentials
        self._pipeline, self._health = pipeline, health
        self._server: grpc.aio.Server | None = None
        self._calls: set[asyncio.Task[OtlpResponse]] = set()
        self._receipts = _Receipts()

    async def start(self) -> int:
        server = grpc.aio.server(options=[*_OPTIONS, ("grpc.max_receive_message_length", self._max_body_bytes)])
        server.add_generic_rpc_handlers((self,))
        host, port = self._address
        where = host_and_port(host, port)
        try:
            port = (
                server.add_insecure_port(where)
                if self._credentials is None
                else server.add_secure_port(where, self._credentials)
            )
        except RuntimeError as error:
            msg = (
                f"the collector cannot listen on {where} for gRPC.\n"
                "    Stop the process on that address, or choose another with STAGELENS_COLLECTOR_GRPC_PORT (`off` disables gRPC)."
            )
            raise StagelensError(msg) from error
        await server.start()
        self._server = server
        return port

    async def stop(self, grace_seconds: float) -> None:
        if self._server is not None:
            await self._server.stop(grace_seconds)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any]:
        """Return the handler of a call.

        All calls are handled as streams, because only streams receive a message on demand. The wire format is the same.
        """
        method = handler_call_details.method
        handle: Callable[..., Awaitable[bytes]] = functools.partial(_unimplemented, method=method)
        if method in _METHODS:
            handle = functools.partial(self._export, signal=_METHODS[method])
        elif method == _CHECK:
            handle = self._check
        return grpc.stream_unary_rpc_method_handler(handle)  # pyright: ignore[reportArgumentType] - as grpc.aio has it

    async def _export(self, _messages: object, context: Context, signal: ExportSignal) -> bytes:
        if len(self._calls) >= MAX_CALLS and not self._receipts.replace():
            self._pipeline.refused(_caller(context, "").address, "too many calls")
            await _abort(context, _BUSY)
        metadata = dict(context.invocation_metadata() or ())
        ingest_request = IngestRequest(
            endpoint=signal,
            media_type=PROTOBUF,
            encoding=None,
            name=_text(metadata.get(names.BATCH_HEADER.lower())),
            caller=_caller(context, _text(metadata.get("authorization")) or ""),
            body=functools.partial(self._message, context),
        )
        call = asyncio.create_task(self._pipeline.handle(ingest_request))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        # A call is finished even if its sender disconnects: the message occupies memory until it is decoded.
        reply = await asyncio.shield(call)
        if reply.failure is not None and not context.done():  # gRPC itself refuses messages that are too large
            await _abort(context, reply.failure)
        return reply.body

    async def _message(self, context: Context, hold: Hold | None) -> bytes:
        async def read() -> bytes:
            message = await context.read()
            if not isinstance(message, bytes):  # grpc.aio.EOF
                msg = f"the message is missing, or larger than {self._max_body_bytes} bytes; send smaller batches"
                raise BodyTooLargeError(msg)
            return message

        if hold is None:
            return b""
        message = await self._receipts.receive(client_of(_caller(context, "").address), read)
        hold(len(message))
        return message

    async def _check(self, _messages: object, _context: Context) -> bytes:
        """Return the health of the collector for any service name, because all services share one store."""
        return _NOT_SERVING if self._health.reasons else _SERVING


async def _unimplemented(_messages: object, context: Context, method: str) -> bytes:
    text = (
        f"there is no {method[:100]}; this is the OTLP collector of Stagelens: {', '.join(SERVICES)}, each with Export"
    )
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, text)


async def _abort(context: Context, failure: Failure) -> NoReturn:
    details = [("grpc-status-details-bin", failure.status())]
    if failure.retry_after_seconds is not None:
        # The Python exporter reads it from here.
        details.append(("google.rpc.retryinfo-bin", failure.retry_info()))
    await context.abort(_STATUS[failure.code], failure.message, tuple(details))


def _caller(context: Context, authorization: str) -> Caller:
    # ipv4:10.0.0.7:42424, or ipv6:%5Bfd00::7%5D:42424
    address = unquote(context.peer()).partition(":")[2].rpartition(":")[0].strip("[]")
    shown = [*context.auth_context().get("x509_common_name", ())]
    return Caller(address, authorization, shown[-1].decode(errors="replace") if shown else "")


def _text(value: str | bytes | None) -> str | None:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
