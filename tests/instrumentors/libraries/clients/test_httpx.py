"""httpx and httpx2: streams, transports, authentication, cancellation."""

from __future__ import annotations

import asyncio
import inspect
import pickle
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import httpx
import httpx2
import pytest

from stagelens.instrumentors import records
from stagelens.instrumentors.libraries import client_common
from stagelens.instrumentors.libraries.httpx import HttpxInstrumentor

if TYPE_CHECKING:
    from conftest import Running, Upstream

INSTRUMENTOR = HttpxInstrumentor
pytestmark = pytest.mark.usefixtures("instrumented")

BODY = b"one two three"


@pytest.fixture(params=[httpx, httpx2], ids=["httpx", "httpx2"])
def module(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_a_call_that_reads_its_body_includes_it(
    module: Any, in_a_request: Running, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_common, "MAX_GAP_NS", 10**15)
    with module.Client(timeout=60) as client:
        response = client.get(f"{upstream.address}/parts")

    assert response.content == BODY
    body, call = in_a_request.stages()
    assert call[1] < body[1] < body[2] < call[2]


def test_a_stream_is_read_after_the_call(
    module: Any, in_a_request: Running, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_common, "MAX_GAP_NS", 0)
    with module.Client(timeout=60) as client, client.stream("GET", f"{upstream.address}/parts") as response:
        before = len(in_a_request.stages())
        held = [records.clock() for _ in response.iter_raw()]

    call, *reads = in_a_request.stages()
    assert before == 1
    assert len(held) >= 1
    assert all(call[2] <= started for _, started, _ in reads)
    assert not any(started <= moment <= ended for moment in held for _, started, ended in reads)


def test_an_async_stream_is_read_after_the_call(
    module: Any, in_a_request: Running, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_common, "MAX_GAP_NS", 0)

    async def go() -> list[int]:
        async with (
            module.AsyncClient(timeout=60) as client,
            client.stream("GET", f"{upstream.address}/parts") as response,
        ):
            return [records.clock() async for _ in response.aiter_bytes()]

    held = asyncio.run(go())

    call, *reads = in_a_request.stages()
    assert len(held) >= 1
    assert all(call[2] <= started for _, started, _ in reads)
    assert not any(started <= moment <= ended for moment in held for _, started, ended in reads)


def test_a_stream_can_be_abandoned(module: Any, in_a_request: Running, upstream: Upstream) -> None:
    async def go() -> None:
        async with module.AsyncClient(timeout=60) as client:
            async with client.stream("GET", f"{upstream.address}/parts") as response:
                async for _ in response.aiter_raw():
                    break
            assert (await client.get(f"{upstream.address}/plain")).content == b"answer"

    asyncio.run(go())
    with module.Client(timeout=60) as client:
        with client.stream("GET", f"{upstream.address}/parts") as response:
            assert next(response.iter_raw())
        assert client.get(f"{upstream.address}/plain").content == b"answer"

    assert set(in_a_request.names()) == {"dependency"}


def test_a_body_is_still_a_generator(module: Any, in_a_request: Running, upstream: Upstream) -> None:
    async def go() -> None:
        async with (
            module.AsyncClient(timeout=60) as client,
            client.stream("GET", f"{upstream.address}/parts") as response,
        ):
            parts = aiter(response.stream)
            assert inspect.isasyncgen(parts)
            assert parts.__qualname__ == "BoundAsyncStream.__aiter__"
            await anext(parts)
            with suppress(LookupError):
                await parts.athrow(LookupError())
            await parts.aclose()

    asyncio.run(go())
    with module.Client(timeout=60) as client, client.stream("GET", f"{upstream.address}/parts") as response:
        parts = iter(response.stream)
        assert inspect.isgenerator(parts)
        assert parts.__qualname__ == "BoundSyncStream.__iter__"
        assert next(parts)
        with pytest.raises(LookupError, match="mine"):
            parts.throw(LookupError("mine"))
        parts.close()

    assert in_a_request.names()


def test_a_transport_gets_the_request_of_the_user(module: Any, in_a_request: Running) -> None:
    sent: list[Any] = []

    def respond(request: Any) -> Any:
        assert request.headers.get_list("traceparent") == [in_a_request.trace()]
        request.headers["X-Signature"] = "signed"
        sent.append(request)
        if request.url.path == "/interrupted":
            raise KeyboardInterrupt
        return module.Response(200, content=request.read())

    async def go() -> Any:
        async with module.AsyncClient(transport=module.MockTransport(respond)) as client:
            return await client.send(module.Request("POST", "http://service/", content=b"onetwo"))

    with module.Client(transport=module.MockTransport(respond)) as client:
        request = module.Request("POST", "http://service/", content=iter([b"one", b"two"]))
        responses = [client.send(request), asyncio.run(go())]
        interrupted = module.Request("GET", "http://service/interrupted")
        with pytest.raises(KeyboardInterrupt):
            client.send(interrupted)

    assert [response.request for response in responses] == sent[:2]
    assert [sent[0] is request, sent[2] is interrupted] == [True, True]
    assert {each.headers["X-Signature"] for each in sent} == {"signed"}
    assert not any("traceparent" in each.headers for each in sent)
    assert request.content == responses[0].content == responses[1].content == b"onetwo"
    assert set(in_a_request.names()) == {"dependency"}


def test_an_authentication_request_is_part_of_the_call(module: Any, in_a_request: Running, upstream: Upstream) -> None:
    class Twice(module.Auth):
        def auth_flow(self, request: Any) -> Any:
            yield module.Request("GET", f"{upstream.address}/plain")
            request.headers["X-Token"] = "secret"
            yield request

    with module.Client(auth=Twice()) as client:
        request = client.build_request("GET", f"{upstream.address}/plain")
        client.send(request)

    assert [len(head.get_all("traceparent", [])) for head in upstream.heads] == [1, 1]
    assert request.headers["X-Token"] == "secret"
    assert set(in_a_request.names()) == {"dependency"}


def test_a_cancelled_call_is_recorded(
    module: Any, in_a_request: Running, upstream: Upstream, until: Callable[..., None]
) -> None:
    async def go() -> None:
        async with module.AsyncClient(timeout=60) as client:
            task = asyncio.create_task(client.get(f"{upstream.address}/held"))
            await asyncio.to_thread(until, lambda: upstream.heads, "the server to be called")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(go())

    assert in_a_request.names()[-1] == "dependency"


@pytest.mark.usefixtures("in_a_request")
def test_responses_can_be_pickled_and_clients_subclassed(module: Any, upstream: Upstream) -> None:
    class Client(module.Client):
        def send(self, request: Any, **options: Any) -> Any:
            request.headers["X-Own"] = "1"
            return super().send(request, **options)

    with Client(timeout=60) as client:
        response = client.get(f"{upstream.address}/plain")

    assert upstream.heads[-1]["X-Own"] == "1"
    assert pickle.loads(pickle.dumps(response)).content == b"answer"  # noqa: S301 - our own bytes
