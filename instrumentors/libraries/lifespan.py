"""The life of an ASGI application: what was recorded last is delivered before its server may end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from .. import recorder
from ..instrumentor import report

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]


def reporting_before_exit(send: Send) -> Send:
    """Return *send* with our last report in front of the end of the shutdown.

    After it uvicorn raises the signal that stopped it once more, with the default handler: no exit handler runs.
    """

    async def report_and_send(message: Message) -> None:
        if message["type"] in ("lifespan.shutdown.complete", "lifespan.shutdown.failed"):
            try:
                # Starlette stands on it; who serves nothing shall not load it.
                from anyio import CapacityLimiter, to_thread  # noqa: PLC0415

                # A limiter of its own: while all threads of the pool are held by requests, the shutdown would hang.
                await to_thread.run_sync(recorder.flush, limiter=CapacityLimiter(1))
            except Exception:
                report("the last requests before the shutdown")
        await send(message)

    return report_and_send
