"""Service of aiohttp; arguments after the port are ignored."""

from __future__ import annotations

import sys

import planted
from aiohttp import web
from planted import secret

planted.log_ours()


async def item(request: web.Request) -> web.Response:
    received = {"name": request.match_info["name"], "json": await request.json(), "headers": str(request.headers)}
    return web.json_response(received, headers={"X-Answer": secret("answerheader")})


async def form(request: web.Request) -> web.Response:
    return web.Response(text=str(await request.post()))


async def stream(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(status=503, reason=secret("reason"), headers={"X-Answer": secret("answerheader")})
    await response.prepare(request)
    for _ in range(2):
        await response.write(secret("chunk").encode())
    return response


async def fails(_: web.Request) -> web.Response:
    raise RuntimeError(secret("exception"))


async def instrumented(_: web.Request) -> web.Response:
    return web.json_response(planted.instrumented())


app = web.Application()
app.add_routes(
    [
        web.post("/items/{name}", item),
        web.post("/forms", form),
        web.get("/streams", stream),
        web.get("/fails", fails),
        web.get("/instrumented", instrumented),
    ]
)
if __name__ == "__main__":
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=lambda *_: None)
