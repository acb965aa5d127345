"""Service that returns its process id and the running threads."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import time
from typing import Any

import gate
from fastapi import FastAPI

app = FastAPI()
served = itertools.count(1)


@app.get("/")
async def root() -> dict[str, Any]:
    return {"pid": os.getpid(), "n": next(served), "threads": [thread.name for thread in threading.enumerate()]}


@app.get("/wait")
async def wait() -> dict[str, Any]:
    gate.enter()
    while not gate.is_open():  # noqa: ASYNC110 - the event is in another process
        await asyncio.sleep(0.01)
    return {}


@app.get("/block")
async def block() -> dict[str, Any]:
    """Respond when the gate is open, and hold the event loop until then."""
    gate.enter()
    while not gate.is_open():
        time.sleep(0.01)  # noqa: ASYNC251 - as users do
    return {}


@app.get("/block/{seconds}")
async def block_for(seconds: int) -> dict[str, Any]:
    time.sleep(seconds)  # noqa: ASYNC251 - the mistake that the test is about
    return {}
