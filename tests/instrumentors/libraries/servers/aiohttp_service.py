"""Service that returns its process id, standalone or inside gunicorn."""

from __future__ import annotations

import os
import sys

from aiohttp import web


async def root(_: web.Request) -> web.Response:
    """Return the process id."""
    return web.json_response({"pid": os.getpid()})


app = web.Application()
app.router.add_get("/", root)

if __name__ == "__main__":
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]))
