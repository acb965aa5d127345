"""The HTTP clients, each called the way people call it: what holds for all of them."""

from __future__ import annotations

import socket
from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from opentelemetry.instrumentation.aiohttp_client import AioHttpClientInstrumentor
from opentelemetry.instrumentation.httpx import HTTPXClientInstrumentor
from opentelemetry.instrumentation.requests import RequestsInstrumentor as OtelRequestsInstrumentor
from opentelemetry.instrumentation.urllib3 import URLLib3Instrumentor

from stagelens.instrumentors import records, trace_context
from stagelens.instrumentors.libraries import client_common
from stagelens.instrumentors.libraries.aiohttp_client import AiohttpClientInstrumentor
from stagelens.instrumentors.libraries.client_common import MAX_GAP_NS
from stagelens.instrumentors.libraries.httpx import HttpxInstrumentor
from stagelens.instrumentors.libraries.urllib3 import RequestsInstrumentor, Urllib3Instrumentor
from stagelens.instrumentors.records import CALLED
from stagelens.instrumentors.trace_context import tracestate_to
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


@pytest.mark.parametrize("name", ["traceparent", "Traceparent", "TRACEPARENT"])
@pytest.mark.usefixtures("in_a_request")
def test_a_header_of_the_user_is_preserved(client: Client, upstream: Upstream, name: str) -> None:
    client.get(f"{upstream.address}/plain", {name: THEIRS})

    assert upstream.traces() == [THEIRS]


def test_a_call_propagates_the_trace_and_the_service(
    client: Client, in_a_request: Running, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "check out")
    tracestate_to.cache_clear()
    headers = {"X-Own": "1"}
    client.get(f"{upstream.address}/plain", headers)
    client.get(f"{upstream.address}/plain", {"Tracestate": "vendor=1"})
    tracestate_to.cache_clear()

    assert [head.get_all("traceparent") for head in upstream.heads] == [[in_a_request.trace()]] * 2
    assert [head.get_all("tracestate") for head in upstream.heads] == [["stagelens=check%20out"], ["vendor=1"]]
    assert upstream.heads[0]["X-Own"] == "1"
    assert headers == {"X-Own": "1"}


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


def test_no_content_of_a_call_is_recorded(client: Client, in_a_request: Running, upstream: Upstream) -> None:
    client.get(f"{upstream.address}/plain?token=secret", {"Authorization": "secret"})

    recorded = repr(in_a_request.marks)
    hosts = {value for key, value, _ in zip(*[iter(in_a_request.marks)] * 3, strict=True) if key == CALLED}
    assert hosts == {"127.0.0.1"}
    assert not [word for word in ("secret", "plain", "answer", "http", upstream.address[-5:]) if word in recorded]


@pytest.mark.parametrize("ours_first", [True, False])
@pytest.mark.parametrize("name", [name for name, client in CLIENTS.items() if client.theirs])
def test_opentelemetry_causes_no_duplicate_spans_or_stages(
    name: str, in_a_request: Running, upstream: Upstream, exported: Any, *, ours_first: bool
) -> None:
    client = CLIENTS[name]
    client.get(f"{upstream.address}/plain", NO_HEADERS)
    alone = in_a_request.calls()
    if not ours_first:
        uninstrument()
    client.theirs().instrument()
    instrument()
    try:
        client.get(f"{upstream.address}/plain", NO_HEADERS)
    finally:
        # Whoever came last goes first.
        uninstrument()
        client.theirs().uninstrument()

    assert in_a_request.calls() == 2 * alone
    (span,) = exported.get_finished_spans()
    (trace,) = upstream.traces()
    assert trace.startswith(f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-")


@pytest.mark.parametrize(
    ("reads", "expected"),
    [
        # The headers before it stay apart, however soon the body follows.
        (((5, 10), (11, 30), (30 + MAX_GAP_NS, 60_000)), [(5, 30), (30 + MAX_GAP_NS, 60_000)]),
        # Concurrently.
        (((90, 100), (0, 101), (95, 110)), [(90, 100), (0, 110)]),
    ],
)
def test_consecutive_reads_are_one_interval(
    monkeypatch: pytest.MonkeyPatch, reads: Any, expected: list[tuple[int, int]]
) -> None:
    marks: list[Any] = [records.OPEN, 0, 0, "dependency", 0, 4]
    for started, ended in reads:
        monkeypatch.setattr(client_common, "clock", lambda ended=ended: ended)
        client_common.record_read(marks, started)

    assert marks[3:] == ["dependency", 0, 4, *(value for read in expected for value in (client_common.BODY, *read))]


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
