"""FastAPI around a torch model that sleeps, between two functions that sleep, which measure their times themselves.

A sleep on a busy machine is longer than planned. The truth is therefore not the plan, but what the service measured; nothing here knows
of Stagelens.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

import torch
from fastapi import FastAPI, Request

Message: TypeAlias = MutableMapping[str, Any]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

ARRIVED = "arrived"


class Plan:
    """Seconds that each step shall take, and the nanoseconds that it took."""

    def __init__(self, seconds: dict[str, float], arrived: int) -> None:
        self.seconds, self.arrived = seconds, arrived
        self.spent: dict[str, int] = {}

    def sleep(self, stage: str) -> None:
        started = time.perf_counter_ns()
        time.sleep(self.seconds[stage])
        self.spent[stage] = time.perf_counter_ns() - started

    async def sleep_async(self, stage: str) -> None:
        started = time.perf_counter_ns()
        await asyncio.sleep(self.seconds[stage])
        self.spent[stage] = time.perf_counter_ns() - started

    def response(self) -> dict[str, Any]:
        return {"arrived": self.arrived, "spent": self.spent}


class Sleepy(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor, plan: Plan) -> torch.Tensor:
        plan.sleep("forward")
        return x


model = Sleepy()
model(torch.ones(1), Plan({"forward": 0.001}, 0))


async def prepare_async(plan: Plan) -> None:
    await plan.sleep_async("preprocess")


async def finish_async(plan: Plan) -> None:
    await plan.sleep_async("postprocess")


def prepare(plan: Plan) -> None:
    plan.sleep("preprocess")


def finish(plan: Plan) -> None:
    plan.sleep("postprocess")


async def asynchronous(request: Request, seconds: dict[str, float]) -> dict[str, Any]:
    """The model holds the event loop, as models do."""
    plan = Plan(seconds, request.scope["state"][ARRIVED])
    await prepare_async(plan)
    model(torch.ones(1), plan)
    await finish_async(plan)
    return plan.response()


def threaded(request: Request, seconds: dict[str, float]) -> dict[str, Any]:
    plan = Plan(seconds, request.scope["state"][ARRIVED])
    prepare(plan)
    model(torch.ones(1), plan)
    finish(plan)
    return plan.response()


def only_model(request: Request, seconds: dict[str, float]) -> dict[str, Any]:
    plan = Plan(seconds, request.scope["state"][ARRIVED])
    model(torch.ones(1), plan)
    return plan.response()


api = FastAPI()
api.post("/async")(asynchronous)
# FastAPI checks the response of a plain `def` in the pool, too, where it would wait twice.
for path in ("/def", "/overload"):
    api.post(path, response_model=None)(threaded)
for milliseconds in (1, 20):
    api.post(f"/{milliseconds}ms")(only_model)


async def app(scope: Message, receive: Callable[[], Awaitable[Message]], send: Send) -> None:
    """Note, outside of all that is timed, when a request arrives and when its response is sent."""

    async def send_with_time(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), (b"x-answered", str(time.time_ns()).encode())]
        await send(message)

    if scope["type"] == "http":
        scope["state"] = {**scope.get("state", {}), ARRIVED: time.time_ns()}
    await api(scope, receive, send_with_time)
