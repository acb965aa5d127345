"""Flask with a lock around its model, and with an engine that has a queue of tokens for each request."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Iterator
from typing import Any

import torch
from flask import Flask, Response, request
from torch import nn

TOKENS = 12

torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(64, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 10)).eval()
model_lock = threading.Lock()
# The lowest number first; the counter keeps the order of the rest.
jobs: queue.PriorityQueue[tuple[int, int, list[float], queue.Queue[int]]] = queue.PriorityQueue()
prompts: queue.Queue[tuple[list[float], queue.Queue[int | None]]] = queue.Queue()
numbers = itertools.count()
app = Flask(__name__)


def predict_batch(rows: list[list[float]]) -> list[int]:
    """Classify several rows at once."""
    with torch.inference_mode():
        return model(torch.tensor(rows)).argmax(dim=1).tolist()


def work() -> None:
    """Run the jobs by their priority."""
    while True:
        *_, features, reply = jobs.get()
        reply.put(predict_batch([features])[0])


def generate() -> None:
    """Generate the tokens of one request after the other."""
    while True:
        features, tokens = prompts.get()
        for _ in range(TOKENS):
            tokens.put(predict_batch([features])[0])
        tokens.put(None)


threading.Thread(target=work, daemon=True).start()
threading.Thread(target=generate, daemon=True).start()


@app.post("/lock")
def with_a_lock() -> dict[str, Any]:
    """Classify one row at a time."""
    features = request.get_json()["features"]
    with model_lock:
        return {"label": predict_batch([features])[0]}


@app.post("/priority")
def by_priority() -> dict[str, Any]:
    """Classify one row by its priority."""
    reply: queue.Queue[int] = queue.Queue()
    jobs.put((len(request.get_json()) % 2, next(numbers), request.get_json()["features"], reply))
    return {"label": reply.get()}


@app.post("/stream")
def stream() -> Response:
    """Stream tokens from the engine."""
    tokens: queue.Queue[int | None] = queue.Queue()
    prompts.put((request.get_json()["features"], tokens))

    def lines() -> Iterator[str]:
        while (token := tokens.get()) is not None:
            yield f"{token}\n"

    return Response(lines(), mimetype="text/plain")
