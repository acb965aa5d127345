"""tritonclient against a real Triton server: every way to call it, and every way for a call to end."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from opentelemetry.instrumentation.aiohttp_client import AioHttpClientInstrumentor
from opentelemetry.instrumentation.grpc import GrpcInstrumentorClient
from tritonclient.utils import InferenceServerException, shared_memory

from stagelens.instrumentors import recorder, records
from stagelens.instrumentors.bootstrap import LIBRARIES
from stagelens.instrumentors.instrumentor import Instrumentor
from stagelens.instrumentors.libraries.tritonclient import TritonClientInstrumentor, calls

if TYPE_CHECKING:
    from tests.instrumentors.conftest import Finished
    from tests.support.triton.triton_server import TraceSink, TritonServer

http: Any = tritonclient.http
grpc: Any = tritonclient.grpc
http_aio: Any = tritonclient.http.aio
grpc_aio: Any = tritonclient.grpc.aio

INSTRUMENTOR = TritonClientInstrumentor
pytestmark = [pytest.mark.stacks, pytest.mark.usefixtures("instrumented")]


Call = Callable[..., Any]

# See TraceSink.trace.
ATTEMPTS = 5


def blocking(library: Any) -> Call:
    def call(triton: TritonServer, model: str, inputs: Any, **options: Any) -> Any:
        with library.InferenceServerClient(address(triton, library)) as client:
            return client.infer(model, inputs(library), **options).as_numpy("OUT")

    return call


def awaited(tasks: Any, library: Any) -> Call:
    def call(triton: TritonServer, model: str, inputs: Any, **options: Any) -> Any:
        async def infer() -> Any:
            async with tasks.InferenceServerClient(address(triton, library)) as client:
                return (await client.infer(model, inputs(library), **options)).as_numpy("OUT")

        return asyncio.run(infer())

    return call


def address(triton: TritonServer, library: Any) -> str:
    return triton.http if library is http else triton.grpc


by_http, by_grpc = blocking(http), blocking(grpc)
by_http_aio, by_grpc_aio = awaited(http_aio, http), awaited(grpc_aio, grpc)


def by_http_async_infer(triton: TritonServer, model: str, inputs: Any, **options: Any) -> Any:
    with http.InferenceServerClient(triton.http) as client:
        return client.async_infer(model, inputs(http), **options).get_result().as_numpy("OUT")


def by_grpc_async_infer(triton: TritonServer, model: str, inputs: Any, **options: Any) -> Any:
    done = threading.Event()
    outcome: list[Any] = []

    def callback(result: Any, error: Any) -> None:
        outcome.extend((error, None if error else result.as_numpy("OUT")))
        done.set()

    with grpc.InferenceServerClient(triton.grpc) as client:
        client.async_infer(model, inputs(grpc), callback, **options)
        assert done.wait(60)
    if outcome[0] is not None:
        raise outcome[0]
    return outcome[1]


WAYS: dict[str, Call] = {
    "http": by_http,
    "grpc": by_grpc,
    "http.aio": by_http_aio,
    "grpc.aio": by_grpc_aio,
    "http async_infer": by_http_async_infer,
    "grpc async_infer": by_grpc_async_infer,
}
every_way = pytest.mark.parametrize("call", WAYS.values(), ids=WAYS.keys())


@every_way
def test_a_call_is_serialize_around_one_wait(
    call: Call, triton: TritonServer, in_a_request: Finished, inputs: Any
) -> None:
    np.testing.assert_array_equal(call(triton, "plain", inputs, model_version="1"), [2, 4, 6])

    stages = [stage for stage, _, _ in in_a_request.marks() if not stage.startswith("@")]

    assert [stage for stage in stages if stage != "network"] == ["serialize"] * 3
    assert stages.count("network") == (2 if call is by_http_async_infer else 1)
    facts = in_a_request.facts()
    assert facts["@model"] == "plain"
    assert facts["@model_version"] == "1"
    assert "@failed" not in facts
    late = facts["@late"]
    (sent, arrived), built = late._call, [end for stage, _, end in in_a_request.marks() if stage == "serialize"][1]
    assert sent == built < arrived


@every_way
def test_the_server_continues_our_trace(
    call: Call, triton: TritonServer, traces: TraceSink, in_a_request: Finished, inputs: Any
) -> None:
    spans: list[dict[str, Any]] = []
    for _ in range(ATTEMPTS):
        headers = {"x-mine": "1"}
        call(triton, "plain", inputs, headers=headers)
        assert "traceparent" not in headers
        trace_id, span_id = in_a_request.facts()["@trace"]
        # All calls of the request are in one trace: what came late of one may come with the next.
        spans = traces.trace(trace_id, 3)
        if len(spans) >= 3:
            assert {span["parentSpanId"] for span in spans if span["name"] == "InferRequest"} == {span_id}
            break

    assert {span["name"] for span in spans} == {"InferRequest", "plain", "compute"}


@every_way
def test_a_traceparent_of_the_user_is_preserved(
    call: Call, triton: TritonServer, traces: TraceSink, in_a_request: Finished, inputs: Any
) -> None:
    spans: list[dict[str, Any]] = []
    for attempt in range(ATTEMPTS):
        trace_id = f"{id(call):016x}{attempt + 1:016x}"
        headers = {"traceparent": f"00-{trace_id}-00f067aa0ba902b7-01"}
        call(triton, "plain", inputs, headers=headers)
        spans = traces.trace(trace_id, 3)

        assert headers["traceparent"] == f"00-{trace_id}-00f067aa0ba902b7-01"
        if len(spans) == 3:
            break

    assert len(spans) == 3
    assert "@trace" not in in_a_request.facts()


def test_headers_can_be_positional(triton: TritonServer, in_a_request: Finished, inputs: Any) -> None:
    headers: dict[str, str] = {}
    with http.InferenceServerClient(triton.http) as client:
        handle = client.async_infer("plain", inputs(http), "", None, "", 0, False, False, 0, None, headers)
        assert handle.get_result().as_numpy("OUT")[0] == 2

    assert headers == {}
    assert "@trace" in in_a_request.facts()


@pytest.mark.usefixtures("in_a_request")
@pytest.mark.parametrize("library", [http, grpc], ids=["http", "grpc"])
def test_the_plugin_of_the_user_stays_registered(library: Any, triton: TritonServer, inputs: Any) -> None:
    seen: list[dict[str, str]] = []

    class Plugin(tritonclient.http.InferenceServerClientPlugin):
        def __call__(self, request: Any) -> None:
            request.headers["x-mine"] = "1"
            seen.append(dict(request.headers))

    with library.InferenceServerClient(address(triton, library)) as client:
        client.register_plugin(Plugin())
        client.infer("plain", inputs(library))

    assert {"traceparent", "x-mine"} <= seen[-1].keys()


@every_way
@pytest.mark.parametrize("model", ["failing", "missing"])
def test_an_error_of_the_server_is_counted_and_raised(
    call: Call, model: str, triton: TritonServer, in_a_request: Finished, inputs: Any
) -> None:
    with pytest.raises(InferenceServerException):
        call(triton, model, inputs)

    assert "network" in in_a_request.stages()
    assert in_a_request.facts()["@failed"] == "triton:error"
    assert "@late" not in in_a_request.facts()


@pytest.mark.parametrize("call", [by_http, by_grpc, by_http_aio, by_grpc_aio])
def test_a_full_queue_is_a_rejected_call(call: Call, triton: TritonServer, finished: Any, inputs: Any) -> None:
    together = threading.Barrier(6)

    def batched(client: Any) -> list[Any]:
        # Its client is made by then, which takes longer than the server works for one.
        together.wait(60)
        return inputs(client, batch=True)

    def request(_: int) -> str:
        opened = recorder.begin()
        assert opened is not None
        marks, token = opened
        try:
            call(triton, "limited", batched)
        except InferenceServerException:
            pass
        finally:
            recorder.end(token)
        finished.append((marks, marks[1], 0, "", "", 0, "internal"))
        return marks[marks.index("@failed") + 1] if "@failed" in marks else ""

    with ThreadPoolExecutor(6) as pool:
        outcomes = list(pool.map(request, range(6)))

    assert set(outcomes) == {"", "triton:rejected"}


def test_a_call_that_takes_too_long_is_a_timeout(triton: TritonServer, in_a_request: Finished, inputs: Any) -> None:
    with triton.hanging():
        with http.InferenceServerClient(triton.http, network_timeout=0.01) as client, pytest.raises(TimeoutError):
            client.infer("plain", inputs(http))
        with grpc.InferenceServerClient(triton.grpc) as client, pytest.raises(InferenceServerException):
            client.infer("plain", inputs(grpc), client_timeout=0.01)
    with http.InferenceServerClient(triton.http) as client, triton.hanging():
        handle = client.async_infer("plain", inputs(http))
        with pytest.raises(InferenceServerException, match="failed to obtain"):
            handle.get_result(timeout=0.001)

    failed = [value for key, value, _ in in_a_request.marks() if key == "@failed"]
    assert failed == ["triton:timeout"] * 3


def test_an_abandoned_call_is_cancelled(triton: TritonServer, in_a_request: Finished, inputs: Any, until: Any) -> None:
    async def give_up(client: Any, library: Any) -> None:
        task = asyncio.create_task(client.infer("plain", inputs(library)))
        await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await client.close()

    async def both() -> None:
        await give_up(http_aio.InferenceServerClient(triton.http), http)
        await give_up(grpc_aio.InferenceServerClient(triton.grpc), grpc)

    errors: list[Any] = []
    with triton.hanging():
        with grpc.InferenceServerClient(triton.grpc) as client:
            call = client.async_infer("plain", inputs(grpc), lambda result, error: errors.append((result, error)))
            call.cancel()
            until(lambda: errors, "the callback")
        asyncio.run(both())

    failed = [value for key, value, _ in in_a_request.marks() if key == "@failed"]
    assert failed == ["triton:cancelled"] * 3


def test_no_server_is_an_error(in_a_request: Finished, inputs: Any) -> None:
    with http.InferenceServerClient("127.0.0.1:1") as client:
        with pytest.raises(ConnectionRefusedError):
            client.infer("plain", inputs(http))
        with pytest.raises(ConnectionRefusedError):
            client.async_infer("plain", inputs(http)).get_result()

    failed = [value for key, value, _ in in_a_request.marks() if key == "@failed"]
    assert failed == ["triton:error"] * 2


@every_way
def test_client_side_refusals_are_unchanged(
    call: Call, triton: TritonServer, in_a_request: Finished, inputs: Any
) -> None:
    # The HTTP client for asyncio has forgotten to import what it wants to raise.
    with pytest.raises((InferenceServerException, NameError), match=r"must be a string|raise_error"):
        call(triton, "plain", inputs, model_version=1)
    with pytest.raises((TypeError, ValueError, AttributeError)):
        call(triton, "plain", inputs, headers=7)

    failed = [value for key, value, _ in in_a_request.marks() if key == "@failed"]
    assert failed == ["triton:error"] * 2
    assert records.current.get() is not None


@every_way
def test_a_request_at_its_record_limit_is_served(
    call: Call, triton: TritonServer, in_a_request: Finished, inputs: Any
) -> None:
    marks: Any = records.current.get()
    marks.extend(("forward", 0, 0) * (records.MAX_MARKS // 3))
    before = len(in_a_request.marks())

    np.testing.assert_array_equal(call(triton, "plain", inputs), [2, 4, 6])
    # The ids of the trace that the server is told of.
    assert len(in_a_request.marks()) <= before + 1


def test_an_unknown_client_is_recorded_as_network(reported: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(calls, "Server")
    http.InferenceServerClient("127.0.0.1:1").close()

    assert reported == {"recording the server of a client of tritonclient"}


def unregistered(client: Any) -> bool:
    """Return whether the server has released the shared memory, which takes a moment after its response."""
    try:
        client.unregister_system_shared_memory("mine")
    except InferenceServerException:
        return False
    return True


@pytest.mark.parametrize("library", [http, grpc], ids=["http", "grpc"])
def test_copies_of_shared_memory_are_serialize(
    library: Any, triton: TritonServer, in_a_request: Finished, until: Any
) -> None:
    values = np.array([1, 2, 3], np.float32)
    # There is one space of names for all processes.
    key = f"/stagelens_{os.getpid()}_{library.__name__}"
    region = shared_memory.create_shared_memory_region("mine", key, values.nbytes * 2)
    with library.InferenceServerClient(address(triton, library)) as client:
        client.register_system_shared_memory("mine", key, values.nbytes * 2)
        try:
            shared_memory.set_shared_memory_region(region, [values])
            tensor = library.InferInput("IN", [3], "FP32")
            tensor.set_shared_memory("mine", values.nbytes)
            output = library.InferRequestedOutput("OUT")
            output.set_shared_memory("mine", values.nbytes, values.nbytes)
            client.infer("plain", [tensor], outputs=[output])
            copied = shared_memory.get_contents_as_numpy(region, np.float32, [3], values.nbytes).copy()
        finally:
            until(lambda: unregistered(client), "the server to let go of the region")
            shared_memory.destroy_shared_memory_region(region)

    np.testing.assert_array_equal(copied, 2 * values)
    assert in_a_request.stages() == ["serialize", "serialize", "network", "serialize"]


@every_way
def test_an_agent_failure_is_logged_once_and_the_result_is_returned(  # noqa: PLR0917 - fixtures
    call: Call,
    triton: TritonServer,
    in_a_request: Finished,
    inputs: Any,
    reported: set[str],
    make_fail: Callable[[Any, str], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    make_fail(calls, "traceparent")
    make_fail(calls, "Averaged")
    with caplog.at_level(logging.WARNING, "stagelens"):
        for _ in range(2):
            np.testing.assert_array_equal(call(triton, "plain", inputs), [2, 4, 6])

    assert "network" in in_a_request.stages()
    assert len([record for record in caplog.records if record.name == "stagelens"]) == len(reported) == 2
    assert records.current.get() is not None


def test_no_payload_and_no_header_is_recorded(triton: TritonServer, in_a_request: Finished, inputs: Any) -> None:
    with http.InferenceServerClient(triton.http) as client:
        client.infer(
            "plain",
            inputs(http, 31337.0),
            request_id="secret-id",
            headers={"authorization": "secret"},
            query_params={"q": "secret"},
            parameters={"p": "secret"},
        )

    assert [mark for mark in in_a_request.marks() if "secret" in repr(mark) or "31337" in repr(mark)] == []


@pytest.mark.parametrize("ours_first", [True, False])
def test_opentelemetry_grpc_and_aiohttp_cause_no_duplicates(
    triton: TritonServer,
    in_a_request: Finished,
    instrumented: Instrumentor,
    inputs: Any,
    exported: Any,
    *,
    ours_first: bool,
) -> None:
    theirs: list[Any] = [GrpcInstrumentorClient(), AioHttpClientInstrumentor()]
    if not ours_first:
        instrumented.uninstrument()
    for their in theirs:
        their.instrument()
    instrumented.instrument()
    try:
        by_grpc(triton, "plain", inputs)
        late = in_a_request.facts()["@late"]
        late.ready()
        assert late.ready()
        by_http_aio(triton, "plain", inputs)
    finally:
        for their in theirs:
            their.uninstrument()

    assert [span.name for span in exported.get_finished_spans()] == [
        "/inference.GRPCInferenceService/ModelInfer",
        "POST",
    ]
    assert in_a_request.stages() == ["serialize", "serialize", "network", "serialize"] * 2


@every_way
def test_stagelens_client_modules_do_not_count_the_wait_twice(
    call: Call, triton: TritonServer, in_a_request: Finished, inputs: Any
) -> None:
    ours: list[Instrumentor] = [
        library.load()() for library in LIBRARIES if library.trigger in ("aiohttp", "grpc", "threading", "urllib3")
    ]
    assert len(ours) >= 3
    for our in ours:
        our.instrument()
    try:
        call(triton, "plain", inputs)
    finally:
        for our in ours:
            our.uninstrument()

    assert set(in_a_request.stages()) == {"serialize", "network"}


def test_exiting_in_another_context_does_nothing(in_a_request: Finished) -> None:
    marks: Any = records.current.get()
    tokens = contextvars.copy_context().run(calls.enter, calls.Call(marks, None, "m", ""))
    calls.leave(tokens)

    assert records.current.get() is marks
    assert in_a_request.stages() == []
