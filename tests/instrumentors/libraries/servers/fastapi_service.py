"""Service that returns its process id and the running threads."""

from __future__ import annotations

import itertools
import os
import threading
from typing import Any

from fastapi import FastAPI

app = FastAPI()
served = itertools.count(1)


@app.get("/")
async def root() -> dict[str, Any]:
    """Return process id and threads."""
    return {"pid": os.getpid(), "n": next(served), "threads": [thread.name for thread in threading.enumerate()]}
