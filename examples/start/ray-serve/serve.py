"""A deployment of Ray Serve: a FastAPI front, and a model in a process of its own."""

from __future__ import annotations

import time
from typing import Any

from fastapi import FastAPI
from ray import serve

api = FastAPI()


@serve.deployment
class Model:
    """Squares, in 5 ms."""

    def __call__(self, number: int) -> int:
        time.sleep(0.005)
        return number**2


@serve.deployment
@serve.ingress(api)
class Front:
    def __init__(self, model: Any) -> None:
        self.model = model

    @api.get("/squares/{number}")
    async def square(self, number: int) -> int:
        return await self.model.remote(number)


app: Any = Front.bind(Model.bind())
