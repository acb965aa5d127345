"""Requests of plain scripts: where no server counts requests, each outermost call of a model library is a request.

      scope = scripts.begin() if marks is None and scripts.on else None
      if scope is not None:
          return scripts.call(scope, "resnet50", wrapper, *args)

`on` becomes False for the rest of the process when it has imported a server, listens on a port, or has called `stagelens.request()`.
The first calls wait a few seconds for this: they may be warm-ups. If no request of such a process is seen, a log line reports it.
"""

from __future__ import annotations

import _socket
import atexit
import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import Token
from types import ModuleType
from typing import Any, Final, TypeAlias

from . import listening_ports, recorder
from .instrumentor import Hook, Instrumentor, Probed
from .probes import Probe
from .records import NUMBER, ROUTE, START, Marks, clock

# Modules that are imported in processes that serve requests. Clients import `grpc` too, and `grpc.aio` with it.
SERVERS: Final = (
    *("aiohttp.web", "bentoml", "blacksheep", "bottle", "cheroot", "daphne", "django.core.handlers.base", "falcon"),
    *("flask", "gradio", "granian", "grpc._server", "gunicorn", "hypercorn", "litestar", "litserve", "mlserver"),
    *("pyramid", "quart", "ray.serve", "sanic", "starlette", "tornado.web", "triton_python_backend_utils"),
    *("uvicorn", "waitress"),
)
# Modules of engines that run models in child processes: the call in the parent is the request. They import Starlette.
ENGINES: Final = ("vllm",)
# Modules that import a server without serving requests of the program.
_IMPORTERS: Final = {"starlette": ENGINES, "tornado.web": ("distributed", "ipykernel")}
Scope: TypeAlias = tuple[Marks, Token[Marks | None]]
on = True
# The first requests of a process wait so long for the start of a server. [seconds]
WAIT_SECONDS: Final = 10.0
MAX_WARM_UPS: Final = 1024
# The search for ports takes at most this share of the time of the process.
_MAX_SHARE: Final = 0.01
# A service may need so long for its first request. [seconds]
UNSEEN_SECONDS: Final = 10.0


def turn_off() -> None:
    """Count no more model calls in this process: requests are counted by a server or by `stagelens.request()`."""
    global on  # noqa: PLW0603 - a module global is the cheapest test
    on = False


def begin() -> Scope | None:
    """Start a request for a model call outside of requests; return None if this process is no plain script."""
    return None if _is_service() else recorder.begin()


def _is_service() -> bool:
    if on and (has_server() or _is_child_of_engine() or _listens()):
        turn_off()
    return not on


def call(scope: Scope, name: str, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    error_type, result = "", None
    scope[0][ROUTE] = name
    try:
        result = function(*args, **options)
        return result  # noqa: TRY300 - read below
    except BaseException as error:
        error_type = type(error).__qualname__
        raise
    finally:
        finish(scope, name, error_type, type(result))


def finish(scope: Scope, name: str, error_type: str, result: type) -> None:
    marks, token = scope
    ended = clock()
    recorder.end(token)
    # The creation of a lazy iterator and its end are no requests: the steps are.
    if error_type == "StopIteration" or hasattr(result, "__next__"):
        recorder.discard(marks)
    else:
        # Its number in this process: a child has its own warm-up.
        if marks[NUMBER] < MAX_WARM_UPS:
            marks.extend(("@late", _WarmUp(marks, ended), 0))
        recorder.finish(marks, marks[START], ended, name, error_type, 0, "internal")


class _WarmUp:
    """A request that waits, as for late marks, and is none if the process is a service by then."""

    wait_seconds = WAIT_SECONDS

    def __init__(self, marks: Marks, ended: int) -> None:
        self._held = marks, ended

    def ready(self) -> bool:
        return not on

    def marks(self) -> Marks:
        global _next_search, _released
        marks, ended = self._held
        # Break the reference cycle.
        del self._held
        if ended > _released:
            from . import supervised  # noqa: PLC0415 - the agent has loaded it

            # One search for all that waited.
            _next_search, _released = 0, clock()
            if listening_ports.may_serve() and any(map(listening_ports.is_listening, supervised.children())):
                turn_off()
        if _is_service():
            # As a calibration request, which is not counted.
            marks[START] = -1
        return []


_released = 0


def has_server() -> bool:
    """Return whether this process has imported a server that counts requests."""
    return any(
        name in sys.modules and not any(other in sys.modules for other in _IMPORTERS.get(name, ())) for name in SERVERS
    )


def _is_child_of_engine() -> bool:
    processes = sys.modules.get("multiprocessing.process")
    return (
        processes is not None
        and processes.parent_process() is not None
        and any(name in sys.modules for name in ENGINES)
    )


_next_search = 0


def _listens() -> bool:
    global _next_search  # noqa: PLW0603 - as `on`
    started = clock()
    if started < _next_search:
        return False
    port = next(listening_ports.open_ports(), 0)
    ended = clock()
    _next_search = ended + round((ended - started) / _MAX_SHARE)
    if port:
        expect_requests(port)
    return port != 0


class SocketInstrumentor(Instrumentor):
    """Instrumentor of `socket.accept`, which a server calls whether Stagelens knows it or not."""

    library = "socket"

    def hooks(self) -> Mapping[str, Hook]:
        return {"socket": self._patch}

    def _patch(self, module: ModuleType) -> None:
        self.replace(module.socket, "accept", Probed(Probe(_accepting, None, None, 1)))


def _accepting(socket: Any) -> None:
    if _expecting:
        return
    with suppress(Exception):
        # A Unix socket is a pipe between processes.
        if socket.family in {_socket.AF_INET, _socket.AF_INET6} and not has_server():
            port = socket.getsockname()[1]
            if listening_ports.may_serve() and port not in listening_ports.exporter_ports:
                expect_requests(port)


_expecting = 0


def expect_requests(port: int) -> None:
    """Log a line if no request is seen soon, or until the process ends, although it serves *port*."""
    global _expecting  # noqa: PLW0603 - as `on`
    count = recorder.started_count()
    # Those of a script were warm-ups.
    if _expecting == os.getpid() or (count and not on):
        return
    turn_off()
    _expecting = os.getpid()
    with suppress(Exception):
        # No thread can be started when the interpreter ends.
        timer = threading.Timer(UNSEEN_SECONDS, _report_unseen, (port, _expecting, count))
        timer.daemon, timer.name = True, "stagelens-unseen"
        timer.start()
        atexit.register(_report_unseen, port, _expecting, count)


def _report_unseen(port: int, process: int, count: int) -> None:
    global _expecting  # noqa: PLW0603 - as `on`
    # Once, and not in a child, which has the exit handlers of its parent.
    if process != _expecting or process != os.getpid():
        return
    _expecting = -process
    if recorder.started_count() == count:
        logging.getLogger("stagelens").warning(
            "stagelens: this process serves port %d, but none of its requests is seen: Stagelens does not know its server. "
            'fix: with stagelens.request("predict"):    # around the work for each request',
            port,
        )
