"""An arq worker that classifies rows with torch, in a thread pool of its own."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from arq.connections import RedisSettings
from torch import nn

torch.set_num_threads(1)


def make_model() -> nn.Module:
    """Return a model that was never trained."""
    return nn.Sequential(nn.Linear(64, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 10)).eval()


def predict(model: nn.Module, features: list[float]) -> int:
    """Classify one row."""
    with torch.inference_mode():
        return int(model(torch.tensor([features])).argmax())


async def startup(ctx: dict[str, Any]) -> None:
    """Load the model."""
    ctx["model"], ctx["pool"] = make_model(), ThreadPoolExecutor(2)


async def classify(ctx: dict[str, Any], features: list[float]) -> int:
    """Classify one row."""
    return await asyncio.get_running_loop().run_in_executor(ctx["pool"], predict, ctx["model"], features)


class WorkerSettings:
    """What `arq` runs."""

    functions = (classify,)
    on_startup = startup
    redis_settings = RedisSettings.from_dsn(os.environ["REDIS_URL"])
    poll_delay = 0.02
