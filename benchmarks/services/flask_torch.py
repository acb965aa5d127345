"""Flask around a torch model that sleeps, for gunicorn's threads."""

from __future__ import annotations

from typing import Any

import torch
from flask import Flask, request

from .planted import WARM_UP, Plan


class Sleepy(torch.nn.Module):
    """A model that takes its time."""

    def forward(self, x: torch.Tensor, plan: Plan) -> torch.Tensor:
        """Sleep."""
        plan.spend("forward")
        return x


model = Sleepy()
model(torch.ones(1), Plan(WARM_UP))
app = Flask(__name__)


def prepare(plan: Plan) -> None:
    """Preprocess."""
    plan.spend("preprocess")


def answer() -> dict[str, Any]:
    """Answer one request."""
    plan = Plan(request.get_json())
    prepare(plan)
    model(torch.ones(1), plan)
    return plan.answer()


app.post("/predict", endpoint="predict")(answer)
# The same in a series of its own, for more clients than there are threads.
app.post("/overload", endpoint="overload")(answer)
