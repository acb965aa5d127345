"""gRPC servers, with threads and asyncio: real calls of every kind, their stages, status and route, and that nothing else changes."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import sys
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc
import grpc.aio
import pytest
from opentelemetry.instrumentation.grpc import aio_server_interceptor, server_interceptor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from stagelens.core.partition import partition
from stagelens.instrumentors import named_attributes, records
from stagelens.instrumentors.libraries import grpc_server as module
from stagelens.instrumentors.libraries.executors import ExecutorInstrumentor
from stagelens.instrumentors.libraries.grpc_server import GrpcServerInstrumentor
from stagelens.instrumentors.request_marks import read_marks

if TYPE_CHECKING:
    from conftest import Finished

INSTRUMENTOR = GrpcServerInstrumentor
pytestmark = pytest.mark.usefixtures("instrumented")

SERVICE = "inference.Model"
TRACEPARENT = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
PARTS = [b"one", b"two", b"three"]
# Time of each computation.
WORK_NS = 1_000_000


def spin(duration_ns: int) -> None:
    until = records.clock() + duration_ns
    while records.clock() < until:
        pass


class Gate:
    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()

    def hold(self) -> None:
        self.entered.set()
        assert self.opened.wait(30)


def decode(message: bytes) -> bytes:
    if message == b"unreadable":
        raise ValueError(message)
    spin(WORK_NS)
    return message


def encode(message: bytes) -> bytes:
    spin(WORK_NS)
    return message


class Refuses(Exception):  # noqa: N818 - what it does
    pass


ABORTED = {b"abort": grpc.StatusCode.UNAVAILABLE, b"invalid": grpc.StatusCode.INVALID_ARGUMENT}
CODES = {b"code": grpc.StatusCode.INTERNAL}


def refuse(request: bytes, context: Any) -> None:
    if request in CODES:
        context.set_code(CODES[request])
    if request == b"raise":
        raise Refuses


def part_of(request: bytes, part: bytes) -> bytes:
    """Return *part* of a response after a computation, or raise after the last one."""
    spin(WORK_NS)
    if request == b"raise" and part == PARTS[-1]:
        raise Refuses
    return part


def sync_methods(gate: Gate) -> dict[str, Any]:
    def unary(request: bytes, context: Any) -> bytes:
        spin(WORK_NS)
        if request in ABORTED:
            context.abort(ABORTED[request], "details")
        refuse(request, context)
        if request == b"hold":
            gate.hold()
        return request

    def stream(request: bytes, _: Any) -> Iterator[bytes]:
        for part in PARTS:
            yield part_of(request, part)

    def collect(requests: Iterator[bytes], _: Any) -> bytes:
        first = next(requests)
        gate.entered.set()
        return b"".join([first, *requests])

    def echo(requests: Iterator[bytes], _: Any) -> Iterator[bytes]:
        yield from requests

    return handlers(unary, stream, collect, echo)


def aio_methods(gate: Gate) -> dict[str, Any]:
    async def unary(request: bytes, context: Any) -> bytes:
        spin(WORK_NS)
        if request in ABORTED:
            await context.abort(ABORTED[request], "details")
        refuse(request, context)
        if request == b"hold":
            await asyncio.to_thread(gate.hold)
        return request

    async def stream(request: bytes, _: Any) -> AsyncIterator[bytes]:
        for part in PARTS:
            yield part_of(request, part)

    async def collect(requests: AsyncIterator[bytes], _: Any) -> bytes:
        first = await anext(requests)
        gate.entered.set()
        return b"".join([first, *[request async for request in requests]])

    async def echo(requests: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request

    return handlers(unary, stream, collect, echo)


def handlers(unary: Any, stream: Any, collect: Any, echo: Any) -> dict[str, Any]:
    """Return a method of each kind by its name."""
    return {
        "Unary": grpc.unary_unary_rpc_method_handler(unary, decode, encode),
        "Stream": grpc.unary_stream_rpc_method_handler(stream, decode, encode),
        "Collect": grpc.stream_unary_rpc_method_handler(collect, decode, encode),
        "Echo": grpc.stream_stream_rpc_method_handler(echo, decode, encode),
    }


class Server(NamedTuple):
    """A running server of one kind, and a channel to it."""

    kind: str
    gate: Gate
    channel: grpc.Channel

    def call(self, method: str, request: Any, **options: Any) -> Any:
        """Call *method*, and return its response or list of responses."""
        kinds = {"Stream": "unary_stream", "Collect": "stream_unary", "Echo": "stream_stream"}
        open_call = getattr(self.channel, kinds.get(method, "unary_unary"))
        response = open_call(f"/{SERVICE}/{method}")(request, timeout=options.pop("timeout", 30), **options)
        return response if isinstance(response, bytes) else list(response)

    def settle(self) -> None:
        """Wait until the server has handled what it was sent before, by a call of an unknown method."""
        with pytest.raises(grpc.RpcError):
            self.call("Missing", b"")


@contextlib.contextmanager
def threads(interceptors: Any = (), handlers: Any = (), **options: Any) -> Generator[Server]:
    gate = Gate()
    with ThreadPoolExecutor(options.pop("max_workers", 4)) as pool:
        server: Any = grpc.server(pool, interceptors=interceptors, **options)
        own = grpc.method_handlers_generic_handler(SERVICE, sync_methods(gate))
        server.add_generic_rpc_handlers((*handlers, own))
        server.add_registered_method_handlers("registered", {"Unary": sync_methods(gate)["Unary"]})
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield Server("threads", gate, channel)
        gate.opened.set()
        server.stop(None).wait(30)


@contextlib.contextmanager
def aio(interceptors: Any = (), methods: Any = aio_methods, **options: Any) -> Generator[Server]:
    """Run an asyncio server on a loop of its own."""
    gate, started = Gate(), Future[tuple[int, asyncio.AbstractEventLoop, asyncio.Event]]()

    async def serve() -> None:
        server = grpc.aio.server(interceptors=interceptors, migration_thread_pool=ThreadPoolExecutor(4), **options)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods(gate)),))
        port, stop = server.add_insecure_port("127.0.0.1:0"), asyncio.Event()
        await server.start()
        started.set_result((port, asyncio.get_running_loop(), stop))
        await stop.wait()
        await server.stop(None)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    port, loop, stop = started.result(30)
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield Server("aio", gate, channel)
    gate.opened.set()
    loop.call_soon_threadsafe(stop.set)
    thread.join(30)


@contextlib.contextmanager
def busy(**options: Any) -> Generator[Server]:
    """Run a server whose first call lasts as long as the block, or until its gate is open."""
    with threads(**options) as server:
        first: Any = server.channel.unary_unary(f"/{SERVICE}/Unary").future(b"hold", timeout=30)
        assert server.gate.entered.wait(30)
        yield server
        server.gate.opened.set()
        assert first.result(30) == b"hold"


KINDS: dict[str, Any] = {"threads": threads, "aio": aio}


@pytest.fixture(params=list(KINDS))
def server(request: pytest.FixtureRequest) -> Generator[Server]:
    with KINDS[request.param]() as running:
        yield running


@pytest.fixture
def seen(finished: Finished, until: Callable[..., None]) -> Callable[[], tuple[str, str, dict[str, int]]]:
    """Return the route, the error and the time by stage of the only request, once it has ended."""

    def only() -> tuple[str, str, dict[str, int]]:
        until(lambda: finished, "the end of the request")
        ((marks, start, end, route, error, status, kind),) = finished
        assert (status, kind) == (0, "server")
        return route, error, partition(read_marks(marks[:]).intervals, start, end)

    return only


@pytest.mark.parametrize(
    ("method", "sizes", "handler", "serialize"),
    [("Unary", (3, 3), 1, 2), ("Stream", (3, len(b"".join(PARTS))), 3, 4), ("Collect", (6, 6), 0, 3)],
)
def test_a_call_is_a_request_with_stages_and_attributes(  # noqa: PLR0917 - fixtures and parameters
    server: Server,
    seen: Any,
    finished: Finished,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    sizes: tuple[int, int],
    handler: int,
    serialize: int,
) -> None:
    monkeypatch.setattr(named_attributes, "sources", named_attributes.parse("tenant=header:x-tenant"))
    attributes = [("x-tenant", "acme"), ("x-other", "secret"), ("tracestate", "stagelens=checkout")]
    metadata = [("traceparent", TRACEPARENT), *attributes]
    server.call(method, iter([b"abc", b"def"]) if method == "Collect" else b"abc", metadata=metadata)
    route, error, spent = seen()
    found = {key: value for key, value, _ in finished.marks()}

    assert (route, error) == (f"{SERVICE}/{method}", "")
    assert spent["handler"] >= handler * WORK_NS
    assert spent["serialize"] >= serialize * WORK_NS
    assert spent["overhead"] == 0
    assert {"framework", "network"} <= spent.keys()
    assert ("queue" in spent) == (server.kind == "threads")
    assert ({"@first_token", "@gap"} <= found.keys()) == (method == "Stream")
    assert (found["@request_size"], found["@response_size"]) == sizes
    assert (found["@attribute"], found["@caller"]) == (("tenant", "acme"), "stagelens=checkout")
    assert found["@traceparent"] == TRACEPARENT
    assert "@method" not in found
    assert "secret" not in repr(finished)


def test_the_wait_for_the_client_is_network(server: Server, seen: Any) -> None:
    def requests() -> Iterator[bytes]:
        yield b"a"
        assert server.gate.entered.wait(30)
        spin(20 * WORK_NS)
        yield b"b"

    assert server.call("Collect", requests()) == b"ab"
    route, _, spent = seen()

    assert route == f"{SERVICE}/Collect"
    assert spent["network"] > 0
    assert spent["overhead"] == 0


def test_a_bidirectional_stream_is_one_request_without_an_empty_first_token(
    server: Server, seen: Any, finished: Finished
) -> None:
    sent_at: list[int] = []

    def requests() -> Iterator[bytes]:
        yield b""
        sent_at.append(records.clock())
        yield from PARTS

    assert server.call("Echo", requests()) == [b"", *PARTS]
    route, error, spent = seen()

    assert (route, error) == (f"{SERVICE}/Echo", "")
    assert spent["serialize"] >= 6 * WORK_NS
    assert finished.facts()["@first_token"] > sent_at[0]


@pytest.mark.parametrize(
    ("method", "request_", "code", "expected"),
    [
        ("Unary", b"abort", grpc.StatusCode.UNAVAILABLE, "UNAVAILABLE"),
        ("Unary", b"invalid", grpc.StatusCode.INVALID_ARGUMENT, ""),
        ("Unary", b"code", grpc.StatusCode.INTERNAL, "INTERNAL"),
        ("Unary", b"raise", grpc.StatusCode.UNKNOWN, "Refuses"),
        ("Stream", b"raise", grpc.StatusCode.UNKNOWN, "Refuses"),
        ("Missing", b"", grpc.StatusCode.UNIMPLEMENTED, ""),
    ],
)
def test_failures_of_the_service_are_errors(  # noqa: PLR0917 - parameters
    server: Server, seen: Any, method: str, request_: bytes, code: grpc.StatusCode, expected: str
) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        server.call(method, request_)

    assert refused.value.code() is code
    route = "__unmatched__" if method == "Missing" else f"{SERVICE}/{method}"
    assert seen()[:2] == (route, expected)


def test_failures_of_an_asyncio_server_need_no_import_of_the_other(monkeypatch: pytest.MonkeyPatch, seen: Any) -> None:
    monkeypatch.delitem(sys.modules, "grpc._server", raising=False)
    with aio() as server, pytest.raises(grpc.RpcError):
        server.call("Unary", b"abort")

    assert seen()[1] == "UNAVAILABLE"


def test_a_message_that_cannot_be_read_is_an_error(server: Server, seen: Any) -> None:
    with pytest.raises(grpc.RpcError):
        server.call("Unary", b"unreadable")
    route, error, spent = seen()

    assert (route, error) == (f"{SERVICE}/Unary", "ValueError")
    assert "handler" not in spent


@pytest.mark.parametrize(("timeout", "error"), [(0.3, "DEADLINE_EXCEEDED"), (30, "")])
def test_an_exceeded_deadline_is_an_error_and_a_cancelled_call_none(
    server: Server, finished: Finished, until: Callable[..., None], timeout: float, error: str
) -> None:
    call: Any = server.channel.unary_unary(f"/{SERVICE}/Unary").future(b"hold", timeout=timeout)
    if not error:
        assert server.gate.entered.wait(30)
        call.cancel()
    assert call.code().name == (error or "CANCELLED")
    server.settle()
    server.gate.opened.set()
    until(lambda: len(finished) == 2, "the end of the requests")

    assert sorted(record[3:5] for record in finished) == [("__unmatched__", ""), (f"{SERVICE}/Unary", error)]
    assert {record[3] for record in finished if "@cancelled" in record[0]} == (set() if error else {f"{SERVICE}/Unary"})


def test_registered_methods_have_their_name(seen: Any) -> None:
    with threads() as server:
        response = server.channel.unary_unary("/registered/Unary")(b"abc", timeout=30)

    assert response == b"abc"
    assert seen()[0] == "registered/Unary"


def test_the_wait_for_a_thread_is_queue(finished: Finished, until: Callable[..., None]) -> None:
    with busy(max_workers=1) as server:
        unary: Any = server.channel.unary_unary(f"/{SERVICE}/Unary")
        second = unary.future(b"second", timeout=30)
        server.settle()
        opened = records.clock()
        server.gate.opened.set()
        assert second.result(30) == b"second"
        until(lambda: len(finished) == 3, "the end of the requests")

    ((submitted, started),) = [
        (start, end) for stage, start, end in read_marks(finished[-1][0]).intervals if stage == "queue"
    ]
    assert submitted < opened < started


def test_a_call_that_never_gets_a_thread_in_time_is_an_error(finished: Finished, until: Callable[..., None]) -> None:
    with busy(max_workers=1) as server:
        with pytest.raises(grpc.RpcError) as late:
            server.call("Stream", b"", timeout=0.3)
        server.settle()
        server.gate.opened.set()
        until(lambda: len(finished) == 3, "the end of the requests")

    assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert finished[-1][3:5] == (f"{SERVICE}/Stream", "DEADLINE_EXCEEDED")
    assert {"queue"} <= {key for key in finished[-1][0][::3] if key[0] != "@"} <= {"queue", "network", "framework"}


def test_a_rejected_call_is_counted(finished: Finished, until: Callable[..., None]) -> None:
    with busy(maximum_concurrent_rpcs=1) as server:
        with pytest.raises(grpc.RpcError) as refused:
            server.call("Unary", b"second")
        server.gate.opened.set()
        until(lambda: len(finished) == 2, "the end of the requests")

    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert [record[3:5] for record in finished] == [(f"{SERVICE}/Unary", "")] * 2


class Slow(grpc.ServerInterceptor):
    """An interceptor of the user, which works before and after the method."""

    def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        found = continuation(handler_call_details)
        spin(WORK_NS)

        def around(request: Any, context: Any) -> Any:
            spin(2 * WORK_NS)
            return found.unary_unary(request, context)

        return grpc.unary_unary_rpc_method_handler(around, found.request_deserializer, found.response_serializer)


class SlowAio(grpc.aio.ServerInterceptor):
    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        found = await continuation(handler_call_details)
        spin(WORK_NS)

        async def around(request: Any, context: Any) -> Any:
            spin(2 * WORK_NS)
            return await found.unary_unary(request, context)

        return grpc.unary_unary_rpc_method_handler(around, found.request_deserializer, found.response_serializer)


@pytest.mark.parametrize(("kind", "interceptor"), [("threads", Slow), ("aio", SlowAio)])
def test_interceptors_are_framework(seen: Any, kind: str, interceptor: Any) -> None:
    with KINDS[kind](interceptors=[interceptor()]) as server:
        assert server.call("Unary", b"abc") == b"abc"
    _, _, spent = seen()

    assert spent["framework"] >= 3 * WORK_NS
    assert spent["handler"] >= WORK_NS


class Described:
    """Description of a method by the user's own type."""

    request_deserializer = response_serializer = request_streaming = None
    response_streaming = True

    def __init__(self, behavior: Any) -> None:
        self.unary_stream = behavior


class Servicer:
    def stream(self, request: bytes, _: Any) -> Iterator[bytes]:
        yield request


@pytest.mark.parametrize("describe", [grpc.unary_stream_rpc_method_handler, Described])
def test_an_interceptor_sees_the_method_of_the_user(seen: Any, describe: Any) -> None:
    method = Servicer().stream
    found: list[Any] = []

    class Looks(grpc.ServerInterceptor):
        def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
            found.append(continuation(handler_call_details))
            return found[0]

    class Finds(grpc.GenericRpcHandler):
        def service(self, handler_call_details: Any) -> Any:
            del handler_call_details
            described = describe(method)
            described.permission = "admin"
            return described

    with threads(interceptors=[Looks()], handlers=[Finds()]) as server:
        assert server.call("Stream", b"abc") == [b"abc"]

    behavior = found[0].unary_stream
    assert (type(found[0]), found[0].permission) == (type(describe(method)), "admin")
    assert {behavior: inspect.isgeneratorfunction(behavior)} == {method: True}
    assert behavior.__self__ is method.__self__
    assert seen()[2]["handler"] > 0


@pytest.mark.parametrize(("kind", "interceptor"), [("threads", server_interceptor), ("aio", aio_server_interceptor)])
@pytest.mark.parametrize("method", ["Unary", "Stream"])
def test_opentelemetry_beside_us(seen: Any, kind: str, interceptor: Any, method: str) -> None:
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    with KINDS[kind](interceptors=[interceptor(tracer_provider=provider)]) as server, pytest.raises(grpc.RpcError):
        server.call(method, b"raise")
    route, error, spent = seen()

    assert (route, error) == (f"{SERVICE}/{method}", "Refuses")
    assert spent["handler"] >= WORK_NS
    assert [(span.attributes or {})["rpc.method"] for span in spans.get_finished_spans()] == [method]


@pytest.mark.parametrize("method", ["Unary", "Stream", "Collect"])
def test_methods_without_async_run_in_threads_of_an_asyncio_server(seen: Any, method: str) -> None:
    executors = ExecutorInstrumentor()
    executors.instrument()
    with aio(methods=sync_methods) as server:
        assert server.call(method, iter(PARTS) if method == "Collect" else b"abc")
    executors.uninstrument()
    route, error, spent = seen()

    assert (route, error) == (f"{SERVICE}/{method}", "")
    assert spent["handler"] >= (0 if method == "Collect" else WORK_NS)


def test_no_failure_of_ours_reaches_a_call(
    server: Server, make_fail: Any, reported: set[str], caplog: pytest.LogCaptureFixture
) -> None:
    make_fail(module, "record_request_head")
    with caplog.at_level(logging.WARNING, "stagelens"):
        responses = [server.call("Unary", b"abc") for _ in range(2)]

    assert responses == [b"abc"] * 2
    assert len([record for record in caplog.records if record.name == "stagelens"]) == len(reported) == 1
