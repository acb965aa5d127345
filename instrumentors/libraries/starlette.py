"""Starlette and FastAPI: counts requests, and times `framework`, `handler`, `serialize`, `network` and `queue`.

- Each call of the outermost application counts as one request. Calls of mounted applications belong to the same request.
- Each message that a websocket receives counts as one request, until the last answer before the next message is awaited.
- The route is the path template, including the prefixes of mounts and included routers.
- A handler without `async` runs in AnyIO's pool of 40 threads.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

from ..instrumentor import Instrumentor, Probed, Target, log_failure, timed
from ..probes import Probe
from ..recorder import end_work, start_work
from ..records import clock, current, has_capacity
from .asgi import KEY, AsgiExchange, Scope, recorded
from .server_common import is_users_code


class StarletteInstrumentor(Instrumentor):
    library = "starlette"
    title = "Starlette and FastAPI"
    stages = {
        "framework": "the time in middleware, routing and dependencies",
        "handler": "the endpoint, the body of a streaming response, a response by code outside of the framework, and a mounted application of "
        "another framework",
        "network": "the reading of the body, and the sending of the response",
        "queue": "the wait after a trusted proxy has set the header `X-Request-Start`; the wait for a thread of AnyIO's "
        "pool; and the wait for the event loop after the thread is done",
        "serialize": "calls of `Request.json` and `Request.form`, FastAPI's validation of body and response, and "
        "the creation of a `Response`",
    }
    facts = ("method", "first_token", "gap")
    not_timed = (
        "background tasks",
        "a websocket that receives in one task and sends in another: each message counts until the next is awaited",
        "ASGI middleware that wraps the application object, as in `Middleware(app)`, under a server that Stagelens does not know",
    )
    tested = {"starlette": "1.10.0", "fastapi": "0.165.0"}

    def targets(self) -> Iterable[Target]:
        return (
            ("starlette.applications:Starlette", recorded, "__call__"),
            ("starlette.routing:Route", _as_handler(_routing), "handle"),
            ("starlette.routing:Mount", _as_handler(_mounting), "handle"),
            ("starlette.routing", _request_response, "request_response"),
            ("starlette.requests:Request", timed("serialize"), "json _get_form"),
            # Renders the body in all subclasses; streaming responses do not call it.
            ("starlette.responses:Response", timed("serialize"), "__init__"),
            ("starlette.responses:StreamingResponse", _as_handler(_streaming), "__call__"),
            # A response by any other code, such as that of `sse_starlette`, is the work of the handler.
            ("starlette.responses:Response FileResponse", Probed(Probe(_responding, parameters=2)), "__call__"),
            ("fastapi.routing:APIRoute", _as_handler(_routing), "handle"),
            ("fastapi.routing", _run_endpoint, "run_endpoint_function"),
            ("fastapi.routing", timed("serialize"), "serialize_response"),
            ("fastapi.dependencies.utils", timed("serialize"), "request_body_to_args"),
            # Looked up by name at every call, so that earlier imports of run_in_threadpool are covered. Not `run_sync` itself,
            # whose warnings name the line of its caller. The second name is that of anyio 3.
            ("anyio.to_thread", _get_backend, "get_async_backend get_asynclib"),
            # Also if anyio was loaded without our import hook, as pytest does to rewrite assertions.
            ("starlette.concurrency:anyio.to_thread", _get_backend, "get_async_backend get_asynclib"),
        )


def _as_handler(starting: Callable[[Any, Any, Scope], bool]) -> Probed:
    def enter(owner: Any, scope: Scope) -> AsgiExchange | None:
        exchange = scope.get(KEY)
        try:
            if exchange is None or not starting(exchange, owner, scope):
                return None
        except Exception:
            # A route or a mounted application of the user may raise for any attribute.
            log_failure("timing a handler")
            return None
        exchange.handling = clock()
        return exchange

    return Probed(Probe(enter, _handled, _handled, 2))


def _handled(exchange: AsgiExchange | None, _: object) -> None:
    if exchange is not None:
        exchange.end_handler()


def _routing(exchange: AsgiExchange, route: Any, scope: Scope) -> bool:
    exchange.awaits_response = True
    if route is exchange.named_by:
        return False
    exchange.named_by = route
    try:
        exchange.name(_template(route, scope))
    except Exception:
        log_failure("naming a route")
    # A class that handles ASGI itself.
    return not (hasattr(route, "dependant") or inspect.isroutine(route.endpoint))


def _mounting(exchange: AsgiExchange, mount: Any, _: Scope) -> bool:
    exchange.mounts += mount.path
    app = getattr(mount, "_base_app", mount.app)
    return is_users_code(app) and inspect.getattr_static(app, "routes", None) is None


def _responding(response: Any, scope: Scope) -> None:
    exchange = scope.get(KEY)
    if exchange is not None and not is_users_code(type(response).__call__):
        exchange.awaits_response = False


def _streaming(exchange: AsgiExchange, response: Any, scope: Scope) -> bool:
    _responding(response, scope)
    return not exchange.handling and is_users_code(scope.get("endpoint"))


def _request_response(original: Any) -> Any:
    def request_response(func: Any) -> Any:
        if not is_users_code(func) or not inspect.isroutine(func):
            return original(func)
        return original(functools.wraps(func)(timed("handler")(func)))

    return request_response


def _run_endpoint(original: Any) -> Any:
    async def run_endpoint_function(*, dependant: Any, **options: Any) -> Any:
        marks = current.get()
        if marks is None or not is_users_code(dependant.call):
            return await original(dependant=dependant, **options)
        started = clock()
        try:
            return await original(dependant=dependant, **options)
        finally:
            if has_capacity(marks):
                marks.extend(("handler", started, clock()))

    return run_endpoint_function


def _template(route: Any, scope: Scope) -> str:
    included = scope.get("fastapi", {}).get("effective_route_context")
    if included is not None and included.original_route is route:
        return included.path
    return route.path


def _get_backend(original: Any) -> Any:
    def get_backend(*args: Any, **options: Any) -> Any:
        backend = original(*args, **options)
        return backend if current.get() is None else _Backend(backend)

    return get_backend


class _Backend:
    """The part of anyio that runs functions in threads, for a call in a request."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    async def run_sync_in_worker_thread(self, func: Any, *args: Any, **options: Any) -> Any:
        run = self._backend.run_sync_in_worker_thread
        marks = current.get()
        if marks is None:
            return await run(func, *args, **options)
        submitted = clock()
        waiting = True
        done = 0

        def started(*args: Any) -> Any:
            nonlocal waiting, done
            waiting = False
            if has_capacity(marks):
                marks.extend(("queue", submitted, clock()))
            before = start_work(marks)
            try:
                return func(*args)
            finally:
                done = clock()
                end_work(before)

        try:
            return await run(started, *args, **options)
        finally:
            # Cancelled before a thread was free: the wait still counts.
            if waiting and has_capacity(marks):
                marks.extend(("queue", submitted, clock()))
            elif done and has_capacity(marks):
                marks.extend(("queue@loop", done, clock()))
