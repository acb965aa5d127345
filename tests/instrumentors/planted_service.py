"""Service whose stages sleep for known times and which returns their measured times.

The machine may be busy, so a sleep lasts longer than planned: what was planted is what the service measured itself, right
around the sleep, with the clock of the wall.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator, MutableMapping
from contextlib import contextmanager
from typing import Any

import torch
from fastapi import FastAPI, Request
from pydantic import BaseModel

import stagelens

PREPROCESS, FORWARD, POSTPROCESS = 0.020, 0.030, 0.010


class Planted(BaseModel):
    """Expected times of a request: name, arrival, start of the endpoint, and length of each stage, in nanoseconds."""

    name: str
    arrived: int
    began: int
    stages: dict[str, int]


class Sleepy(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(FORWARD)
        return x


class Body(BaseModel):
    text: str


@contextmanager
def measured(into: dict[str, int], stage: str) -> Generator[None]:
    start_ns = time.perf_counter_ns()
    yield
    into[stage] = into.get(stage, 0) + time.perf_counter_ns() - start_ns


api = FastAPI()
model = Sleepy()
# A first call is a cold start.
model(torch.ones(1))


@api.post("/async/{name}")
async def asynchronous(request: Request, name: str, body: Body) -> Planted:
    began, stages = time.time_ns(), {}
    with measured(stages, "preprocess"), stagelens.stage("preprocess"):
        await asyncio.sleep(PREPROCESS * len(body.text) / 1000)
    with measured(stages, "forward"):
        model(torch.ones(1))
    with measured(stages, "postprocess"), stagelens.stage("postprocess"):
        await asyncio.sleep(POSTPROCESS)
    return Planted(name=name, arrived=request.scope["state"]["arrived"], began=began, stages=stages)


@api.post("/sync/{name}")
def synchronous(request: Request, name: str, body: Body) -> Planted:
    """Take known times in a thread of the pool; the model runs inside preprocess and is not part of it."""
    began, stages = time.time_ns(), {}
    with stagelens.stage("preprocess"):
        with measured(stages, "preprocess"):
            time.sleep(PREPROCESS * len(body.text) / 1000)
        with measured(stages, "forward"):
            model(torch.ones(1))
    with measured(stages, "postprocess"), stagelens.stage("postprocess"):
        time.sleep(POSTPROCESS)
    return Planted(name=name, arrived=request.scope["state"]["arrived"], began=began, stages=stages)


async def app(
    scope: MutableMapping[str, Any], receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
) -> None:
    if scope["type"] == "http":
        scope["state"] = {**scope.get("state", {}), "arrived": time.time_ns()}
    await api(scope, receive, send)
