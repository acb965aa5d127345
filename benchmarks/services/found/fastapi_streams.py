"""FastAPI whose requests work in tasks of their own: streams of tokens, and several questions at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from sse_starlette import EventSourceResponse

TOKENS = 8
app = FastAPI()


async def next_token(*, long: bool) -> str:
    """Wait as for an engine that is far away."""
    await asyncio.sleep(0.02 if long else 0.002)
    return "token"


async def rank() -> None:
    """Wait for a short time."""
    await asyncio.sleep(0.001)


async def retrieve(*, long: bool) -> None:
    """Wait for documents."""
    await asyncio.sleep(0.16 if long else 0.016)


async def tokens(*, long: bool) -> AsyncGenerator[bytes]:
    """Yield the events of a stream."""
    for _ in range(TOKENS):
        yield f"data: {await next_token(long=long)}\n\n".encode()


async def events(*, long: bool) -> AsyncGenerator[dict[str, str]]:
    """Yield what sse-starlette formats."""
    for _ in range(TOKENS):
        yield {"data": await next_token(long=long)}


@app.get("/stream")
async def stream(*, long: bool) -> StreamingResponse:
    """Stream tokens, as in the documentation of FastAPI."""
    return StreamingResponse(tokens(long=long), media_type="text/event-stream")


@app.get("/events")
async def send_events(*, long: bool) -> EventSourceResponse:
    """Stream tokens, as in the documentation of sse-starlette."""
    return EventSourceResponse(events(long=long))


@app.get("/group")
async def group(*, long: bool) -> str:
    """Ask two services at once."""
    async with asyncio.TaskGroup() as both:
        both.create_task(retrieve(long=long))
        both.create_task(rank())
    return "ranked"


@app.get("/gather")
async def gather(*, long: bool) -> str:
    """Ask two services at once."""
    await asyncio.gather(retrieve(long=long), rank())
    return "ranked"
