"""An ASGI application served by uvicorn in a thread that is in no request."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import uvicorn


@contextmanager
def uvicorn_server(app: Any) -> Generator[str]:
    """Serve *app* until the block ends; give its address."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", lifespan="off"))
    started = threading.Event()
    startup = server.startup

    async def announced(*args: Any, **options: Any) -> None:
        await startup(*args, **options)
        started.set()

    server.startup = announced  # type: ignore[method-assign]
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    assert started.wait(60)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()
