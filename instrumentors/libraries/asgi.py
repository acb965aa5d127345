"""Starlette and FastAPI: requests, `network`, `queue` and `serialize`.

- A request is one call of the outermost application; mounted applications belong to it.
- `queue`: the wait between passing a plain `def` to the thread pool and its first line (AnyIO has 40 threads, so the
  41st request waits here), and the wait for the event loop after it has returned.
- `serialize`: `Request.json` and `form`, FastAPI's validation of body and response, and building a `Response`.
- The route is the template as declared, with the prefixes of mounts and included routers.

Not timed: websockets, background tasks, and pure ASGI middleware outside the application.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType, ModuleType
from typing import Any

from ..instrumentor import Hook, Instrumentor, log_failure, timed, timed_async
from ..records import MAX_MARKS, clock, current
from .asgi_request import KEY, Receive, Scope, Send, serve

# A stream from the thread pool comes back for each chunk: of a long one the room is left to its stages.
MAX_WAYS_BACK = MAX_MARKS // 4


class AsgiInstrumentor(Instrumentor):
    """Starlette, and FastAPI on top of it."""

    library = "starlette"
    title = "Starlette and FastAPI"
    stages = MappingProxyType(
        {
            "network": "reading the body, and sending the answer",
            "queue": "`X-Request-Start` of a proxy, the wait for a thread of AnyIO's pool, and the wait for the event loop "
            "once it is done",
            "serialize": "`Request.json` and `form`, FastAPI's validation of body and answer, building a `Response`",
        }
    )
    facts = ("method", "first_token", "gap")
    not_timed = ("websockets", "background tasks", "what a pure ASGI middleware outside the application does")
    tested = MappingProxyType({"starlette": "1.10.0", "fastapi": "0.165.0"})

    def hooks(self) -> Mapping[str, Hook]:
        """Return the patch functions by module."""
        return {
            "starlette.applications": self._starlette_application,
            "starlette.routing": self._starlette_routing,
            "starlette.requests": self._starlette_requests,
            "starlette.responses": self._starlette_responses,
            "fastapi.applications": self._fastapi_application,
            "fastapi.routing": self._fastapi_routing,
            "fastapi.dependencies.utils": self._fastapi_dependencies,
            # Looked up by name at every call, so that it does not matter who has imported run_in_threadpool before.
            "anyio.to_thread": self._anyio,
            # And if it was loaded past our import hook, as pytest does to rewrite assertions.
            "starlette.concurrency": lambda module: self._anyio(module.anyio.to_thread),
        }

    def _starlette_application(self, module: ModuleType) -> None:
        self.replace(module.Starlette, "__call__", _application)

    def _starlette_routing(self, module: ModuleType) -> None:
        self.replace(module.Route, "handle", _route)
        self.replace(module.Mount, "handle", _mount)

    def _starlette_requests(self, module: ModuleType) -> None:
        self.replace(module.Request, "json", timed_async("serialize"))
        self.replace(module.Request, "_get_form", timed_async("serialize"))

    def _starlette_responses(self, module: ModuleType) -> None:
        # Renders the body, whatever class overrides `render`; streaming responses do not come through here.
        self.replace(module.Response, "__init__", timed("serialize"))

    def _fastapi_application(self, module: ModuleType) -> None:
        self.replace(module.FastAPI, "__call__", _application)

    def _fastapi_routing(self, module: ModuleType) -> None:
        self.replace(module.APIRoute, "handle", _route)
        self.replace(module, "serialize_response", timed_async("serialize"))

    def _fastapi_dependencies(self, module: ModuleType) -> None:
        self.replace(module, "request_body_to_args", timed_async("serialize"))

    def _anyio(self, module: ModuleType) -> None:
        self.replace(module, "run_sync", _run_sync)


def _application(original: Any) -> Any:
    # An `async def`: servers look at it to tell ASGI 3 from ASGI 2.
    async def __call__(self: Any, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: N807 - shown in tracebacks
        await serve(original, self, scope, receive, send)

    return __call__


def _route(original: Any) -> Any:
    async def handle(self: Any, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = scope.get(KEY)
        if exchange is not None:
            try:
                exchange.name(_template(self, scope))
            except Exception:
                log_failure("naming a route")
        await original(self, scope, receive, send)

    return handle


def _mount(original: Any) -> Any:
    async def handle(self: Any, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = scope.get(KEY)
        if exchange is not None:
            try:
                exchange.mounts += self.path
            except Exception:
                log_failure("naming a route")
        await original(self, scope, receive, send)

    return handle


def _template(route: Any, scope: Scope) -> str:
    """Return the path *route* was declared with; FastAPI keeps the prefix of an included router in the scope."""
    included = scope.get("fastapi", {}).get("effective_route_context")
    if included is not None and included.original_route is route:
        return included.path
    return route.path


def _run_sync(original: Any) -> Any:
    async def run_sync(func: Any, *args: Any, **options: Any) -> Any:
        marks = current.get()
        if marks is None:
            return await original(func, *args, **options)
        submitted = clock()
        waiting = True
        done = 0

        def started(*args: Any) -> Any:
            nonlocal waiting, done
            waiting = False
            if len(marks) < MAX_MARKS:
                marks.extend(("queue", submitted, clock()))
            try:
                return func(*args)
            finally:
                done = clock()

        try:
            return await original(started, *args, **options)
        finally:
            # Cancelled before a thread was free: it has waited all the same.
            if waiting and len(marks) < MAX_MARKS:
                marks.extend(("queue", submitted, clock()))
            elif done and len(marks) < MAX_WAYS_BACK:
                marks.extend(("queue@loop", done, clock()))

    return run_sync
