"""The models that run in between; a real one is on one thread, so that its time is the thread's."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np

Model = Callable[[], object]

# Frames of sound that silero-vad processes in about 1 ms.
FRAMES, FRAME = 18, 576


def onnx() -> Model:
    import onnxruntime  # noqa: PLC0415

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    found = find_spec("silero_vad")
    if found is None or found.origin is None:
        msg = "silero-vad is not installed: pip install -e '.[dev]'"
        raise SystemExit(msg)
    path = Path(found.origin).parent / "data" / "silero_vad_16k_sequence.onnx"
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    state = np.zeros((1, 1, 128), np.float32)
    feed = {"input": np.zeros((FRAMES, FRAME), np.float32), "h": state, "c": state}
    return lambda: session.run(None, feed)


MODELS: dict[str, Callable[[], Model]] = {"onnx 1 ms": onnx, "none": lambda: lambda: None}
