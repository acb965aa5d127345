"""uvicorn: detects stalls of uvicorn's event loop, and sends all recorded requests before uvicorn exits.

Stagelens counts requests where uvicorn calls the application, of any framework: see [ASGI and WSGI servers](servers.md).

If a worker of `--workers` is killed, its open requests [count as failed](../reliability.md).
"""
# uvicorn exits by raising its stop signal again with the default handler, so that no exit handler runs. Applications are
# notified of the shutdown before, but not with `--lifespan off` or without a lifespan, such as Django.

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .. import recorder
from ..instrumentor import Instrumentor, Probed, Target, log_failure
from ..probes import Probe
from ..stalls import watch_loop


class UvicornInstrumentor(Instrumentor):
    library = "uvicorn"
    title = "uvicorn"
    not_timed = ("the work of uvicorn, such as the parsing of HTTP",)
    tested = {"uvicorn": "0.54.0", "gunicorn": "27.0.1"}

    def targets(self) -> Iterable[Target]:
        return (
            ("uvicorn.server:Server", Probed(Probe(watch_loop)), "startup"),
            ("uvicorn.server:Server", _shutdown, "shutdown"),
        )


def _shutdown(original: Any) -> Any:
    async def shutdown(self: Any, *args: Any, **options: Any) -> None:
        if recorder.open_marks():
            # A supervisor may kill this process before these requests end.
            await _flush()
        try:
            await original(self, *args, **options)
        finally:
            await _flush()

    return shutdown


async def _flush() -> None:
    try:
        # A separate thread: endless requests may occupy all threads of the loop's pool.
        with ThreadPoolExecutor(1, "stagelens-shutdown") as pool:
            await asyncio.get_running_loop().run_in_executor(pool, recorder.flush)
    except RuntimeError:
        # An interpreter that exits starts no thread; `atexit` is left.
        pass
    except Exception:
        log_failure("the last requests before the shutdown")
