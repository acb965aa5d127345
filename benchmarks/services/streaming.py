"""FastAPI that answers bit by bit, with pauses: the last line says what they were."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Generator, Sequence
from itertools import pairwise

from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

from .planted import ARRIVED, SENT, Plan, noting_arrival

CHUNKS, CHUNK = 6, b"so many words\n"


def last_line(plan: Plan, sent: Sequence[int]) -> bytes:
    """Say what the stream was like whose chunks were *sent* then."""
    plan.add("first_token", sent[0] - plan.arrived)
    plan.add("gap", max(later - earlier for earlier, later in pairwise(sent)))
    return json.dumps(plan.answer()).encode()


async def think(plan: Plan) -> None:
    """Be the model, as a coroutine."""
    await plan.wait("decode")


def think_in_thread(plan: Plan) -> None:
    """Be the model."""
    plan.spend("decode")


async def asynchronous(request: Request, asked: dict[str, float]) -> StreamingResponse:
    """Stream from a coroutine."""
    plan = Plan(asked, request.scope["state"][ARRIVED])

    async def chunks() -> AsyncGenerator[bytes]:
        for _ in range(CHUNKS):
            await think(plan)
            yield CHUNK
        yield last_line(plan, request.scope["state"][SENT])

    return StreamingResponse(chunks())


async def threaded(request: Request, asked: dict[str, float]) -> StreamingResponse:
    """Stream from the thread pool."""
    plan = Plan(asked, request.scope["state"][ARRIVED])

    def chunks() -> Generator[bytes]:
        for _ in range(CHUNKS):
            think_in_thread(plan)
            yield CHUNK
        yield last_line(plan, request.scope["state"][SENT])

    return StreamingResponse(chunks())


api = FastAPI()
api.post("/async")(asynchronous)
api.post("/def")(threaded)
app = noting_arrival(api)
