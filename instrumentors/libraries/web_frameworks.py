"""Web frameworks under an ASGI or WSGI server that need little: the route of a request, and the time of its handler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType, ModuleType
from typing import Any

from ..instrumentor import Hook, Instrumentor, Probed, log_failure, timed
from ..probes import Probe
from .asgi import recorded
from .server_common import name_route


class LitestarInstrumentor(Instrumentor):
    """Litestar: counts requests, and times `framework`, `handler` and `network`.

    - Each call of the application counts as one request, and each message of a websocket.
    - The route is the path template.
    """

    library = "litestar"
    title = "Litestar"
    stages = MappingProxyType(
        {
            "framework": "the time in middleware, routing, guards and the sending of the response",
            "handler": "the parameters, dependencies and the handler, and the conversion of its result",
            "network": "the reading of the body, and the sending of the response",
            "queue": "the wait after a proxy has set the header `X-Request-Start`",
        }
    )
    facts = ("method", "first_token", "gap")
    not_timed = ("background tasks",)
    tested = MappingProxyType({"litestar": "2.25.0"})

    def hooks(self) -> Mapping[str, Hook]:
        return {"litestar.app": self._app, "litestar.routes.http": self._routes}

    def _app(self, module: ModuleType) -> None:
        self.replace(module.Litestar, "__call__", recorded)

    def _routes(self, module: ModuleType) -> None:
        self.replace(module.HTTPRoute, "_call_handler_function", timed("handler"))


# Class, method, and what returns the route from its object and its result: by module.
_ROUTES: Mapping[str, tuple[str, str, Callable[[Any, Any], Any]]] = MappingProxyType(
    {
        "blacksheep.server.routing": (
            "Router",
            "get_match",
            lambda _, match: match and match.pattern.decode().strip("*"),
        ),
        "falcon.app": ("App", "_get_responder", lambda _, found: found[3]),
        "pyramid.urldispatch": ("RoutesMapper", "__call__", lambda _, info: info["route"] and info["route"].pattern),
        "quart.ctx": (
            "_BaseRequestWebsocketContext",
            "match_request",
            lambda context, _: getattr(context.request_websocket.url_rule, "rule", ""),
        ),
    }
)


class RoutesInstrumentor(Instrumentor):
    """Other web frameworks: names the requests that their [server](servers.md) counts after the route.

    Bottle and Litestar tell the server their routes without it.
    """

    library = "web_frameworks"
    title = "BlackSheep, Falcon, Pyramid and Quart"
    not_timed = ("the time of the handler alone: the whole application is `handler`",)
    tested = MappingProxyType({"blacksheep": "2.6.4", "falcon": "4.4.0", "pyramid": "2.1", "quart": "0.22.0"})

    def instrumentation_dependencies(self) -> tuple[str, ...]:
        """Return nothing: any of the frameworks is enough."""
        return ()

    def hooks(self) -> Mapping[str, Hook]:
        return dict.fromkeys(_ROUTES, self._patch)

    def _patch(self, module: ModuleType) -> None:
        owner, method, route = _ROUTES[module.__name__]
        if (found := getattr(module, owner, None)) is not None:
            self.replace(found, method, Probed(Probe(_itself, partial(_name, route), None, 1)))


def _itself(owner: Any) -> Any:
    return owner


def _name(route: Callable[[Any, Any], Any], owner: Any, result: Any) -> None:
    try:
        name_route(route(owner, result))
    except Exception:
        log_failure("naming a route")
