"""httpx and httpx2: bodies, streams and transports."""

from __future__ import annotations

import asyncio
import inspect
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


@pytest.fixture(params=[httpx, httpx2], ids=["httpx", "httpx2"])
def module(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.mark.parametrize("is_async", [True, False])
def test_a_stream_is_read_after_the_call(
    module: Any, in_a_request: Running, upstream: Upstream, monkeypatch: pytest.MonkeyPatch, *, is_async: bool
) -> None:
    monkeypatch.setattr(client_common, "MAX_GAP_NS", 0)
    url = f"{upstream.address}/parts"

    async def go() -> list[int]:
        async with module.AsyncClient(timeout=60) as client, client.stream("GET", url) as response:
            return [records.clock() async for _ in response.aiter_bytes()]

    if is_async:
        held = asyncio.run(go())
    else:
        with module.Client(timeout=60) as client, client.stream("GET", url) as response:
            assert len(in_a_request.stages()) == 1
            held = [records.clock() for _ in response.iter_raw()]

    call, *reads = in_a_request.stages()
    assert len(held) >= 1
    assert reads
    assert all(call[2] <= started for _, started, _ in reads)
    assert not any(started <= moment <= ended for moment in held for _, started, ended in reads)


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
