"""Flask with a batcher of its own: a `queue.Queue`, a worker thread, and a future for each request."""

from __future__ import annotations

import queue
import threading
import time
from concurrent.futures import Future
from typing import Any, TypeAlias

import torch
from flask import Flask, request
from torch import nn

MAX_BATCH, MAX_WAIT = 8, 0.005
Waiting: TypeAlias = tuple[list[float], "Future[int]"]

torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(64, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 10)).eval()
waiting: queue.Queue[Waiting] = queue.Queue()


def take_batch() -> list[Waiting]:
    """Return the next batch."""
    batch = [waiting.get()]
    deadline = time.monotonic() + MAX_WAIT
    while len(batch) < MAX_BATCH:
        try:
            batch.append(waiting.get(timeout=max(0, deadline - time.monotonic())))
        except queue.Empty:
            break
    return batch


def work() -> None:
    """Run batches."""
    while True:
        batch = take_batch()
        with torch.inference_mode():
            labels = model(torch.tensor([features for features, _ in batch])).argmax(dim=1).tolist()
        for (_, future), label in zip(batch, labels, strict=True):
            future.set_result(label)


threading.Thread(target=work, daemon=True).start()
app = Flask(__name__)


@app.post("/predict")
def predict() -> dict[str, Any]:
    """Classify one row."""
    future: Future[int] = Future()
    waiting.put((request.get_json()["features"], future))
    return {"label": future.result(timeout=30)}
