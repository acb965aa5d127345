"""Decoupled models over streams of tritonclient's gRPC clients: time to the first part, gaps, and their calls."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Callable, Generator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from stagelens.instrumentors import recorder, records
from stagelens.instrumentors.instrumentor import Instrumentor
from stagelens.instrumentors.libraries import tritonclient as triton_client
from stagelens.instrumentors.libraries.tritonclient import TritonClientInstrumentor

if TYPE_CHECKING:
    from tests.instrumentors.conftest import Finished
    from tests.support.triton.triton_server import TritonServer

grpc: Any = tritonclient.grpc
grpc_aio: Any = tritonclient.grpc.aio
messages: Any = service_pb2

INSTRUMENTOR = TritonClientInstrumentor
pytestmark = [pytest.mark.stacks, pytest.mark.usefixtures("instrumented")]


@pytest.fixture
def client(triton: TritonServer) -> Generator[Any]:
    with grpc.InferenceServerClient(triton.grpc) as client:
        yield client


class RecordingCallback:
    """A callback that keeps what it is given, and reads it."""

    def __init__(self) -> None:
        self.parts: queue.Queue[tuple[Any, Any, Any]] = queue.Queue()

    def __call__(self, result: Any, error: Any) -> None:
        value = None if result is None else result.as_numpy("OUT")
        self.parts.put((value, error, records.current.get()))

    def take(self, count: int) -> list[tuple[Any, Any, Any]]:
        return [self.parts.get(timeout=30) for _ in range(count)]


def check(recorded: Finished, parts: int) -> None:
    """Assert that one wait, its first part and its longest gap are recorded."""
    marks = recorded.marks()
    (_, started, arrived) = next(mark for mark in marks if mark[0] == "network")
    (_, first, definition) = next(mark for mark in marks if mark[0] == "@first_token")
    gaps = [mark[1] for mark in marks if mark[0] == "@gap"]
    model = next(mark[1] for mark in marks if mark[0] == "@model")

    assert definition == "triton_first_response"
    assert model == "stream"
    assert started < first <= arrived
    assert len(gaps) == (1 if parts > 1 else 0)
    assert all(0 < gap <= arrived - first for gap in gaps)


def test_a_single_complete_response_is_not_a_stream(client: Any, in_a_request: Finished, inputs: Any) -> None:
    callback = RecordingCallback()
    client.start_stream(callback)
    client.async_stream_infer("plain", inputs(grpc))
    callback.take(1)
    client.stop_stream()

    assert "network" in in_a_request.stages()
    assert in_a_request.facts().keys() == {"@trace", "@model", "@late"}


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_a_stream_of_one_request_is_one_wait(parts: int, client: Any, in_a_request: Finished, inputs: Any) -> None:
    callback = RecordingCallback()
    client.start_stream(callback)
    client.async_stream_infer("stream", inputs(grpc, parts), request_id="a", enable_empty_final_response=True)
    taken = callback.take(parts + 1)
    client.stop_stream()

    assert [value[0] for value, _, _ in taken[:-1]] == list(range(parts))
    assert all(marks is records.current.get() for _, _, marks in taken)
    assert in_a_request.stages() == ["serialize", "network", "serialize", *["serialize"] * (parts + 1)]
    assert "@late" in in_a_request.facts()
    check(in_a_request, parts)


def test_a_stream_that_does_not_mark_its_end_ends_when_it_is_stopped(
    client: Any, in_a_request: Finished, inputs: Any
) -> None:
    callback = RecordingCallback()
    client.start_stream(callback)
    client.async_stream_infer("stream", inputs(grpc, 3))
    callback.take(3)

    assert "@late" not in in_a_request.facts()
    client.stop_stream()

    assert in_a_request.facts()["@late"]._call[1] == max(
        end for stage, _, end in in_a_request.marks() if stage == "network"
    )
    check(in_a_request, 3)


def _request(client: Any, inputs: Any, request_id: str, go: threading.Barrier) -> list[Any]:
    opened = recorder.begin()
    assert opened is not None
    marks, token = opened
    tensors = inputs(grpc, 3)
    go.wait(60)
    client.async_stream_infer("stream", tensors, request_id=request_id, enable_empty_final_response=True)
    go.wait(60)
    recorder.end(token)
    return marks


@pytest.mark.parametrize("named", [True, False])
def test_requests_that_share_a_stream_never_mix(triton: TritonServer, client: Any, inputs: Any, *, named: bool) -> None:
    callback = RecordingCallback()
    assert client.is_server_live()
    client.start_stream(callback)
    go = threading.Barrier(2)
    requests: list[list[Any]] = []

    def run(request_id: str) -> None:
        requests.append(_request(client, inputs, request_id, go))

    threads = [threading.Thread(target=run, args=(name if named else "",)) for name in "ab"]
    # No part comes before both have asked.
    with triton.hanging():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    taken = callback.take(8)
    client.stop_stream()

    for marks in requests:
        assert [any(part[2] is marks for part in taken), "@first_token" in marks] == [named, named]


def test_threads_that_share_a_stream_exclude_each_other_but_not_during_a_callback() -> None:
    """Without a client and a server: calls change under the lock of the stream, and the callback may use the stream."""
    excluded: list[bool] = []
    marks: records.Marks = [records.OPEN, 0, 0]

    def is_locked() -> bool:
        return stream._lock._is_owned()

    class Watched(triton_client.StreamedCall):
        def part(self, response: Any) -> bool:
            excluded.append(is_locked())
            return super().part(response)

        def end(self, error: BaseException | None, status: str = "") -> None:
            excluded.append(is_locked())
            super().end(error, status)

    def respond(request_id: str, *, last: bool) -> None:
        response = messages.ModelInferResponse(id=request_id)
        response.parameters[triton_client.FINAL].bool_param = last
        stream.on_response(SimpleNamespace(get_response=lambda: response), None)

    stream: Any = triton_client.CallStream(lambda **_: excluded.append(not is_locked()))
    for request_id in ("a", "b", "b", "c"):
        stream.add(Watched(marks, object(), "m", ""), request_id)
    respond("a", last=False)
    respond("a", last=True)
    stream.close()

    # The end of the first "b", two parts with their callbacks, and the ends of all.
    assert excluded == [True] * 8


def test_a_refused_call_is_no_longer_pending(client: Any, in_a_request: Finished, inputs: Any) -> None:
    callback = RecordingCallback()
    client.start_stream(callback)
    with pytest.raises(InferenceServerException, match="already running"):
        client.start_stream(RecordingCallback())
    with pytest.raises(InferenceServerException, match="must be a string"):
        client.async_stream_infer("stream", inputs(grpc, 1), model_version=1, request_id="refused")
    client.async_stream_infer("failing", inputs(grpc), request_id="sent")
    callback.take(1)
    client.stop_stream()

    failed = [value for key, value, _ in in_a_request.marks() if key == "@failed"]
    assert failed == ["triton:error", "triton:error"]


def test_stream_errors_are_counted(client: Any, in_a_request: Finished, inputs: Any) -> None:
    callback = RecordingCallback()
    client.start_stream(callback)
    client.async_stream_infer("failing", inputs(grpc))
    assert "planted" in str(callback.take(1)[0][1])
    client.async_stream_infer("stream", inputs(grpc, 50))
    callback.take(1)
    client.stop_stream(cancel_requests=True)
    with pytest.raises(InferenceServerException, match="not available"):
        client.async_stream_infer("stream", inputs(grpc, 1))

    failed = [value for key, value, _ in in_a_request.marks() if key == "@failed"]
    assert failed == ["triton:error", "triton:cancelled"]


def test_an_agent_failure_drops_no_response_part(
    client: Any,
    in_a_request: Finished,
    inputs: Any,
    reported: set[str],
    make_fail: Callable[[Any, str], None],
) -> None:
    make_fail(triton_client, "is_last_response")
    callback = RecordingCallback()
    client.start_stream(callback)
    client.async_stream_infer("stream", inputs(grpc, 2))
    taken = callback.take(2)
    client.stop_stream()

    assert [value[0] for value, _, _ in taken] == [0, 1]
    assert reported == {"timing a part of a stream of tritonclient"}
    assert "network" in in_a_request.stages()


@pytest.mark.usefixtures("in_a_request")
def test_calls_that_never_end_are_dropped(client: Any, inputs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_client, "MAX_CALLS", 2)
    callback = RecordingCallback()
    client.start_stream(callback)
    for request_id in "abc":
        client.async_stream_infer("stream", inputs(grpc, 1), request_id=request_id)
    callback.take(3)

    assert list(client._stagelens_stream._calls) == ["b", "c"]
    client.async_stream_infer("stream", inputs(grpc, 1), request_id="c")
    callback.take(1)
    assert list(client._stagelens_stream._calls) == ["b", "c"]


def test_a_stream_in_a_request_at_its_record_limit_is_read(client: Any, in_a_request: Finished, inputs: Any) -> None:
    marks: Any = records.current.get()
    callback = RecordingCallback()
    client.start_stream(callback)
    marks.extend((*("forward", 0, 0) * (records.MAX_MARKS // 3), records.FULL, 0, 0))
    before = len(in_a_request.marks())
    client.async_stream_infer("stream", inputs(grpc, 3), enable_empty_final_response=True)
    callback.take(4)

    assert len(in_a_request.marks()) == before


def test_a_stream_survives_compaction_of_its_request(in_a_request: Finished) -> None:
    marks = records.current.get()
    assert marks is not None
    # The Triton server is not needed for that.
    call = triton_client.StreamedCall(marks, object(), "model", "")
    while len(marks) < records.MAX_MARKS:
        marks.extend(("own", len(marks), len(marks)))
    lasting = triton_client.MutableMark(marks, "@gap", 1, 0)
    assert records.has_capacity(marks)
    shortened = len(marks)
    lasting.grow_start(2)
    call.end(TimeoutError())
    waits = [mark for mark in in_a_request.marks() if mark[0] == "network"]

    assert shortened < records.MAX_MARKS // 4
    assert [wait[2] > wait[1] for wait in waits] == [True]
    assert in_a_request.facts()["@failed"] == "triton:timeout"


async def _one(inputs: Any, parts: int, **more: Any) -> AsyncIterator[dict[str, Any]]:
    yield {"model_name": "stream", "inputs": inputs(grpc, parts), **more}


def test_a_stream_of_asyncio_is_one_wait(triton: TritonServer, in_a_request: Finished, inputs: Any) -> None:
    async def call() -> list[float]:
        async with grpc_aio.InferenceServerClient(triton.grpc) as client:
            parts = client.stream_infer(_one(inputs, 4, request_id="a"))
            return [result.as_numpy("OUT")[0] async for result, error in parts if error is None]

    assert asyncio.run(call()) == [0, 1, 2, 3]
    assert [stage for stage in in_a_request.stages() if stage != "serialize"] == ["network"]
    assert "@late" in in_a_request.facts()
    check(in_a_request, 4)


def test_a_stream_of_asyncio_that_is_cancelled_is_counted(
    triton: TritonServer, in_a_request: Finished, inputs: Any
) -> None:
    async def call() -> bool:
        async with grpc_aio.InferenceServerClient(triton.grpc) as client:
            parts = client.stream_infer(_one(inputs, 50))
            await anext(parts)
            return parts.cancel()

    assert asyncio.run(call()) is True
    assert in_a_request.facts()["@failed"] == "triton:cancelled"


def test_an_invalid_asyncio_input_is_refused_by_the_client(
    triton: TritonServer, in_a_request: Finished, instrumented: Instrumentor, inputs: Any
) -> None:
    async def wrong() -> AsyncIterator[Any]:
        yield inputs

    async def call() -> None:
        async with grpc_aio.InferenceServerClient(triton.grpc) as client:
            async for _ in client.stream_infer(wrong()):
                pass

    def complaint() -> str:
        try:
            asyncio.run(call())
        except BaseException as error:  # noqa: BLE001 - whatever it is
            return type(error).__name__
        return ""

    ours = complaint()
    instrumented.uninstrument()

    assert ours == complaint() != ""
    assert "@failed" in in_a_request.facts()


def test_an_asyncio_stream_accepts_every_client_input(
    triton: TritonServer, in_a_request: Finished, inputs: Any, monkeypatch: pytest.MonkeyPatch, reported: set[str]
) -> None:
    failed = asyncio.Event()
    results: list[tuple[Any, Any]] = []

    async def two() -> AsyncIterator[dict[str, Any]]:
        yield {"model_name": "failing", "inputs": inputs(grpc)}
        # The server works for both at once.
        await failed.wait()
        yield {"model_name": "plain", "inputs": inputs(grpc)}

    async def call() -> None:
        async with grpc_aio.InferenceServerClient(triton.grpc) as client:
            async for each in client.stream_infer(two()):
                results.append(each)
                failed.set()
            with monkeypatch.context() as patched:
                patched.setattr(triton_client, "is_last_response", None)
                results.extend([each async for each in client.stream_infer(_one(inputs, 1))])
            with pytest.raises((TypeError, grpc_aio.InferenceServerException, asyncio.CancelledError)):
                await anext(client.stream_infer(7))
            with pytest.raises((TypeError, AttributeError)):
                client.stream_infer(_one(inputs, 1), headers=7)

    asyncio.run(call())

    assert [error is None for _, error in results] == [False, True, True]
    assert reported == {"timing a part of a stream of tritonclient"}
    facts = [key for key, _, _ in in_a_request.marks()]
    assert facts.count("@failed") == 2
    # Two calls in one: no average is theirs.
    assert facts.count("@late") == 1
