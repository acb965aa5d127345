"""gunicorn: times how long a connection waits for a thread of a `gthread` worker. This time counts as `queue` of its request.

With other worker types, connections wait in the kernel. To measure that wait, configure your proxy to set the header `X-Request-Start`, and
set `STAGELENS_TRUSTED_PROXIES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType, ModuleType
from typing import Any

from ..instrumentor import Hook, Instrumentor, log_failure
from ..records import clock
from .wsgi import waited_ns

# Attribute of a connection with the time when it was queued; freed together with the connection.
ENQUEUED = "stagelens_enqueued"


class GunicornInstrumentor(Instrumentor):
    """Instrumentor of `gunicorn.workers.gthread.ThreadWorker`."""

    library = "gunicorn"
    title = "gunicorn"
    stages = MappingProxyType(
        {
            "queue": "the wait of a connection for a thread of a `gthread` worker",
        }
    )
    not_timed = (
        "the wait in the kernel's backlog of connections",
        "the reading and parsing of request headers",
    )
    tested = MappingProxyType({"gunicorn": "27.0.1"})

    def hooks(self) -> Mapping[str, Hook]:
        return {"gunicorn.workers.gthread": self._gthread}

    def _gthread(self, module: ModuleType) -> None:
        self.replace(module.ThreadWorker, "enqueue_req", _enqueue_req)
        self.replace(module.ThreadWorker, "handle", _handle)


def _enqueue_req(original: Any) -> Any:
    def enqueue_req(self: Any, conn: Any) -> Any:
        try:
            setattr(conn, ENQUEUED, clock())
        except Exception:
            log_failure("timing the wait for a thread of gunicorn")
        return original(self, conn)

    return enqueue_req


def _handle(original: Any) -> Any:
    def handle(self: Any, conn: Any) -> Any:
        now = clock()
        token = waited_ns.set(now - getattr(conn, ENQUEUED, now))
        try:
            return original(self, conn)
        finally:
            waited_ns.reset(token)
            del token

    return handle
