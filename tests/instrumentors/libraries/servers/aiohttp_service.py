"""Service that returns its process id, standalone or inside gunicorn."""

from __future__ import annotations

import asyncio
import os
import sys

import gate
from aiohttp import web


async def root(_: web.Request) -> web.Response:
    return web.json_response({"pid": os.getpid()})


async def wait(_: web.Request) -> web.Response:
    gate.enter()
    while not gate.is_open():  # noqa: ASYNC110 - the event is in another process
        await asyncio.sleep(0.01)
    return web.json_response({})


app = web.Application()
app.router.add_get("/", root)
app.router.add_get("/wait", wait)

if __name__ == "__main__":
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]))
