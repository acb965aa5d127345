"""Import of ONNX Runtime profiles: a real one, and constructed GPU events."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import magika
import numpy as np
import onnxruntime

if TYPE_CHECKING:
    from tests.collector.imports.conftest import Taking

MODEL = next((Path(magika.__file__).parent / "models").rglob("*.onnx"))


def test_a_real_profile_has_its_runs_as_forward_and_its_session_as_load(taking: Taking, tmp_path: Path) -> None:
    options: Any = onnxruntime.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "ort")
    session: Any = onnxruntime.InferenceSession(str(MODEL), options)
    for _ in range(3):
        session.run(None, {session.get_inputs()[0].name: np.zeros((1, 2048), np.int32)})
    file = Path(session.end_profiling())
    durations = [load["dur"] for load in json.loads(file.read_text()) if load["name"] == "model_run"]

    imported = taking(file)

    assert (imported.requests, imported.broken_count, imported.services) == (4, 0, {"onnxruntime": 4})
    start, *runs = taking.stages()
    assert (start[0], list(start[1])) == ("session start", ["load"])
    assert runs == [("model_run", {"forward": duration}) for duration in durations]
    assert time.time() - 60 < imported.last <= time.time()


RUN = {"cat": "Session", "pid": 1, "tid": 2, "ph": "X", "name": "model_run", "ts": 100, "dur": 1000, "args": {}}


def test_device_copies_are_not_forward(taking: Taking) -> None:
    def node(operator: str, start: int, duration: int) -> dict[str, Any]:
        args = {"op_name": operator, "provider": "CUDAExecutionProvider"}
        return {"cat": "Node", "pid": 1, "tid": 2, "ph": "X", "name": "n", "ts": start, "dur": duration, "args": args}

    nodes = [node("MemcpyFromHost", 150, 50), node("MatMul", 200, 700), node("MemcpyToHost", 950, 30)]

    assert taking([*nodes, RUN]).requests == 1
    assert taking.stages() == [("model_run", {"h2d": 50, "forward": 920, "d2h": 30})]


def test_an_incomplete_profile_is_imported_up_to_its_end(taking: Taking) -> None:
    events = json.dumps([RUN, {"ph": "X", "name": "model_run", "ts": "?"}, RUN | {"ts": 2000}])
    imported = taking(events[:-1] + ',\n{"cat"')

    assert (imported.requests, imported.broken_count) == (2, 2)
    assert imported.broken[0].startswith("event 2: ")
