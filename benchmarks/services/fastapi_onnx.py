"""FastAPI around real models in ONNX Runtime, magika and silero-vad; what is planted is what each `run` took."""

from __future__ import annotations

from importlib import metadata
from typing import Any

import numpy as np
import onnxruntime
from fastapi import FastAPI, Request

from .planted import ARRIVED, Plan, noting_arrival


def _session(distribution: str, path: str) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    file = metadata.distribution(distribution).locate_file(path)
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


magika = _session("magika", "magika/models/standard_v3_3/model.onnx")
silero = _session("silero-vad", "silero_vad/data/silero_vad.onnx")
rng = np.random.default_rng(0)
FILES = rng.integers(0, 256, (64, 2048), np.int32)
# 32 ms of sound with the end of the 32 ms before.
SOUND = rng.normal(0, 0.1, (1, 576)).astype(np.float32)
RATE = np.array(16000, np.int64)


def classify(plan: Plan) -> None:
    """Run magika once, on as many files as asked for."""
    files = FILES[: max(1, min(int(plan.asked["files"]), len(FILES)))]
    with plan.measured("forward"):
        magika.run(None, {"bytes": files})


def listen(plan: Plan) -> None:
    """Run silero-vad as often as asked for: each run is a fraction of a millisecond."""
    state = np.zeros((2, 1, 128), np.float32)
    for _ in range(int(plan.asked["chunks"])):
        feed = {"input": SOUND, "state": state, "sr": RATE}
        with plan.measured("forward"):
            _, state = silero.run(None, feed)


classify(Plan({"files": 1}))
listen(Plan({"chunks": 1}))


def prepare(plan: Plan) -> None:
    """Preprocess."""
    plan.spend("preprocess")


def threaded(request: Request, asked: dict[str, float]) -> dict[str, Any]:
    """Answer from a thread of the pool."""
    plan = Plan(asked, request.scope["state"][ARRIVED])
    prepare(plan)
    classify(plan)
    return plan.answer()


async def asynchronous(request: Request, asked: dict[str, float]) -> dict[str, Any]:
    """Answer in the loop, one request after the other."""
    plan = Plan(asked, request.scope["state"][ARRIVED])
    classify(plan)
    return plan.answer()


async def many_runs(request: Request, asked: dict[str, float]) -> dict[str, Any]:
    """Answer in the loop, by many short runs."""
    plan = Plan(asked, request.scope["state"][ARRIVED])
    listen(plan)
    return plan.answer()


api = FastAPI()
api.post("/def")(threaded)
api.post("/async")(asynchronous)
api.post("/runs")(many_runs)
app = noting_arrival(api)
