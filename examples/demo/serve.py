"""The demo's service: what kind of file is this? FastAPI around magika, Google's file-type model.

It is an ordinary service. It does not know that Stagelens exists: `stagelens run` times it from outside.
DEMO_VERSION=2 plants a regression: large uploads wait for a check before they reach the model.
"""

from __future__ import annotations

import os
import time
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request
from magika import Magika

MAX_CONTENT_BYTES = 1 << 20
LARGE_CONTENT_BYTES = 128 << 10
CHECK_SECONDS = 1.5
VERSION = int(os.environ.get("DEMO_VERSION", "1"))

app = FastAPI(title="magika")
model = Magika()


def prepare(content: bytes) -> bytes:
    """Cut the upload to what the model may see; version 2 also waits until somebody else has checked a large one."""
    if VERSION > 1 and len(content) > LARGE_CONTENT_BYTES:
        # It keeps no core busy: on a small machine requests would queue, and the queue would be to blame as well.
        time.sleep(CHECK_SECONDS)
    return content[:MAX_CONTENT_BYTES]


def describe(result: Any) -> dict[str, Any]:
    output = result.output
    return {"label": output.label, "mime": output.mime_type, "group": output.group, "score": round(result.score, 4)}


async def upload(request: Request) -> bytes:
    return await request.body()


@app.post("/identify")
def identify(content: Annotated[bytes, Depends(upload)]) -> dict[str, Any]:
    return describe(model.identify_bytes(prepare(content)))


@app.get("/healthz")
async def healthz() -> dict[str, int]:
    return {"version": VERSION}
