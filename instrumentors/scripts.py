"""Requests of plain scripts: where no server counts requests, each outermost call of a model library is a request.

A library tests `on` only where no request runs in the context, and then calls `begin`:

      scope = scripts.begin() if marks is None and scripts.on else None
      if scope is not None:
          return scripts.call(scope, "resnet50", wrapper, *args)

`call` calls the wrapper again, now inside the request. `on` becomes False for the rest of the process when the process has
imported a server or has called `stagelens.request()`: other model calls are then warm-ups or background work.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextvars import Token
from typing import Any, Final, TypeAlias

from . import recorder
from .records import ROUTE, Marks, clock

# Modules that are imported in processes that serve requests. Clients import `grpc` too, and `grpc.aio` with it.
SERVERS: Final = (
    "aiohttp.web",
    "bentoml",
    "django.core.handlers.base",
    "flask",
    "gradio",
    "grpc._server",
    "gunicorn",
    "litserve",
    "mlserver",
    "ray.serve",
    "starlette",
    "triton_python_backend_utils",
    "uvicorn",
)
# Modules of engines that run models in child processes: the call in the parent is the request. They import Starlette.
ENGINES: Final = ("vllm",)

Scope: TypeAlias = tuple[Marks, Token[Marks | None]]
on = True


def turn_off() -> None:
    """Count no more model calls in this process: requests are counted by a server or by `stagelens.request()`."""
    global on  # noqa: PLW0603 - a module global is the cheapest test
    on = False


def begin() -> Scope | None:
    """Start a request for a model call outside of requests; return None if this process is no plain script."""
    if _has_server() or _is_child_of_engine():
        turn_off()
        return None
    return recorder.begin()


def call(scope: Scope, name: str, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Return `function(*args, **options)` and finish the request of *scope* under the fixed *name*."""
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
    """Finish the request of *scope*, which has returned a *result* of this class or raised an exception of *error_type*."""
    marks, token = scope
    ended = clock()
    recorder.end(token)
    # The creation of a lazy iterator and its end are no requests: the steps are.
    if error_type == "StopIteration" or hasattr(result, "__next__"):
        recorder.discard(marks)
    else:
        recorder.finish(marks, marks[1], ended, name, error_type, 0, "internal")


def _has_server() -> bool:
    servers = [name for name in SERVERS if name in sys.modules]
    # A server of an engine runs in uvicorn.
    return bool(servers) and not (servers == ["starlette"] and any(name in sys.modules for name in ENGINES))


def _is_child_of_engine() -> bool:
    processes = sys.modules.get("multiprocessing.process")
    return (
        processes is not None
        and processes.parent_process() is not None
        and any(name in sys.modules for name in ENGINES)
    )
