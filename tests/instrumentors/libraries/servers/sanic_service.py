"""Service of Sanic that returns its process id."""

# pyright: reportMissingImports=false, reportUntypedFunctionDecorator=false
from __future__ import annotations

import asyncio
import os
from typing import Any

import gate
from sanic import Sanic, response

app = Sanic("tests")


@app.get("/")
async def root(_: Any) -> Any:
    return response.json({"pid": os.getpid()})


@app.get("/wait")
async def wait(_: Any) -> Any:
    gate.enter()
    while not gate.is_open():  # noqa: ASYNC110 - the event is in another process
        await asyncio.sleep(0.01)
    return response.json({})
