"""gunicorn: times how long a connection waits for a thread of a `gthread` worker. This time counts as `queue` of its request.

With other worker types, connections wait in the kernel. To measure that wait, configure your proxy to set the header `X-Request-Start`, and
set `STAGELENS_TRUSTED_PROXIES`.

If a worker is killed, its open requests [count as failed](../reliability.md). A worker that does not
respond to gunicorn sends the requests that have ended before gunicorn kills it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from ..instrumentor import Instrumentor, Probed, Target, log_failure
from ..probes import Probe
from ..records import clock
from ..supervised import SHARED, FailedRequests, SharedRequests, Supervised, supervise
from .wsgi import waited_ns

# Attribute of a connection with the time when it was queued; freed together with the connection.
ENQUEUED = "stagelens_enqueued"
# A worker is overdue after the first share of `--timeout`; the second share is the time between two checks.
OVERDUE, CHECK = 0.6, 0.1


class GunicornInstrumentor(Instrumentor):
    library = "gunicorn"
    title = "gunicorn"
    stages = MappingProxyType({"queue": "the wait of a connection for a thread of a `gthread` worker"})
    not_timed = ("the wait in the kernel's backlog of connections", "the reading and parsing of request headers")
    tested = MappingProxyType({"gunicorn": "27.0.1"})

    def targets(self) -> Iterable[Target]:
        return (
            ("gunicorn.arbiter:Arbiter", Probed(Probe(_workers, _reaped, parameters=1)), "reap_workers"),
            ("gunicorn.arbiter:Arbiter", Probed(Probe(bool, _spawned)), "spawn_worker"),
            ("gunicorn.arbiter:Arbiter", Probed(Probe(_workers, _stopped, parameters=1)), "stop"),
            ("gunicorn.workers.base:Worker", Probed(Probe(_share, parameters=1)), "__init__"),
            ("gunicorn.workers.base:Worker", Probed(Probe(_supervised, _loaded, parameters=1)), "load_wsgi"),
            ("gunicorn.workers.gthread:ThreadWorker", Probed(Probe(_enqueue, parameters=2)), "enqueue_req"),
            ("gunicorn.workers.gthread:ThreadWorker", _handle, "handle"),
        )


def _enqueue(_: object, connection: Any) -> None:
    try:
        setattr(connection, ENQUEUED, clock())
    except Exception:
        log_failure("timing the wait for a thread of gunicorn")


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


_failed = FailedRequests()


def _share(worker: Any) -> None:
    try:
        setattr(worker, SHARED, SharedRequests().close_file())
    except Exception:
        log_failure("sharing memory with a worker of gunicorn")


def _supervised(worker: Any) -> Any:
    try:
        timeout = worker.cfg.timeout

        def is_overdue() -> bool:
            try:
                return bool(timeout) and time.monotonic() - worker.tmp.last_update() > OVERDUE * timeout
            except (OSError, ValueError):  # the worker is exiting
                return False

        supervise(Supervised(getattr(worker, SHARED), is_overdue, CHECK * timeout or math.inf))
    except Exception:
        log_failure("sharing memory with gunicorn")
    return worker


def _loaded(*_: object) -> None:
    # Not before the worker has patched its process for gevent, because this starts our thread.
    _failed.record()


def _workers(arbiter: Any) -> Any:
    return arbiter, dict(arbiter.WORKERS)


def _reaped(token: Any, _: object) -> None:
    arbiter, before = token
    _note_dead({pid: worker for pid, worker in before.items() if pid not in arbiter.WORKERS})


def _spawned(*_: object) -> None:
    # Only in the arbiter: the worker has them now.
    _failed.clear()


def _stopped(token: Any, _: object) -> None:
    arbiter, _ = token
    _note_dead(arbiter.WORKERS)
    _failed.record()


def _note_dead(workers: Mapping[int, Any]) -> None:
    try:
        for pid, worker in workers.items():
            shared = getattr(worker, SHARED, None)
            if shared is not None:
                _failed.add(pid, shared.read(pid)[1], clock())
    except Exception:
        log_failure("reading the open requests of a worker of gunicorn")
