"""FastAPI around a small network in JAX."""

from __future__ import annotations

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
from fastapi import FastAPI
from pydantic import BaseModel

SIZES = (64, 4096, 4096, 10)
weights = [jax.random.normal(jax.random.key(0), shape) for shape in pairwise(SIZES)]
app = FastAPI()


@jax.jit
def logits(weights: list[jax.Array], rows: jax.Array) -> jax.Array:
    """Return the logits of *rows*."""
    for weight in weights[:-1]:
        rows = jax.nn.relu(rows @ weight)
    return rows @ weights[-1]


class Item(BaseModel):
    """What is to be classified."""

    features: list[float]


@app.post("/predict")
def predict(item: Item) -> dict[str, int]:
    """Classify one row."""
    scores = logits(weights, jnp.array([item.features]))
    return {"label": int(np.asarray(scores).argmax())}
