"""The HTTP clients, each called the way people call it: what holds for all of them."""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from opentelemetry.instrumentation.aiohttp_client import AioHttpClientInstrumentor
from opentelemetry.instrumentation.httpx import HTTPXClientInstrumentor
from opentelemetry.instrumentation.requests import RequestsInstrumentor as OtelRequestsInstrumentor
from opentelemetry.instrumentation.urllib3 import URLLib3Instrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from stagelens.instrumentors import recorder, records, trace_context
from stagelens.instrumentors.libraries import client_common
from stagelens.instrumentors.libraries.aiohttp_client import AiohttpClientInstrumentor
from stagelens.instrumentors.libraries.httpx import HttpxInstrumentor
from stagelens.instrumentors.libraries.transformers import suppress
from stagelens.instrumentors.libraries.urllib3 import RequestsInstrumentor, Urllib3Instrumentor
from stagelens.instrumentors.records import CALLED
from stagelens.instrumentors.trace_context import traceparent, tracestate_to
from tests.instrumentors.libraries import drivers
from tests.instrumentors.libraries.drivers import NO_HEADERS

if TYPE_CHECKING:
    from conftest import Running, Upstream

Get = Callable[[str, Mapping[str, str]], bytes]
THEIRS = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Client(NamedTuple):
    get: Get
    theirs: Any


CLIENTS = {
    "urllib3": Client(drivers.get_by_urllib3, URLLib3Instrumentor),
    "requests": Client(drivers.get_by_requests, OtelRequestsInstrumentor),
    "httpx": Client(drivers.get_by_httpx, HTTPXClientInstrumentor),
    "httpx async": Client(drivers.get_by_async_httpx, HTTPXClientInstrumentor),
    "httpx2": Client(drivers.get_by_httpx2, None),
    "aiohttp": Client(drivers.get_by_aiohttp, AioHttpClientInstrumentor),
}
OURS = (Urllib3Instrumentor, RequestsInstrumentor, HttpxInstrumentor, AiohttpClientInstrumentor)


def instrument() -> None:
    for ours in OURS:
        ours().instrument()


def uninstrument() -> None:
    for ours in OURS:
        ours().uninstrument()


@pytest.fixture(autouse=True)
def ours() -> Generator[None]:
    instrument()
    yield
    uninstrument()


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> Client:
    return CLIENTS[request.param]


@pytest.fixture(params=[name for name, client in CLIENTS.items() if client.theirs])
def known(request: pytest.FixtureRequest) -> Client:
    """Run the test with each client that OpenTelemetry knows."""
    return CLIENTS[request.param]


def test_a_call_and_its_body_are_a_dependency(client: Client, in_a_request: Running, upstream: Upstream) -> None:
    body = client.get(f"{upstream.address}/plain", NO_HEADERS)

    assert body == b"answer"
    assert set(in_a_request.names()) == {"dependency"}


def test_a_call_outside_a_request_is_unchanged(
    client: Client, finished: deque[records.Record], upstream: Upstream
) -> None:
    body = client.get(f"{upstream.address}/plain", NO_HEADERS)

    assert body == b"answer"
    assert list(finished) == []
    assert upstream.traces() == []


def test_a_call_propagates_the_trace(client: Client, in_a_request: Running, upstream: Upstream) -> None:
    headers = {"X-Own": "1"}
    client.get(f"{upstream.address}/plain", headers)

    assert upstream.traces() == [in_a_request.trace()]
    assert upstream.heads[-1]["X-Own"] == "1"
    assert headers == {"X-Own": "1"}


@pytest.mark.parametrize("name", ["traceparent", "Traceparent", "TRACEPARENT"])
@pytest.mark.usefixtures("in_a_request")
def test_a_header_of_the_user_is_preserved(client: Client, upstream: Upstream, name: str) -> None:
    client.get(f"{upstream.address}/plain", {name: THEIRS})

    assert upstream.traces() == [THEIRS]


@pytest.mark.usefixtures("in_a_request")
def test_the_service_is_sent_with_the_trace(
    client: Client, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "check out")
    tracestate_to.cache_clear()
    client.get(f"{upstream.address}/plain", NO_HEADERS)
    client.get(f"{upstream.address}/plain", {"Tracestate": "vendor=1"})
    tracestate_to.cache_clear()

    assert [head.get_all("tracestate") for head in upstream.heads] == [["stagelens=check%20out"], ["vendor=1"]]


@pytest.mark.usefixtures("in_a_request")
def test_other_hosts_get_the_trace_without_the_service(
    client: Client, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(trace_context, "may_name_service_to", lambda host, _listed: asked.append(host))
    tracestate_to.cache_clear()
    client.get(f"{upstream.address}/plain", NO_HEADERS)
    tracestate_to.cache_clear()

    assert asked == ["127.0.0.1"]
    assert len(upstream.traces()) == 1
    assert "tracestate" not in upstream.heads[-1]


@pytest.mark.usefixtures("in_a_request")
def test_without_propagation_nothing_is_sent(
    client: Client, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_context, "traceparent", lambda _: "")
    client.get(f"{upstream.address}/plain", NO_HEADERS)

    assert upstream.traces() == []
    assert "tracestate" not in upstream.heads[-1]


def test_an_error_is_unchanged_and_its_time_is_recorded(client: Client, in_a_request: Running) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/"
        with pytest.raises(Exception, match=r".") as ours:
            client.get(url, NO_HEADERS)
        uninstrument()
        with pytest.raises(Exception, match=r".") as original:
            client.get(url, NO_HEADERS)

    assert ours.type is original.type
    assert set(in_a_request.names()) == {"dependency"}


def test_a_redirect_is_part_of_the_call(client: Client, in_a_request: Running, upstream: Upstream) -> None:
    client.get(f"{upstream.address}/redirect", NO_HEADERS)
    trace = in_a_request.trace()

    assert {"dependency"} == set(in_a_request.names())
    assert [head.get_all("traceparent") for head in upstream.heads] == [[trace]] * len(upstream.heads)


def test_calls_below_an_instrumented_library_record_nothing(
    client: Client, in_a_request: Running, upstream: Upstream
) -> None:
    token = suppress()
    client.get(f"{upstream.address}/plain", NO_HEADERS)
    recorder.end(token)

    assert in_a_request.names() == []
    assert upstream.traces() == []
    assert records.current.get() is in_a_request.marks


def test_two_concurrent_requests_never_mix(client: Client, finished: deque[records.Record], upstream: Upstream) -> None:
    together = threading.Barrier(2, timeout=30)

    def serve() -> None:
        opened = recorder.begin()
        assert opened is not None
        marks, token = opened
        together.wait()
        client.get(f"{upstream.address}/plain", {"X-Whose": traceparent(marks)})
        recorder.end(token)
        recorder.finish(marks, marks[1], records.clock())

    threads = [threading.Thread(target=copy_context().run, args=(serve,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    traces = [head.get_all("traceparent") for head in upstream.heads]
    assert traces == [[head["X-Whose"]] for head in upstream.heads]
    assert len({head["X-Whose"] for head in upstream.heads}) == 2
    for marks, t0, t1, *_ in finished:
        stages = [(marks[i], marks[i + 1], marks[i + 2]) for i in range(0, len(marks), 3) if marks[i][0] != "@"]

        assert stages
        assert all(t0 <= started <= ended <= t1 for _, started, ended in stages)


class _Otel:
    """The contrib module of one client, and the spans it made."""

    def __init__(self, instrumentor: Any) -> None:
        self._instrumentor = instrumentor()
        self._exporter = InMemorySpanExporter()
        self._provider = TracerProvider()
        self._provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def instrument(self) -> None:
        self._instrumentor.instrument(tracer_provider=self._provider)

    def uninstrument(self) -> None:
        self._instrumentor.uninstrument()
        self._provider.shutdown()

    def spans(self) -> list[Any]:
        return list(self._exporter.get_finished_spans())


@pytest.fixture
def otel(known: Client) -> Iterator[_Otel]:
    """Have the contrib module at hand, and out of the way afterwards."""
    module = _Otel(known.theirs)
    yield module
    # Whoever came last goes first.
    uninstrument()
    module.uninstrument()


def test_no_content_of_a_call_is_recorded(client: Client, in_a_request: Running, upstream: Upstream) -> None:
    client.get(f"{upstream.address}/plain?token=secret", {"Authorization": "secret"})

    recorded = repr(in_a_request.marks)
    hosts = {value for key, value, _ in zip(*[iter(in_a_request.marks)] * 3, strict=True) if key == CALLED}
    assert hosts == {"127.0.0.1"}
    assert not [word for word in ("secret", "plain", "answer", "http", upstream.address[-5:]) if word in recorded]


@pytest.mark.parametrize("ours_first", [True, False])
def test_opentelemetry_causes_no_duplicate_spans_or_stages(
    known: Client, otel: _Otel, in_a_request: Running, upstream: Upstream, *, ours_first: bool
) -> None:
    known.get(f"{upstream.address}/plain", NO_HEADERS)
    alone = in_a_request.calls()
    if not ours_first:
        uninstrument()
    otel.instrument()
    instrument()
    body = known.get(f"{upstream.address}/plain", NO_HEADERS)

    assert body == b"answer"
    assert in_a_request.calls() == 2 * alone
    (span,) = otel.spans()
    assert [trace[:-3] for trace in upstream.traces()] == [
        f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}"
    ]


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    return lambda now: monkeypatch.setattr(client_common, "clock", lambda: now)


def test_consecutive_reads_are_one_interval(at: Callable[[int], None]) -> None:
    marks: list[Any] = [records.OPEN, 0, 0, "dependency", 0, 4]
    pause = client_common.MAX_GAP_NS
    for started, ended in ((5, 10), (11, 30), (30 + pause, 90 + pause)):
        at(ended)
        client_common.record_read(marks, started)

    # The headers before it stay apart, however soon the body follows.
    assert marks[3:] == ["dependency", 0, 4, client_common.BODY, 5, 30, client_common.BODY, 30 + pause, 90 + pause]


def test_bodies_read_concurrently_are_recorded_completely(at: Callable[[int], None]) -> None:
    marks: list[Any] = [records.OPEN, 0, 0]
    for started, ended in ((90, 100), (0, 101), (95, 110)):
        at(ended)
        client_common.record_read(marks, started)

    assert marks[3:] == [client_common.BODY, 90, 100, client_common.BODY, 0, 110]


class Shortened(list[Any]):
    """A list that another thread shortens right after its length was asked for."""

    def __len__(self) -> int:
        return super().__len__() + 300


def test_a_concurrently_compacted_record_raises_nothing() -> None:
    marks = Shortened([records.OPEN, 0, 0])
    client_common.record_read(marks, 1)

    assert marks[3:5] == [client_common.BODY, 1]


def test_a_full_record_grows_no_further() -> None:
    marks: list[Any] = [records.OPEN, 0, 0]
    for _ in range(records.MAX_MARKS):
        client_common.record_wait(marks, 0)
        client_common.record_read(marks, 0)

    assert len(marks) < records.MAX_MARKS + 9
