"""The models that run in between: two sizes of a real one, and a deep net of tiny layers, the worst case for a patch.

Each on one thread, so that its time is the thread's.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np

Model = Callable[[], object]

# Of silero-vad, in its wheel: how many frames of sound take about 1 and 5 ms.
SMALL_FRAMES, LARGE_FRAMES = 18, 72
FRAME = 576
LAYERS, WIDTH = 100, 64


def onnx(frames: int) -> Model:
    """Return the voice detector on *frames* of silence, by ONNX Runtime."""
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
    feed = {"input": np.zeros((frames, FRAME), np.float32), "h": state, "c": state}
    return lambda: session.run(None, feed)


def torch() -> Model:
    """Return a net of a hundred modules, by PyTorch."""
    import torch  # noqa: PLC0415

    torch.set_num_threads(1)
    layers = [torch.nn.Linear(WIDTH, WIDTH) if i % 2 == 0 else torch.nn.ReLU() for i in range(LAYERS - 1)]
    net, x = torch.nn.Sequential(*layers).eval(), torch.zeros(1, WIDTH)

    def run() -> object:
        with torch.inference_mode():
            return net(x).tolist()

    return run


MODELS: dict[str, Callable[[], Model]] = {
    "onnx 1 ms": lambda: onnx(SMALL_FRAMES),
    "onnx 5 ms": lambda: onnx(LARGE_FRAMES),
    "torch, 100 modules": torch,
    "none": lambda: lambda: None,
}
