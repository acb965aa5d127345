"""What other services ask: sleeps as long as it is told, then answers. It runs beside them and is not timed.

python -m services.upstream PORT
"""

from __future__ import annotations

import asyncio
import sys

from aiohttp import web


async def sleep(request: web.Request) -> web.StreamResponse:
    """Send the head after a time, and the body after another."""
    await asyncio.sleep(float(request.query["head"]))
    response = web.StreamResponse()
    await response.prepare(request)
    await asyncio.sleep(float(request.query["body"]))
    await response.write(b"done")
    await response.write_eof()
    return response


if __name__ == "__main__":
    app = web.Application()
    app.router.add_get("/sleep", sleep)
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=None, access_log=None)
