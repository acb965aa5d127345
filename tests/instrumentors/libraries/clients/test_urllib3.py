"""urllib3: every way to read a body, retries, headers of the pool; and requests, which calls it."""

from __future__ import annotations

import io
import pickle
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest
import requests
import urllib3
from requests.adapters import BaseAdapter
from starlette.datastructures import Headers
from urllib3._collections import HTTPHeaderDict

from stagelens.instrumentors import records
from stagelens.instrumentors.libraries import client_common
from stagelens.instrumentors.libraries.urllib3 import RequestsInstrumentor, Urllib3Instrumentor
from tests.instrumentors.libraries.drivers import instrumenting

if TYPE_CHECKING:
    from conftest import Running, Upstream

INSTRUMENTOR = Urllib3Instrumentor
pytestmark = pytest.mark.usefixtures("instrumented")

BODY = b"one two three"
THEIRS = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def requests_instrumented() -> Generator[None]:
    with instrumenting(RequestsInstrumentor()):
        yield


@pytest.mark.parametrize(
    "read",
    [
        lambda response: response.read(),
        lambda response: b"".join(response.stream(4)),
        lambda response: b"".join(response.stream()),
        lambda response: b"".join(response.read_chunked()),
        lambda response: response.read(7) + response.read(6),
        lambda response: response.data,
        pytest.param(
            lambda response: b"".join(iter(lambda: response.read1(5), b"")), marks=pytest.mark.since("urllib3", "2.2")
        ),
    ],
)
def test_a_body_read_later_is_a_separate_interval(
    in_a_request: Running, upstream: Upstream, read: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_common, "MAX_GAP_NS", 10**15)
    with urllib3.PoolManager() as pool:
        response = pool.request("GET", f"{upstream.address}/parts", preload_content=False)
        assert len(in_a_request.stages()) == 1
        assert read(response) == BODY
        response.release_conn()

    call, body = in_a_request.stages()
    assert call[2] <= body[1] <= body[2]


def test_caller_time_between_two_reads_is_excluded(
    in_a_request: Running, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_common, "MAX_GAP_NS", 0)
    with urllib3.PoolManager() as pool:
        response = pool.request("GET", f"{upstream.address}/parts", preload_content=False)
        held = [records.clock() for _ in response.stream()]
        response.release_conn()

    reads = in_a_request.stages()[1:]
    assert len(held) == 3
    assert not any(started <= moment <= ended for moment in held for _, started, ended in reads)


def test_retries_are_one_call(in_a_request: Running, upstream: Upstream) -> None:
    with urllib3.PoolManager() as pool:
        response = pool.request("GET", f"{upstream.address}/flaky", retries=1, preload_content=False)
        assert response.read() == b"answer"

    trace = in_a_request.trace()
    assert in_a_request.names() == ["dependency", "dependency"]
    assert [head.get_all("traceparent") for head in upstream.heads] == [[trace], [trace]]


def test_a_call_after_one_that_failed_is_recorded(in_a_request: Running, upstream: Upstream) -> None:
    with urllib3.PoolManager() as pool:
        with pytest.raises(urllib3.exceptions.MaxRetryError):
            pool.request("GET", f"{upstream.address}/redirect", redirect=True, retries=urllib3.Retry(redirect=0))
        before = in_a_request.calls()
        pool.request("GET", f"{upstream.address}/plain")

    assert in_a_request.calls() == before + 1


@pytest.mark.parametrize("headers", [{"X-Own": "1"}, HTTPHeaderDict({"X-Own": "1"}), {"Traceparent": THEIRS}])
def test_headers_of_a_pool_are_sent_unchanged(in_a_request: Running, upstream: Upstream, headers: Any) -> None:
    before = dict(headers)
    with urllib3.PoolManager(headers=headers) as pool:
        pool.request("GET", f"{upstream.address}/plain")

    assert upstream.heads[-1]["X-Own"] == before.get("X-Own")
    assert upstream.traces() == [before.get("Traceparent") or in_a_request.trace()]
    assert dict(headers) == before


@pytest.mark.usefixtures("in_a_request")
@pytest.mark.parametrize("headers", [[("X-Own", "1")], 5, Headers({"X-Own": "1"})])
def test_invalid_headers_raise_the_error_of_urllib3(headers: Any, reported: set[str]) -> None:
    with urllib3.PoolManager() as pool, pytest.raises((AttributeError, TypeError)):
        pool.urlopen("GET", "http://127.0.0.1:9/", headers=headers)

    assert reported == set()


@pytest.mark.usefixtures("in_a_request")
def test_the_host_behind_a_proxy_decides_if_the_service_is_sent(upstream: Upstream) -> None:
    with urllib3.ProxyManager(upstream.address) as pool:
        for host in ("checkout.svc", "api.example.com"):
            pool.request("GET", f"http://{host}/plain")

    assert ["tracestate" in head for head in upstream.heads] == [True, False]


@pytest.mark.usefixtures("requests_instrumented")
def test_a_call_of_requests_includes_the_urllib3_intervals(
    in_a_request: Running, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_common, "MAX_GAP_NS", 10**15)
    response = requests.get(f"{upstream.address}/parts", timeout=30)

    assert response.content == b"one two three"
    headers, body, call = in_a_request.stages()
    assert call[1] < headers[1] < headers[2] <= body[1] < body[2] < call[2]


@pytest.mark.usefixtures("requests_instrumented")
def test_an_adapter_of_requests_without_urllib3_is_recorded(in_a_request: Running) -> None:
    class Local(BaseAdapter):
        def send(self, request: Any, *_: Any, **__: Any) -> requests.Response:
            response = requests.Response()
            response.status_code = 200
            response.request = request
            response.raw = io.BytesIO(b"local")
            return response

        def close(self) -> None: ...

    with requests.Session() as session:
        session.mount("local://", Local())
        response = session.get("local://here")

    assert response.content == pickle.loads(pickle.dumps(response)).content == b"local"  # noqa: S301 - our own bytes
    assert in_a_request.names() == ["dependency"]
