"""FastAPI that answers bit by bit, with pauses: the last line says what they were."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Generator
from itertools import pairwise

from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

from .planted import ARRIVED, Application, Message, Plan, Receive, Send, noting_arrival

CHUNKS, CHUNK = 6, b"so many words\n"
# In its place goes the last line, when it is handed to the server: its own pause is known only then.
LAST = b"the truth"
PLAN = "plan"


async def think(plan: Plan) -> None:
    """Be the model, as a coroutine."""
    await plan.wait("decode")


def think_in_thread(plan: Plan) -> None:
    """Be the model."""
    plan.spend("decode")


async def asynchronous(request: Request, asked: dict[str, float]) -> StreamingResponse:
    """Stream from a coroutine."""
    plan = request.scope["state"][PLAN] = Plan(asked, request.scope["state"][ARRIVED])

    async def chunks() -> AsyncGenerator[bytes]:
        for _ in range(CHUNKS):
            await think(plan)
            yield CHUNK
        yield LAST

    return StreamingResponse(chunks())


async def threaded(request: Request, asked: dict[str, float]) -> StreamingResponse:
    """Stream from the thread pool."""
    plan = request.scope["state"][PLAN] = Plan(asked, request.scope["state"][ARRIVED])

    def chunks() -> Generator[bytes]:
        for _ in range(CHUNKS):
            think_in_thread(plan)
            yield CHUNK
        yield LAST

    return StreamingResponse(chunks())


def noting_chunks(application: Application) -> Application:
    """Return an ASGI application around *application* that notes when each chunk is handed to the server."""

    async def outer(scope: Message, receive: Receive, send: Send) -> None:
        sent: list[int] = []

        async def noting(message: Message) -> None:
            if message.get("body"):
                sent.append(time.time_ns())
                if message["body"] == LAST:
                    message["body"] = _last_line(scope["state"][PLAN], sent)
            await send(message)

        await application(scope, receive, noting)

    return outer


def _last_line(plan: Plan, sent: list[int]) -> bytes:
    plan.add("first_token", sent[0] - plan.arrived)
    plan.add("gap", max(later - earlier for earlier, later in pairwise(sent)))
    return json.dumps(plan.answer()).encode()


api = FastAPI()
api.post("/async")(asynchronous)
api.post("/def")(threaded)
app = noting_arrival(noting_chunks(api))
