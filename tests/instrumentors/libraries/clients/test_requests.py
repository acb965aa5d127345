"""The requests library: redirects, streams, adapters, prepared requests."""

from __future__ import annotations

import io
import pickle
import threading
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest
import requests
from requests.adapters import BaseAdapter

from stagelens.instrumentors.libraries import client_common
from stagelens.instrumentors.libraries.urllib3 import RequestsInstrumentor, Urllib3Instrumentor

if TYPE_CHECKING:
    from conftest import Running, Upstream

INSTRUMENTOR = RequestsInstrumentor
pytestmark = pytest.mark.usefixtures("instrumented", "with_urllib3")


@pytest.fixture
def with_urllib3() -> Generator[None]:
    Urllib3Instrumentor().instrument()
    yield
    Urllib3Instrumentor().uninstrument()


def test_a_call_includes_the_urllib3_intervals(
    in_a_request: Running, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_common, "MAX_GAP_NS", 10**15)
    response = requests.get(f"{upstream.address}/parts", timeout=30)

    assert response.content == b"one two three"
    headers, body, call = in_a_request.stages()
    assert call[1] < headers[1] < headers[2] <= body[1] < body[2] < call[2]


def test_a_stream_is_read_after_the_call(
    in_a_request: Running, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_common, "MAX_GAP_NS", 10**15)
    with requests.get(f"{upstream.address}/held", stream=True, timeout=30) as response:
        held = in_a_request.stages()
        threading.Timer(0.05, upstream.release.set).start()
        assert b"".join(response.iter_content(3)) == b"answer"

    assert len(held) == 2
    (body,) = in_a_request.stages()[2:]
    assert max(ended for _, _, ended in held) <= body[1]


def test_an_adapter_without_urllib3_is_recorded(in_a_request: Running) -> None:
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

    assert response.content == b"local"
    assert in_a_request.names() == ["dependency"]


@pytest.mark.usefixtures("in_a_request")
def test_a_prepared_request_is_unchanged(upstream: Upstream) -> None:
    with requests.Session() as session:
        prepared = session.prepare_request(requests.Request("GET", f"{upstream.address}/plain"))
        response = session.send(prepared)

    assert len(upstream.traces()) == 1
    assert response.request is prepared
    assert "traceparent" not in prepared.headers


@pytest.mark.usefixtures("in_a_request")
def test_sessions_and_responses_can_be_pickled_and_subclassed(upstream: Upstream) -> None:
    class Session(requests.Session):
        def send(self, request: Any, **options: Any) -> requests.Response:
            options["timeout"] = 30
            return super().send(request, **options)

    with Session() as session:
        response = session.get(f"{upstream.address}/plain")

    assert not [name for name in vars(response.raw) if "stagelens" in name]
    with pytest.raises(TypeError, match="unknown"):
        response.iter_lines(unknown=1)  # type: ignore[call-arg]
    assert pickle.loads(pickle.dumps(response)).content == b"answer"  # noqa: S301 - our own bytes
    assert isinstance(pickle.loads(pickle.dumps(requests.Session())), requests.Session)  # noqa: S301


@pytest.mark.usefixtures("in_a_request")
def test_requests_outside_the_urllib3_patches_send_one_trace(upstream: Upstream) -> None:
    def once_more(response: requests.Response, **options: Any) -> None:
        if len(upstream.heads) < 2:
            response.connection.send(response.request, **options).close()

    requests.get(f"{upstream.address}/plain", hooks={"response": once_more}, timeout=30)

    assert [len(head.get_all("traceparent", [])) for head in upstream.heads] == [1, 1]
