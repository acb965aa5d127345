"""Real servers with a batcher, instrumented, that report to the sink."""

from __future__ import annotations

import json
import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.instrumentors.conftest import Service
from tests.support.real_servers import installed, is_up

HERE = Path(__file__).parent
STAGE = "stagelens.stage."


class Server:
    def __init__(self, url: str, sink: Any) -> None:
        self.url = url
        self.sink = sink
        self._sent = 0

    def send_requests(self, path: str, bodies: Sequence[Any]) -> tuple[list[Any], list[dict[str, Any]]]:
        """Send *bodies* concurrently; return the responses, None for a failure, and the request span of each.

        Each goes in a trace of its own, by which its spans are found.
        """
        return self._send("POST ", lambda body, trace: self._post(path, body, trace), bodies)

    def infer(self, numbers: Sequence[int]) -> tuple[list[int | None], list[dict[str, Any]]]:
        """Send each of *numbers* to the model `doubling` in the V2 protocol; return the results and the request spans."""
        tensors = [{"name": "x", "shape": [1, 1], "datatype": "INT64", "data": [number]} for number in numbers]
        responses, spans = self.send_requests("/v2/models/doubling/infer", [{"inputs": [tensor]} for tensor in tensors])
        return [response and response["outputs"][0]["data"][0] for response in responses], spans

    def infer_over_grpc(self, port: int, numbers: Sequence[int]) -> tuple[list[int | None], list[dict[str, Any]]]:
        # Not installed for the first tier, which imports this file as well.
        from tritonclient.grpc import service_pb2  # noqa: PLC0415
        from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub  # noqa: PLC0415

        # Its names are known at run time only.
        messages: Any = service_pb2

        def call(number: int, trace: str) -> int | None:
            tensor = messages.ModelInferRequest.InferInputTensor(name="x", datatype="INT64", shape=[1, 1])
            tensor.contents.int64_contents.append(number)
            request = messages.ModelInferRequest(model_name="doubling", inputs=[tensor])
            try:
                response = stub.ModelInfer(
                    request, 90, metadata=[("traceparent", _traceparent(trace))], wait_for_ready=True
                )
            except grpc.RpcError:
                return None
            return response.outputs[0].contents.int64_contents[0]

        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub: Any = GRPCInferenceServiceStub(channel)
            return self._send("inference.GRPCInferenceService/ModelInfer", call, numbers)

    def _send(
        self, name: str, call: Callable[[Any, str], Any], bodies: Sequence[Any]
    ) -> tuple[list[Any], list[dict[str, Any]]]:
        traces = [f"{number:032x}" for number in range(self._sent + 1, self._sent + 1 + len(bodies))]
        self._sent += len(bodies)
        with ThreadPoolExecutor(len(bodies)) as clients:
            responses = list(clients.map(lambda sent: call(*sent), zip(bodies, traces, strict=True)))
        found: dict[str, dict[str, Any]] = {}
        deadline = time.monotonic() + 90
        while not found.keys() >= set(traces):
            assert time.monotonic() < deadline, f"no spans of {set(traces) - found.keys()}"
            threading.Event().wait(0.1)
            found = {span["traceId"]: span for span in self.requests() if span["name"].startswith(name)}
        return responses, [found[trace] for trace in traces]

    def requests(self) -> list[dict[str, Any]]:
        return [span for span in self.sink.spans() if "stagelens.kept.because" in span["attributes"]]

    @staticmethod
    def own_times(span: dict[str, Any]) -> dict[str, int]:
        """Return the own time of each stage of a request, which add up to its time."""
        stages = {key.removeprefix(STAGE): spent for key, spent in span["attributes"].items() if key.startswith(STAGE)}

        assert sum(stages.values()) == int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"])

        own = {key: spent for key, spent in stages.items() if spent}

        # All time outside the user's methods is that of the server.
        assert "overhead" not in own

        return own

    def batch(self, span: dict[str, Any], number: int) -> dict[str, int]:
        """Return the same of a request that was in one batch, a request inside it named for its numbers: in no other's."""
        stages = self.own_times(span)
        inside = [inner["name"].split() for inner in self.sink.spans() if inner["parentSpanId"] == span["spanId"]]
        (numbers,) = [[int(each) for each in name[1:]] for name in inside if name[0] == "batch"]

        assert number in numbers
        assert span["attributes"]["inference.batch.size"] == len(numbers)
        assert stages.keys() >= {"queue", "forward", "framework"}

        return stages

    def _post(self, path: str, body: Any, trace: str) -> Any:
        headers = {"Content-Type": "application/json", "traceparent": _traceparent(trace)}
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=90) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            error.close()
            return None


def _traceparent(trace: str) -> str:
    return f"00-{trace}-{'00' * 7}01-01"


@contextmanager
def running(part: str, sink: Any, arguments: Sequence[str], ready: str, **variables: str) -> Generator[Server]:
    """Give what `stagelens run -- python *arguments*` serves with *part*; skipped where *part* is not, never in CI."""
    path = os.pathsep.join(filter(None, (str(installed(part)), str(HERE), os.environ.get("PYTHONPATH"))))
    service = Service(*arguments, env=sink.environment(PYTHONPATH=path, **variables), cwd=HERE)
    url = f"http://127.0.0.1:{service.port}"
    try:
        while not is_up(url + ready, 5):
            assert service.process.poll() is None, service.log()
            threading.Event().wait(0.1)
        yield Server(url, sink)
    finally:
        service.stop()


@pytest.fixture
def serving(sink: Any) -> Generator[Callable[..., Server]]:
    with ExitStack() as stack:
        yield lambda part, arguments, ready, **variables: stack.enter_context(
            running(part, sink, arguments, ready, **variables)
        )
