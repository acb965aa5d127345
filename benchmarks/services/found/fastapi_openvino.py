"""FastAPI around a compiled model of OpenVINO."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import openvino as ov
import openvino.opset13 as ops
from fastapi import FastAPI
from pydantic import BaseModel

SIZES = (64, 4096, 4096, 10)
rng = np.random.default_rng(0)
data = ops.parameter([-1, SIZES[0]], np.float32, name="data")
node = data
for width, following in pairwise(SIZES):
    node = ops.relu(ops.matmul(node, rng.normal(size=(width, following)).astype(np.float32), False, False))
compiled = ov.Core().compile_model(ov.Model([node], [data], "classifier"), "CPU", {"INFERENCE_NUM_THREADS": 1})
app = FastAPI()


class Item(BaseModel):
    """What is to be classified."""

    features: list[float]


@app.post("/predict")
def predict(item: Item) -> dict[str, int]:
    """Classify one row."""
    result = compiled(np.array([item.features], np.float32))[compiled.output(0)]
    return {"label": int(result.argmax())}
