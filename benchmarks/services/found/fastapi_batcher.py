"""FastAPI with a batcher of its own: an `asyncio.Queue`, one task that forms batches, and `run_in_executor`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TypeAlias

import torch
from fastapi import FastAPI
from pydantic import BaseModel
from torch import nn

MAX_BATCH, MAX_WAIT = 8, 0.005
Waiting: TypeAlias = tuple[list[float], asyncio.Future[int]]

torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(64, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 10)).eval()
queue: asyncio.Queue[Waiting] = asyncio.Queue()


class Item(BaseModel):
    """What is to be classified."""

    features: list[float]


def predict_batch(rows: list[list[float]]) -> list[int]:
    """Classify several rows at once."""
    with torch.inference_mode():
        return model(torch.tensor(rows)).argmax(dim=1).tolist()


async def process_queue() -> None:
    """Form batches and run them."""
    loop = asyncio.get_running_loop()
    while True:
        batch = [await queue.get()]
        deadline = loop.time() + MAX_WAIT
        while len(batch) < MAX_BATCH:
            try:
                batch.append(await asyncio.wait_for(queue.get(), deadline - loop.time()))
            except TimeoutError:
                break
        labels = await loop.run_in_executor(None, predict_batch, [features for features, _ in batch])
        for (_, future), label in zip(batch, labels, strict=True):
            future.set_result(label)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
    """Run the batcher beside the application."""
    task = asyncio.create_task(process_queue())
    yield
    task.cancel()


app = FastAPI(lifespan=lifespan)


@app.post("/predict")
async def predict(item: Item) -> dict[str, int]:
    """Classify one row."""
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    await queue.put((item.features, future))
    return {"label": await future}
