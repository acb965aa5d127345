"""ASGI and WSGI servers: counts the requests of any application, whatever its framework is.

- Tested are uvicorn, Hypercorn, Granian, Daphne, gunicorn, Waitress, Cheroot, gevent, wsgiref, and the servers of Werkzeug and Tornado.
- The route is that of [Starlette and FastAPI](starlette.md), [Django](django.md), [Flask](flask.md), Litestar, Quart, Falcon, Bottle,
  Pyramid, BlackSheep or Sanic. Of another framework it is the path, with `{}` for numbers, hashes and long segments; from the
  101st such path on, it is `__other__`.
- A message of a websocket counts as a request: from its arrival to the last answer before the application awaits the next.
- The time that no stage of a library covers is `handler`; Starlette, FastAPI, Django, Flask and Litestar have the stage
  `framework`.
"""
# A server has its application in an attribute of an object of its own, such as that of a connection. There the application is
# replaced by one that is recorded. The object of the user stays the same.

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from types import MappingProxyType, ModuleType
from typing import Any, Final

from ..instrumentor import MAX_LAYERS, Hook, Instrumentor, Probed, log_failure
from ..listening_ports import exporter_ports
from ..probes import Probe, itself
from .asgi import Served, is_forwarding
from .server_common import name_route
from .wsgi import served

# Class of the objects that have the application after their `__init__`, and its attribute: by module.
_ASGI: Final = {
    "daphne.server": ("Server", "application"),
    "gunicorn.asgi.protocol": ("ASGIProtocol", "app"),
    "hypercorn.app_wrappers": ("ASGIWrapper", "app"),
    "uvicorn.protocols.http.h11_impl": ("H11Protocol", "app"),
    "uvicorn.protocols.http.httptools_impl": ("HttpToolsProtocol", "app"),
    "uvicorn.protocols.http.zttp_h2_impl": ("ZttpH2Protocol", "app"),
    "uvicorn.protocols.http.zttp_impl": ("ZttpProtocol", "app"),
    "uvicorn.protocols.websockets.websockets_impl": ("WebSocketProtocol", "app"),
    "uvicorn.protocols.websockets.websockets_sansio_impl": ("WebSocketsSansIOProtocol", "app"),
    "uvicorn.protocols.websockets.wsproto_impl": ("WSProtocol", "app"),
}
_WSGI: Final = {
    "cheroot.wsgi": ("Server", "wsgi_app"),
    "hypercorn.app_wrappers": ("WSGIWrapper", "app"),
    "tornado.wsgi": ("WSGIContainer", "wsgi_application"),
    "waitress.server": ("BaseWSGIServer", "application"),
    "werkzeug.serving": ("BaseWSGIServer", "app"),
}
# Frameworks: class, method, and what returns the route from its object and its result, by module.
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
# Modules of applications whose requests `asgi` counts.
_RECORDED: Final = frozenset({"fastapi.applications", "starlette.applications"})
# Their applications are no services: a scrape of metrics is no request.
_EXPORTERS: Final = frozenset({"prometheus_client"})


class ServerInstrumentor(Instrumentor):
    library = "asgi_wsgi_servers"
    title = "ASGI and WSGI servers"
    stages = {
        "handler": "the application",
        "network": "the reading of the body, and the sending of the response",
        "queue": "the wait after a trusted proxy has set the header `X-Request-Start`",
    }
    facts = ("method", "first_token", "gap")
    not_timed = (
        (
            "applications of other frameworks than Flask, Django, Litestar, Starlette and FastAPI under servers in C, such as uWSGI, mod_wsgi and "
            'Bjoern: write `with stagelens.request("predict"):` around the handler'
        ),
        "a websocket that receives in one task and sends in another: each message counts until the next is awaited",
        "the metrics that `prometheus_client.start_http_server` serves, because a scrape is no request",
    )
    tested = {
        "hypercorn": "0.18.0",
        "granian": "2.8.9",
        "daphne": "4.2.3",
        "waitress": "3.0.2",
        "cheroot": "11.1.2",
        "blacksheep": "2.6.4",
        "falcon": "4.4.0",
        "pyramid": "2.1",
        "quart": "0.22.0",
    }

    def instrumentation_dependencies(self) -> tuple[str, ...]:
        return ()

    def hooks(self) -> Mapping[str, Hook]:
        return {
            **dict.fromkeys((*_ASGI, *_WSGI), self._after_init),
            **dict.fromkeys(_ROUTES, self._route),
            "gevent.pywsgi": self._gevent,
            "granian.server.mp": self._granian,
            "granian.server.mt": self._granian,
            "gunicorn.workers.base": self._gunicorn,
            "prometheus_client.exposition": self._exporter,
            "wsgiref.handlers": self._wsgiref,
        }

    def _after_init(self, module: ModuleType) -> None:
        for places, serve in ((_ASGI, served_asgi), (_WSGI, _served)):
            owner, attribute = places.get(module.__name__, ("", ""))
            if (server_class := getattr(module, owner, None)) is not None:
                leave = partial(_leave, attribute, serve)
                self.replace(server_class, "__init__", Probed(Probe(itself, leave, None, 1)))

    def _route(self, module: ModuleType) -> None:
        owner, method, route = _ROUTES[module.__name__]
        if (owner_class := getattr(module, owner, None)) is not None:
            self.replace(owner_class, method, Probed(Probe(itself, partial(_name, route), None, 1)))

    def _gevent(self, module: ModuleType) -> None:
        enter = partial(_serve, "application", _served)
        self.replace(module.WSGIHandler, "run_application", Probed(Probe(enter, None, None, 1)))

    def _granian(self, module: ModuleType) -> None:
        # Not in the modules from which they are imported: `instrument` may be called by the application.
        self.replace(module, "_asgi_call_wrap", partial(_with_first, Served))
        self.replace(module, "_wsgi_call_wrap", partial(_with_first, _served))

    def _gunicorn(self, module: ModuleType) -> None:
        self.replace(module.Worker, "load_wsgi", Probed(Probe(_wsgi_worker, partial(_leave, "wsgi", _served), None, 1)))

    def _exporter(self, module: ModuleType) -> None:
        self.replace(module, "start_wsgi_server", Probed(Probe(exporter_ports.add, _exporting, None, 1)))

    def _wsgiref(self, module: ModuleType) -> None:
        self.replace(module.BaseHandler, "run", _run)


def served_asgi(app: Any) -> Any:
    """Return *app* recorded, unless it is one of Starlette, which is recorded itself: that costs a coroutine less."""
    inner = app.app if type(app).__module__ == "uvicorn.middleware.proxy_headers" else app
    is_recorded = getattr(type(inner).__call__, "__module__", None) in _RECORDED
    return app if is_recorded or any(map(is_forwarding, islice(_layers(inner), MAX_LAYERS))) else Served(app)


def _layers(app: Any) -> Iterator[Any]:
    while app is not None:
        yield app
        attributes = getattr(app, "__dict__", {})
        app = attributes.get("app", attributes.get("_app"))


def _served(app: Any) -> Any:
    module = getattr(app, "__module__", None)
    return app if isinstance(module, str) and module.partition(".")[0] in _EXPORTERS else served(app)


def _exporting(_: object, started: Any) -> None:
    # For port 0 the system has chosen one; older versions return nothing.
    if started:
        exporter_ports.add(started[0].server_port)


def _name(route: Callable[[Any, Any], Any], owner: Any, result: Any) -> None:
    try:
        name_route(route(owner, result))
    except Exception:
        log_failure("naming a route")


def _wsgi_worker(worker: Any) -> Any:
    # The others pass the application on to a server, such as uvicorn.
    return worker if hasattr(worker, "handle_request") and not hasattr(worker, "watchdog") else None


def _leave(attribute: str, serve: Callable[[Any], Any], owner: Any, _: object) -> None:
    if owner is not None:
        _serve(attribute, serve, owner)


def _serve(attribute: str, serve: Callable[[Any], Any], owner: Any) -> None:
    try:
        setattr(owner, attribute, serve(getattr(owner, attribute)))
    except Exception:
        log_failure("timing the application of a server")


def _with_first(serve: Callable[[Any], Any], original: Any) -> Any:
    def wrap(callback: Any, *args: Any, **options: Any) -> Any:
        return original(serve(callback), *args, **options)

    return wrap


def _run(original: Any) -> Any:
    def run(self: Any, application: Any) -> Any:
        return original(self, _served(application))

    return run
