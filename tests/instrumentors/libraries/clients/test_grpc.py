"""gRPC, sync and aio, against a real server: unary and streamed, blocking and as futures, with interceptors."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import pytest
from opentelemetry.instrumentation.grpc import GrpcAioInstrumentorClient, GrpcInstrumentorClient

from stagelens.instrumentors import records, trace_context
from stagelens.instrumentors.instrumentor import Instrumentor
from stagelens.instrumentors.libraries import client_common
from stagelens.instrumentors.libraries import grpc as module
from stagelens.instrumentors.libraries.grpc import GrpcInstrumentor
from stagelens.instrumentors.trace_context import tracestate_to, tracestate_to_target

if TYPE_CHECKING:
    from conftest import Running

INSTRUMENTOR = GrpcInstrumentor
pytestmark = pytest.mark.usefixtures("instrumented")

# Without types of their own.
CHANNEL: Any = import_module("grpc._channel")
CALL: Any = import_module("grpc.aio._call")
SINGLE_THREADED: str = import_module("grpc.experimental").ChannelOptions.SingleThreadedUnaryStream
RECEIVE_MESSAGE: Any = CHANNEL.cygrpc.OperationType.receive_message
EOF: Any = import_module("grpc.aio").EOF
THEIRS = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SERVICE = "/stagelens.Test"
PARTS = [b"one ", b"two ", b"three"]


class Server:
    """Calls received by the server, and the time at which it may respond."""

    def __init__(self) -> None:
        self.port = 0
        self.metadata: list[list[tuple[str, str]]] = []
        self.release = threading.Event()

    def traces(self) -> list[str]:
        return [value for key, value in self.metadata[-1] if key == "traceparent"]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"


@pytest.fixture
def server() -> Generator[Server]:
    """Start a gRPC server on the loopback, with a method of each kind."""
    state = Server()

    def seen(context: Any) -> None:
        state.metadata.append([(key, value) for key, value in context.invocation_metadata()])

    def unary(request: bytes, context: Any) -> bytes:
        seen(context)
        if request == b"fail":
            context.abort(grpc.StatusCode.NOT_FOUND, "no such thing")
        if request == b"hold":
            state.release.wait(30)
        return request

    def stream(request: bytes, context: Any) -> Iterator[bytes]:
        seen(context)
        if request == b"hold":
            state.release.wait(30)
        yield from PARTS
        if request == b"fail":
            context.abort(grpc.StatusCode.NOT_FOUND, "no such thing")

    def collect(requests: Iterator[bytes], context: Any) -> bytes:
        seen(context)
        return b"".join(requests)

    def echo(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        seen(context)
        yield from requests

    methods = {
        "Unary": grpc.unary_unary_rpc_method_handler(unary),
        "Stream": grpc.unary_stream_rpc_method_handler(stream),
        "Collect": grpc.stream_unary_rpc_method_handler(collect),
        "Echo": grpc.stream_stream_rpc_method_handler(echo),
    }
    real = grpc.server(pool := ThreadPoolExecutor(4))
    real.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE.lstrip("/"), methods),))
    state.port = real.add_insecure_port("127.0.0.1:0")
    real.start()
    yield state
    state.release.set()
    real.stop(None).wait(30)
    pool.shutdown()


@pytest.fixture
def channel(server: Server) -> Generator[grpc.Channel]:
    with grpc.insecure_channel(server.address) as opened:
        yield opened


def _future(call: Any, request: Any, **options: Any) -> Any:
    return call.future(request, **options).result(30)


def _with_call(call: Any, request: Any, **options: Any) -> Any:
    return call.with_call(request, **options)[0]


def _plain(call: Any, request: Any, **options: Any) -> Any:
    return call(request, **options)


@pytest.mark.parametrize("way", [_plain, _with_call, _future])
@pytest.mark.parametrize(("method", "request_"), [("Unary", b"abc"), ("Collect", [b"a", b"bc"])])
def test_a_unary_response_is_a_dependency(  # noqa: PLR0917 - fixtures
    in_a_request: Running,
    channel: grpc.Channel,
    server: Server,
    until: Callable[..., None],
    way: Any,
    method: str,
    request_: Any,
) -> None:
    kind = channel.unary_unary if method == "Unary" else channel.stream_unary
    request = request_ if method == "Unary" else iter(request_)
    response = way(kind(f"{SERVICE}/{method}"), request, timeout=30)

    assert response == b"abc"
    until(in_a_request.names, "the callback of the future")
    assert in_a_request.names() == ["dependency"]
    assert server.traces() == [in_a_request.trace()]


@pytest.mark.parametrize(("kind", "single_threaded"), [("Stream", True), ("Stream", False), ("Echo", False)])
def test_each_wait_of_a_stream_counts(
    in_a_request: Running, server: Server, monkeypatch: pytest.MonkeyPatch, kind: str, *, single_threaded: bool
) -> None:
    monkeypatch.setattr(client_common, "MAX_GAP_NS", 0)
    held: list[int] = []
    received: list[bytes] = []
    with grpc.insecure_channel(server.address, options=[(SINGLE_THREADED, single_threaded)]) as channel:
        call: Any = channel.unary_stream if kind == "Stream" else channel.stream_stream
        for message in call(f"{SERVICE}/{kind}")(b"" if kind == "Stream" else iter(PARTS), timeout=30):
            received.append(message)
            held.append(records.clock())

    assert received == PARTS
    # The call itself, the wait for each message, and the one for the end.
    assert in_a_request.names() == ["dependency"] * 5
    assert not any(started <= moment <= ended for moment in held for _, started, ended in in_a_request.stages())
    assert server.traces() == [in_a_request.trace()]


def test_the_wait_for_stream_headers_is_a_separate_interval(
    in_a_request: Running,
    channel: grpc.Channel,
    server: Server,
    until: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_common, "MAX_GAP_NS", 10**15)
    call: Any = channel.unary_stream(f"{SERVICE}/Stream")(b"hold", timeout=30)

    def release() -> None:
        until(lambda: RECEIVE_MESSAGE in call._state.due, "the first message to be waited for")
        server.release.set()

    releasing = threading.Thread(target=release)
    releasing.start()
    received = list(call)
    releasing.join()

    assert received == PARTS
    assert in_a_request.names() == ["dependency"] * 3
    invocation, headers, body = in_a_request.stages()
    assert invocation[2] <= headers[1] < headers[2] <= body[1] < body[2]


@pytest.mark.usefixtures("in_a_request")
@pytest.mark.parametrize(
    ("metadata", "sent"),
    [
        (None, []),
        ((), []),
        ((("x-own", "1"),), [("x-own", "1")]),
        ([("x-own", "1")], [("x-own", "1")]),
        (iter([("x-own", "1")]), [("x-own", "1")]),
    ],
)
def test_metadata_of_every_type_is_sent_unchanged(
    channel: grpc.Channel, server: Server, metadata: Any, sent: Any
) -> None:
    before = "" if isinstance(metadata, Iterator) else repr(metadata)
    call: Any = channel.unary_unary(f"{SERVICE}/Unary")
    call(b"", 30, metadata)

    assert [pair for pair in server.metadata[-1] if pair[0].startswith("x-")] == sent
    assert len(server.traces()) == 1
    assert not before or repr(metadata) == before


@pytest.mark.usefixtures("in_a_request")
@pytest.mark.parametrize("make", [lambda: 5, lambda: (5,), lambda: ((),), lambda: (1 // number for number in (1, 0))])
def test_invalid_metadata_raises_the_error_of_grpc(channel: grpc.Channel, reported: set[str], make: Any) -> None:
    call: Any = channel.unary_unary(f"{SERVICE}/Unary")
    with pytest.raises((TypeError, ValueError, ZeroDivisionError)):
        call(b"", 30, make())

    assert reported == set()


@pytest.mark.parametrize("way", [_plain, _with_call, _future])
def test_a_grpc_error_is_unchanged_and_its_time_is_recorded(
    in_a_request: Running, channel: grpc.Channel, until: Callable[..., None], way: Any
) -> None:
    call = channel.unary_unary(f"{SERVICE}/Unary")
    with pytest.raises(grpc.RpcError) as refused:
        way(call, b"fail", timeout=30)
    with pytest.raises(grpc.RpcError) as late:
        way(call, b"hold", timeout=0.05)

    codes = [error.value.code() for error in (refused, late)]
    assert codes == [grpc.StatusCode.NOT_FOUND, grpc.StatusCode.DEADLINE_EXCEEDED]
    until(lambda: len(in_a_request.names()) == 2, "the callbacks of the futures")


def test_an_unreferenced_future_is_cancelled(
    in_a_request: Running, channel: grpc.Channel, until: Callable[..., None]
) -> None:
    call = channel.unary_unary(f"{SERVICE}/Unary").future(b"hold", timeout=30)
    call_ref = weakref.ref(call)
    del call

    until(lambda: call_ref() is None, "the future to go")
    until(in_a_request.names, "its cancellation")


def test_a_closed_channel_raises_the_grpc_error(in_a_request: Running, server: Server) -> None:
    channel = grpc.insecure_channel(server.address)
    call = channel.unary_unary(f"{SERVICE}/Unary")
    channel.close()

    with pytest.raises(ValueError, match="losed"):
        call(b"")
    with pytest.raises(ValueError, match="losed"):
        call.future(b"")
    assert in_a_request.names() == ["dependency"] * 2


def test_a_future_without_callbacks_still_returns_its_result(
    channel: grpc.Channel, in_a_request: Running, reported: set[str], make_fail: Callable[[Any, str], None]
) -> None:
    make_fail(module, "_when_done")
    call = channel.unary_unary(f"{SERVICE}/Unary").future(b"abc", timeout=30)

    assert call.result(30) == b"abc"
    assert len(reported) == 1
    assert in_a_request.names() == []


def aio(server: Server, use: Callable[[grpc.aio.Channel], Any], *interceptors: Any) -> Any:
    async def go() -> Any:
        async with grpc.aio.insecure_channel(server.address, interceptors=interceptors) as channel:
            return await use(channel)

    return asyncio.run(go())


@pytest.mark.usefixtures("in_a_request")
def test_the_service_is_sent_with_the_trace_and_only_to_hosts_that_get_it(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def call_both(*metadata: tuple[str, str]) -> None:
        async def use(channel: grpc.aio.Channel) -> Any:
            return await channel.unary_unary(f"{SERVICE}/Unary")(b"", metadata=metadata)

        for cached in (tracestate_to, tracestate_to_target):
            cached.cache_clear()
        aio(server, use)
        with grpc.insecure_channel(server.address) as channel:
            channel.unary_unary(f"{SERVICE}/Unary")(b"", metadata=metadata)

    call_both()
    call_both(("tracestate", "vendor=1"))
    own = tracestate_to("localhost")
    monkeypatch.setattr(trace_context, "may_name_service_to", lambda *_: False)
    call_both()
    for cached in (tracestate_to, tracestate_to_target):
        cached.cache_clear()

    sent = [[value for key, value in pairs if key == "tracestate"] for pairs in server.metadata]
    assert sent == [[own], [own], ["vendor=1"], ["vendor=1"], [], []]
    assert all("traceparent" in dict(pairs) for pairs in server.metadata)


class Interceptor(grpc.UnaryUnaryClientInterceptor):
    """An interceptor of the user's own, which sets the trace."""

    def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return continuation(client_call_details._replace(metadata=[("traceparent", THEIRS)]), request)


class AioInterceptor(grpc.aio.UnaryUnaryClientInterceptor):
    async def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        details = client_call_details._replace(metadata=grpc.aio.Metadata(("traceparent", THEIRS)))
        return await continuation(details, request)


def test_metadata_of_interceptors_is_used(in_a_request: Running, server: Server) -> None:
    async def use(channel: grpc.aio.Channel) -> Any:
        return await channel.unary_unary(f"{SERVICE}/Unary")(b"abc", timeout=30)

    with grpc.insecure_channel(server.address) as plain:
        grpc.intercept_channel(plain, Interceptor()).unary_unary(f"{SERVICE}/Unary")(b"abc", timeout=30)
    traces = server.traces()

    assert aio(server, use, AioInterceptor()) == b"abc"
    assert traces == server.traces() == [THEIRS]
    assert in_a_request.names() == ["dependency"] * 2


def test_a_call_outside_a_request_is_unchanged(
    finished: deque[records.Record], channel: grpc.Channel, server: Server
) -> None:
    async def use(channel: grpc.aio.Channel) -> list[Any]:
        return [part async for part in channel.unary_stream(f"{SERVICE}/Stream")(b"")]

    assert channel.unary_unary(f"{SERVICE}/Unary").future(b"b").result(30) == b"b"
    assert list(channel.unary_stream(f"{SERVICE}/Stream")(b"")) == aio(server, use) == PARTS
    assert list(finished) == []
    assert server.traces() == []


def test_an_awaited_response_is_a_dependency(in_a_request: Running, server: Server) -> None:
    metadata = grpc.aio.Metadata(("x-own", "1"))

    async def use(channel: grpc.aio.Channel) -> Any:
        call: Any = channel.unary_unary(f"{SERVICE}/Unary")(b"abc", metadata=metadata, timeout=30)
        assert type(call) is CALL.UnaryUnaryCall
        return await call

    assert aio(server, use) == b"abc"
    assert in_a_request.names() == ["dependency"]
    assert server.traces() == [in_a_request.trace()]
    assert ("x-own", "1") in server.metadata[-1]
    assert list(metadata) == [("x-own", "1")]


@pytest.mark.parametrize("style", ["iterate", "read"])
@pytest.mark.parametrize("method", ["Stream", "Echo"])
def test_each_wait_of_an_async_stream_counts(
    in_a_request: Running, server: Server, monkeypatch: pytest.MonkeyPatch, style: str, method: str
) -> None:
    monkeypatch.setattr(client_common, "MAX_GAP_NS", 10**15)

    async def use(channel: grpc.aio.Channel) -> list[Any]:
        if method == "Stream":
            call: Any = channel.unary_stream(f"{SERVICE}/Stream")(b"", timeout=30)
        else:
            call = channel.stream_stream(f"{SERVICE}/Echo")(iter(PARTS), timeout=30)
        if style == "iterate":
            return [message async for message in call]
        received: list[Any] = []
        while (message := await call.read()) is not EOF:
            received.append(message)
        return received

    assert aio(server, use) == PARTS
    assert in_a_request.names()[0] == "dependency"
    assert set(in_a_request.names()) == {"dependency"}
    assert server.traces() == [in_a_request.trace()]


@pytest.mark.parametrize("ours_first", [True, False])
@pytest.mark.parametrize("theirs", [GrpcAioInstrumentorClient, GrpcInstrumentorClient])
def test_opentelemetry_causes_no_duplicate_spans_or_stages(
    in_a_request: Running, server: Server, instrumented: Instrumentor, exported: Any, theirs: Any, *, ours_first: bool
) -> None:
    if not ours_first:
        instrumented.uninstrument()
    theirs().instrument()
    instrumented.instrument()

    async def use(channel: grpc.aio.Channel) -> Any:
        return await channel.unary_unary(f"{SERVICE}/Unary")(b"abc", timeout=30)

    try:
        if theirs is GrpcAioInstrumentorClient:
            aio(server, use)
        else:
            with grpc.insecure_channel(server.address) as channel:
                channel.unary_unary(f"{SERVICE}/Unary")(b"abc", timeout=30)
    finally:
        theirs().uninstrument()

    assert in_a_request.names() == ["dependency"]
    (span,) = exported.get_finished_spans()
    (trace,) = server.traces()
    assert trace.startswith(f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-")
