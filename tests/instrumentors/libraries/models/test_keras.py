"""Keras without TensorFlow: training, loading, and its backends, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[4] / ".venv" / "models"
pytestmark = pytest.mark.stacks
PROGRAM = """
import sys, stagelens
from stagelens.instrumentors import recorder
stagelens.instrument()
recorder.background.wake_at = sys.maxsize
import keras, numpy as np
x = np.ones((64, 8), np.float32)
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(2)], name="network")
model.compile(loss="mse")
model.fit(x, x[:, :2], verbose=0)
model.predict(x, verbose=0)
model(x)
if keras.backend.backend() == "jax":
    sys.modules["jax"].jit(model)(x)
model.save("model.keras")
with stagelens.request("load"):
    keras.models.load_model("model.keras")
print(*(record[3] for record in recorder.pending))
print(*dict.fromkeys(stage for stage in recorder.pending[-1][0][3::3] if stage[0] != "@"))
"""


@pytest.mark.parametrize(
    ("backend", "requests"),
    [
        ("jax", ["network", "network", "load"]),
        # The layers of this backend are modules of PyTorch.
        ("torch", ["network", "Sequential", "load"]),
    ],
)
def test_a_script_counts_predictions_and_no_training(tmp_path: Path, backend: str, requests: list[str]) -> None:
    if not (FOLDER / "keras").is_dir():
        pytest.skip("make models: keras is not installed")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(FOLDER), "KERAS_BACKEND": backend},
    )
    assert done.returncode == 0, done.stderr

    *_, names, stages = done.stdout.splitlines()
    assert names.split() == requests
    assert "load" in stages.split()
