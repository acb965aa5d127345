"""FastAPI with workers behind queues of several shapes, one for each path."""

from __future__ import annotations

import asyncio
import itertools
import queue
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import torch
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from torch import nn

TOKENS = 12

torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(64, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 10)).eval()


class Item(BaseModel):
    """What is to be classified."""

    features: list[float]


def predict_batch(rows: list[list[float]]) -> list[int]:
    """Classify several rows at once."""
    with torch.inference_mode():
        return model(torch.tensor(rows)).argmax(dim=1).tolist()


@dataclass(eq=False)
class Job:
    """A job with an event."""

    features: list[float]
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    label: int = -1


first: asyncio.Queue[tuple[list[float], asyncio.Future[int]]] = asyncio.Queue()
second: asyncio.Queue[tuple[list[float], asyncio.Future[int]]] = asyncio.Queue()
events: asyncio.Queue[Job] = asyncio.Queue()
by_id: asyncio.Queue[tuple[int, list[float]]] = asyncio.Queue()
pending: dict[int, asyncio.Future[int]] = {}
numbers = itertools.count()
send_jobs, receive_jobs = anyio.create_memory_object_stream[tuple[list[float], Any]](100)
prompts: queue.Queue[tuple[list[float], asyncio.Queue[int | None]]] = queue.Queue()


async def prepare() -> None:
    """Pass jobs on to the next worker."""
    while True:
        features, future = await first.get()
        await second.put(([value * 0.5 for value in features], future))


async def classify_prepared() -> None:
    """Run the jobs of the second queue."""
    loop = asyncio.get_running_loop()
    while True:
        features, future = await second.get()
        (label,) = await loop.run_in_executor(None, predict_batch, [features])
        future.set_result(label)


async def classify_events() -> None:
    """Run jobs that have an event."""
    loop = asyncio.get_running_loop()
    while True:
        job = await events.get()
        (job.label,) = await loop.run_in_executor(None, predict_batch, [job.features])
        job.ready.set()


async def classify_by_id() -> None:
    """Run jobs that have a number."""
    loop = asyncio.get_running_loop()
    while True:
        number, features = await by_id.get()
        (label,) = await loop.run_in_executor(None, predict_batch, [features])
        pending.pop(number).set_result(label)


async def classify_stream() -> None:
    """Run the jobs of a stream of anyio."""
    async for features, reply in receive_jobs:
        (label,) = await anyio.to_thread.run_sync(predict_batch, [features])
        await reply.send(label)


def generate(loop: asyncio.AbstractEventLoop) -> None:
    """Batch continuously: a job joins at any step, and each step has a token for all."""
    live: list[list[Any]] = []
    while True:
        try:
            while True:
                live.append([*prompts.get(block=not live), TOKENS])
        except queue.Empty:
            pass
        labels = predict_batch([features for features, _, _ in live])
        for each, label in zip(live, labels, strict=True):
            each[2] -= 1
            loop.call_soon_threadsafe(each[1].put_nowait, label if each[2] else None)
        live = [each for each in live if each[2]]


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
    """Run the workers beside the application."""
    workers = (prepare, classify_prepared, classify_events, classify_by_id, classify_stream)
    tasks = [asyncio.create_task(worker()) for worker in workers]
    threading.Thread(target=generate, args=(asyncio.get_running_loop(),), daemon=True).start()
    yield
    for task in tasks:
        task.cancel()


app = FastAPI(lifespan=lifespan)


@app.post("/second")
async def in_two_queues(item: Item) -> dict[str, int]:
    """Classify one row in two steps."""
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    await first.put((item.features, future))
    return {"label": await future}


@app.post("/event")
async def with_an_event(item: Item) -> dict[str, int]:
    """Classify one row, whose job has an event."""
    job = Job(item.features)
    await events.put(job)
    await job.ready.wait()
    return {"label": job.label}


@app.post("/by-id")
async def with_a_future_by_id(item: Item) -> dict[str, int]:
    """Classify one row, whose future is found by a number."""
    number = next(numbers)
    pending[number] = asyncio.get_running_loop().create_future()
    future = pending[number]
    await by_id.put((number, item.features))
    return {"label": await future}


@app.post("/memory")
async def in_a_memory_stream(item: Item) -> dict[str, int]:
    """Classify one row in a stream of anyio."""
    send, receive = anyio.create_memory_object_stream[int](1)
    with send, receive:
        await send_jobs.send((item.features, send))
        return {"label": await receive.receive()}


@app.post("/stream")
async def stream(item: Item) -> StreamingResponse:
    """Stream tokens from the engine."""
    tokens: asyncio.Queue[int | None] = asyncio.Queue()

    async def lines() -> AsyncGenerator[str]:
        prompts.put((item.features, tokens))
        while (token := await tokens.get()) is not None:
            yield f"{token}\n"

    return StreamingResponse(lines(), media_type="text/plain")
