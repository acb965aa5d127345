"""Writes captures/*.json: what a real server exports as OTLP/JSON for one call of each kind, with a trace id we chose.

Run it after `make triton`: .venv/bin/python -m tests.support.triton.capture
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.support.triton.triton_server import TraceSink, TritonServer

grpc: Any = tritonclient.grpc
http: Any = tritonclient.http

CAPTURES = Path(__file__).parent / "captures"
PARENT = "00f067aa0ba902b7"
# Longer than the server keeps spans back.
QUIET_SECONDS = 1.0


def main() -> None:
    CAPTURES.mkdir(exist_ok=True)
    with TraceSink() as sink, TritonServer(sink.url) as server:
        for number, (name, call) in enumerate(KINDS.items(), 1):
            sink.clear()
            call(server, {"traceparent": f"00-{number:032x}-{PARENT}-01"})
            time.sleep(QUIET_SECONDS)
            exported = {
                "resourceSpans": [resourcespan for body in sink.bodies() for resourcespan in body["resourceSpans"]]
            }
            (CAPTURES / f"{name}.json").write_text(json.dumps(exported, indent=1) + "\n")


def single(server: TritonServer, headers: dict[str, str]) -> None:
    with http.InferenceServerClient(server.http) as client:
        client.infer("plain", inputs(http, [1, 2, 3]), headers=headers)


def batched(server: TritonServer, headers: dict[str, str]) -> None:
    with grpc.InferenceServerClient(server.grpc) as client:
        done = threading.Semaphore(0)
        for number in range(3):
            client.async_infer("batched", inputs(grpc, [[number]]), lambda **_: done.release(), headers=headers)
        for _ in range(3):
            done.acquire(timeout=30)


def ensemble(server: TritonServer, headers: dict[str, str]) -> None:
    with grpc.InferenceServerClient(server.grpc) as client:
        client.infer("twice", inputs(grpc, [1, 2, 3]), headers=headers)


def decoupled(server: TritonServer, headers: dict[str, str]) -> None:
    with grpc.InferenceServerClient(server.grpc) as client:
        client.start_stream(lambda **_: None, headers=headers)
        client.async_stream_infer("stream", inputs(grpc, [3]), enable_empty_final_response=True)
        client.stop_stream()


def failed(server: TritonServer, headers: dict[str, str]) -> None:
    with http.InferenceServerClient(server.http) as client:
        try:
            client.infer("failing", inputs(http, [1]), headers=headers)
        except InferenceServerException:
            return
    message = "the failing model has answered"
    raise AssertionError(message)


def inputs(client: Any, values: Any) -> list[Any]:
    array = np.array(values, np.float32)
    tensor = client.InferInput("IN", list(array.shape), "FP32")
    return [tensor.set_data_from_numpy(array)]


KINDS: dict[str, Callable[[TritonServer, dict[str, str]], None]] = {
    "single": single,
    "batched": batched,
    "ensemble": ensemble,
    "decoupled": decoupled,
    "failed": failed,
}

if __name__ == "__main__":
    main()
