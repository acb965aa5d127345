"""FastAPI with a pipelined batcher of its own: each batch is a task, so the next one is formed while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TypeAlias

import torch
from fastapi import FastAPI
from pydantic import BaseModel
from torch import nn

MAX_BATCH, MAX_WAIT, AT_ONCE = 4, 0.002, 2
Waiting: TypeAlias = tuple[list[float], asyncio.Future[int]]

torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(64, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 10)).eval()
queue: asyncio.Queue[Waiting] = asyncio.Queue()
capacity = asyncio.Semaphore(AT_ONCE)
running: set[asyncio.Task[None]] = set()


class Item(BaseModel):
    """What is to be classified."""

    features: list[float]


def predict_batch(rows: list[list[float]]) -> list[int]:
    """Classify several rows at once."""
    with torch.inference_mode():
        return model(torch.tensor(rows)).argmax(dim=1).tolist()


async def run_batch(batch: list[Waiting]) -> None:
    """Run one batch."""
    try:
        labels = await asyncio.to_thread(predict_batch, [features for features, _ in batch])
    finally:
        capacity.release()
    for (_, future), label in zip(batch, labels, strict=True):
        future.set_result(label)


async def form_batches() -> None:
    """Form batches, and start each as a task."""
    while True:
        batch = [await queue.get()]
        await asyncio.sleep(MAX_WAIT)
        while len(batch) < MAX_BATCH and not queue.empty():
            batch.append(queue.get_nowait())
        await capacity.acquire()
        task = asyncio.create_task(run_batch(batch))
        running.add(task)
        task.add_done_callback(running.discard)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
    """Run the batcher beside the application."""
    task = asyncio.create_task(form_batches())
    yield
    task.cancel()


app = FastAPI(lifespan=lifespan)


@app.post("/predict")
async def predict(item: Item) -> dict[str, int]:
    """Classify one row."""
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    queue.put_nowait((item.features, future))
    return {"label": await future}
