"""FastAPI around a small network of Keras."""

from __future__ import annotations

import keras
import numpy as np
from fastapi import FastAPI
from pydantic import BaseModel

model = keras.Sequential(
    [keras.Input((64,)), *(keras.layers.Dense(2048, activation="relu") for _ in range(3)), keras.layers.Dense(10)]
)
model.predict(np.zeros((1, 64)), verbose=0)
app = FastAPI()


class Item(BaseModel):
    """What is to be classified."""

    features: list[float]


@app.post("/predict")
def predict(item: Item) -> dict[str, int]:
    """Classify one row."""
    logits = model.predict(np.array([item.features]), verbose=0)
    return {"label": int(logits.argmax())}
