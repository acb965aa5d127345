"""FastAPI around a torch model that sleeps, between two functions that sleep: as coroutines, and in the thread pool."""

from __future__ import annotations

from typing import Any

import torch
from fastapi import FastAPI, Request

from .planted import ARRIVED, WARM_UP, Plan, noting_arrival


class Sleepy(torch.nn.Module):
    """A model that takes its time."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor, plan: Plan) -> torch.Tensor:
        """Sleep."""
        plan.spend("forward")
        return x


model = Sleepy()
model(torch.ones(1), Plan(WARM_UP))


async def prepare_async(plan: Plan) -> None:
    """Preprocess as a coroutine."""
    await plan.wait("preprocess")


async def finish_async(plan: Plan) -> None:
    """Postprocess as a coroutine."""
    await plan.wait("postprocess")


def prepare(plan: Plan) -> None:
    """Preprocess."""
    plan.spend("preprocess")


def finish(plan: Plan) -> None:
    """Postprocess."""
    plan.spend("postprocess")


async def asynchronous(request: Request, asked: dict[str, float]) -> dict[str, Any]:
    """Answer as a coroutine; the model holds the loop, as models do."""
    plan = Plan(asked, request.scope["state"][ARRIVED])
    await prepare_async(plan)
    model(torch.ones(1), plan)
    await finish_async(plan)
    return plan.answer()


def threaded(request: Request, asked: dict[str, float]) -> dict[str, Any]:
    """Answer from a thread of the pool."""
    plan = Plan(asked, request.scope["state"][ARRIVED])
    prepare(plan)
    model(torch.ones(1), plan)
    finish(plan)
    return plan.answer()


def forward_only(request: Request, asked: dict[str, float]) -> dict[str, Any]:
    """Run nothing but the model."""
    plan = Plan(asked, request.scope["state"][ARRIVED])
    model(torch.ones(1), plan)
    return plan.answer()


async def forward_only_async(request: Request, asked: dict[str, float]) -> dict[str, Any]:
    """Run nothing but the model, in the loop."""
    plan = Plan(asked, request.scope["state"][ARRIVED])
    model(torch.ones(1), plan)
    return plan.answer()


api = FastAPI()
api.post("/async")(asynchronous)
api.post("/def")(threaded)
# FastAPI checks the answer of a plain `def` in the pool too: what has a model of its answer waits there twice.
api.post("/def/unchecked", response_model=None)(threaded)
# Each duration is a route, so that each is a series.
for duration in ("1ms", "2ms", "5ms", "20ms", "100ms"):
    api.post(f"/def/{duration}")(forward_only)
    api.post(f"/async/{duration}")(forward_only_async)
app = noting_arrival(api)
