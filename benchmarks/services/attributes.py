"""A service whose requests have attributes: it takes as long as its client asks, alone or in a call of a chat.

`app` is the service, `chat` the server that it calls if `CHAT_URL` has its address.
"""

from __future__ import annotations

import asyncio
import json
import os

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import stagelens

ROUTES = 4
_client = None
if "CHAT_URL" in os.environ:
    from openai import AsyncOpenAI

    _client = AsyncOpenAI(base_url=os.environ["CHAT_URL"], api_key="none", max_retries=0)


async def serve(request: Request) -> Response:
    """Read the body, take the time of the request, and name the process in a header."""
    await request.body()
    asked = request.headers
    stagelens.attribute("plan", asked["x-plan"])
    with stagelens.request("serve", model=asked["x-model"], batch=int(asked["x-batch"])):
        if asked["x-cold"] == "1":
            with stagelens.stage("load"):
                await asyncio.sleep(float(asked["x-seconds"]))
        elif _client is not None:
            chunks = await _client.chat.completions.create(
                model="chat",
                messages=[{"role": "user", "content": asked["x-input-tokens"]}],
                max_tokens=int(asked["x-output-tokens"]),
                stream=True,
                stream_options={"include_usage": True},
                extra_headers={"x-seconds": asked["x-seconds"]},
            )
            async for _ in chunks:
                pass
        else:
            await asyncio.sleep(float(asked["x-seconds"]))
    return Response("done", int(asked["x-status"]), {"x-process": str(os.getpid())})


async def complete(request: Request) -> Response:
    """Stream a chat with the numbers of tokens that the request names."""
    asked = await request.json()
    await asyncio.sleep(float(request.headers["x-seconds"]))
    usage = {"prompt_tokens": int(asked["messages"][0]["content"]), "completion_tokens": asked["max_tokens"]}
    choice = {"index": 0, "finish_reason": "stop", "delta": {"role": "assistant", "content": "done"}}
    chunk = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "chat"}
    chunks = [
        json.dumps({**chunk, "choices": [choice], "usage": None}),
        json.dumps({**chunk, "choices": [], "usage": {**usage, "total_tokens": sum(usage.values())}}),
        "[DONE]",
    ]
    return Response("".join(f"data: {each}\n\n" for each in chunks), media_type="text/event-stream")


app = Starlette(routes=[Route(f"/route-{number}", serve, methods=["POST"]) for number in range(ROUTES)])
chat = Starlette(routes=[Route("/chat/completions", complete, methods=["POST"])])
