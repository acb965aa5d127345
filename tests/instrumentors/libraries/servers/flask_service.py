"""Service that returns its process id and the running threads."""

from __future__ import annotations

import itertools
import os
import threading
import time
from typing import Any

import gate
from flask import Flask

from stagelens.instrumentors import records

app = Flask(__name__)
served = itertools.count(1)
at_fork: list[str] = []
os.register_at_fork(before=lambda: at_fork.extend(thread.name for thread in threading.enumerate()))
inside = itertools.count(1)
all_inside = threading.Event()


@app.get("/")
def root() -> dict[str, Any]:
    threads = [thread.name for thread in threading.enumerate()]
    return {"pid": os.getpid(), "n": next(served), "threads": threads, "at_fork": at_fork}


@app.get("/wait")
def wait() -> dict[str, Any]:
    gate.enter()
    while not gate.is_open():
        time.sleep(0.01)
    return {}


@app.get("/together/<int:count>")
def together(count: int) -> dict[str, Any]:
    """Respond when so many requests are inside, with the request in the context before and after."""
    before = records.current.get()
    if next(inside) == count:
        all_inside.set()
    all_inside.wait(60)
    return {"id": id(before), "same": before is records.current.get()}
