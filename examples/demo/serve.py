"""The demo's service: what kind of file is this? FastAPI around magika, Google's file-type model.

It is an ordinary service. It does not know that Stagelens exists: `stagelens run` times it from outside.
DEMO_VERSION=2 plants a regression: large uploads get a costly check before they reach the model.
"""

from __future__ import annotations

import lzma
import os
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request
from magika import Magika

MAX_CONTENT_BYTES = 1 << 20
LARGE_CONTENT_BYTES = 128 << 10
PRESETS = (4, 5, 6)
VERSION = int(os.environ.get("DEMO_VERSION", "1"))

app = FastAPI(title="magika")
model = Magika()


def prepare(content: bytes) -> bytes:
    """Cut the upload to what the model may see; version 2 also looks how small a large one could be stored."""
    if VERSION > 1 and len(content) > LARGE_CONTENT_BYTES:
        min((lzma.compress(content, preset=preset) for preset in PRESETS), key=len)
    return content[:MAX_CONTENT_BYTES]


def describe(result: Any) -> dict[str, Any]:
    """Turn the model's answer into ours."""
    output = result.output
    return {"label": output.label, "mime": output.mime_type, "group": output.group, "score": round(result.score, 4)}


async def upload(request: Request) -> bytes:
    """Read the request's body."""
    return await request.body()


@app.post("/identify")
def identify(content: Annotated[bytes, Depends(upload)]) -> dict[str, Any]:
    """Say what kind of file the body is."""
    return describe(model.identify_bytes(prepare(content)))


@app.get("/healthz")
async def healthz() -> dict[str, int]:
    """Say that the model is loaded."""
    return {"version": VERSION}
