"""A service to try the examples with: a model that takes 2 ms, and what is done before it."""

from __future__ import annotations

import asyncio

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

import stagelens

PREPROCESS_SECONDS = 0.001
FORWARD_SECONDS = 0.002


async def predict(_: Request) -> PlainTextResponse:
    with stagelens.stage("preprocess"):
        await asyncio.sleep(PREPROCESS_SECONDS)
    with stagelens.stage("forward"):
        await asyncio.sleep(FORWARD_SECONDS)
    return PlainTextResponse("cat\n")


app = Starlette(routes=[Route("/", predict)])
