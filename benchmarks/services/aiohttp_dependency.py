"""aiohttp that asks another service by httpx or by aiohttp, and then waits for one of too few threads."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor

import httpx
from aiohttp import ClientSession, web

from .planted import Plan

UPSTREAM = f"http://127.0.0.1:{os.environ.get('UPSTREAM_PORT', '0')}/sleep"
# Fewer than there are clients.
THREADS = 3

pool = ThreadPoolExecutor(THREADS)
asynchronous_client = web.AppKey("asynchronous_client", httpx.AsyncClient)
session = web.AppKey("session", ClientSession)


def rank(plan: Plan) -> None:
    """Be the model."""
    plan.spend("forward")


def job(plan: Plan, submitted: int) -> None:
    """Run in a thread, and say how long it was waited for."""
    plan.add("queue", time.perf_counter_ns() - submitted)
    rank(plan)


async def by_httpx(request: web.Request) -> web.Response:
    """Ask by httpx."""
    plan = Plan(await request.json())
    with plan.measured("dependency"):
        await request.app[asynchronous_client].get(UPSTREAM, params=_parameters(plan))
    return await _in_pool(plan)


async def by_aiohttp(request: web.Request) -> web.Response:
    """Ask by aiohttp."""
    plan = Plan(await request.json())
    with plan.measured("dependency"):
        async with request.app[session].get(UPSTREAM, params=_parameters(plan)) as response:
            await response.read()
    return await _in_pool(plan)


def _parameters(plan: Plan) -> dict[str, str]:
    return {"head": str(plan.asked["head"]), "body": str(plan.asked["body"])}


async def _in_pool(plan: Plan) -> web.Response:
    await asyncio.get_running_loop().run_in_executor(pool, job, plan, time.perf_counter_ns())
    return web.json_response(plan.answer())


async def _clients(app: web.Application) -> AsyncGenerator[None]:
    async with httpx.AsyncClient(timeout=60) as client, ClientSession() as opened:
        app[asynchronous_client], app[session] = client, opened
        yield


def make(_: list[str]) -> web.Application:
    """Return the application, as `python -m aiohttp.web` asks for it."""
    app = web.Application()
    app.cleanup_ctx.append(_clients)
    app.router.add_post("/httpx", by_httpx)
    app.router.add_post("/aiohttp", by_aiohttp)
    return app
