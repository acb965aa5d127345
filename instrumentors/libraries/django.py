"""Django: counts requests under WSGI and ASGI, and times `framework`, `handler`, `serialize`, `network` and `queue`.

- Each call of the handler from `get_wsgi_application` or `get_asgi_application` counts as one request.
- The route is the URL pattern with a leading slash. It includes the pattern of each `include`.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable
from typing import Any

from ..instrumentor import Instrumentor, Probed, Target, log_failure, timed
from ..probes import Probe
from ..recorder import end
from ..records import clock, current
from . import asgi, wsgi
from .server_common import is_users_code, record_step, relayed, timed_handler
from .wsgi import Environ, StartResponse


class DjangoInstrumentor(Instrumentor):
    library = "django"
    title = "Django"
    stages = {
        "framework": "the time outside the view, such as middleware",
        "handler": "the view, and each slow step of a streaming response",
        "network": "the reading of the body, and the sending of the response",
        "queue": "the wait after a trusted proxy has set the header `X-Request-Start`; and the wait for a thread of gunicorn's pool",
        "serialize": "the parsing of `POST` and `FILES`, and the creation of a `JsonResponse`",
    }
    facts = ("method", "first_token", "gap")
    not_timed = (
        "websockets under WSGI",
        "templates and database queries. To time them, wrap them in `stagelens.stage(…)`.",
        '`json.loads(request.body)` in a view, and parsers and renderers of Django REST framework. To time them, wrap them in `stagelens.stage("serialize")`.',
    )
    tested = {"django": "5.2.19", "gunicorn": "27.0.1", "uvicorn": "0.54.0"}

    def targets(self) -> Iterable[Target]:
        return (
            ("django.core.handlers.wsgi:WSGIHandler", _wsgi_handler, "__call__"),
            ("django.core.handlers.asgi:ASGIHandler", asgi.recorded, "__call__"),
            (
                "django.core.handlers.base:BaseHandler",
                Probed(Probe(_resolving, _name_route, None, 2)),
                "resolve_request",
            ),
            ("django.core.handlers.base:BaseHandler", _view, "make_view_atomic"),
            ("django.core.handlers.exception", Probed(Probe(_name_error, parameters=2)), "response_for_exception"),
            ("django.http.request:HttpRequest", timed("serialize"), "_load_post_and_files"),
            ("django.http.response:JsonResponse", timed("serialize"), "__init__"),
            ("django.http.response:HttpResponseBase", wsgi.close, "close"),
            ("django.http.response:StreamingHttpResponse", _streaming_content, "streaming_content"),
            ("django.http.response:StreamingHttpResponse", Probed(Probe(_enter, _leave, _leave, 1)), "__iter__"),
        )


def _wsgi_handler(original: Any) -> Any:
    def respond(self: Any, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        response = original(self, environ, start_response)
        exchange = environ.get(wsgi.KEY)
        try:
            # What Django iterates: a subclass may do anything for `content`. Streams and the file wrapper of the server have none.
            container = getattr(response, "__dict__", {}).get("_container")
            if exchange is not None and type(container) is list:
                exchange.hand_over_all(sum(map(len, container)))
        except Exception:
            log_failure("timing a response")
        return response

    def __call__(self: Any, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:  # noqa: N807 - shown in tracebacks
        return wsgi.serve(respond, self, environ, start_response)

    return __call__


def _streaming_content(original: Any) -> Any:
    def streaming_content(self: Any) -> Any:
        parts = original(self)
        if wsgi.exchange_of(self) is not None:
            return parts if self.is_async else wsgi.stepped(parts, self)
        if current.get() is None:
            return parts
        # Under ASGI.
        return relayed(parts, record_step) if self.is_async else map(_recorded_next, itertools.repeat(parts))

    return streaming_content


def _recorded_next(parts: Any) -> Any:
    started = clock()
    try:
        return next(parts)
    finally:
        record_step(started)


# Django consumes an asynchronous stream before a server of WSGI gets its first part.
def _enter(response: Any) -> tuple[wsgi.WsgiExchange, Any, int] | None:
    exchange = wsgi.exchange_of(response)
    return None if exchange is None else (exchange, current.set(exchange.marks), exchange.begin_parts())


def _leave(opened: tuple[wsgi.WsgiExchange, Any, int] | None, _: Any) -> None:
    if opened is not None:
        exchange, token, started = opened
        end(token)
        exchange.end_parts(started)


def _resolving(_: Any, request: Any) -> Any:
    return request


def _name_route(request: Any, match: Any) -> None:
    try:
        exchange = _exchange_of(request)
        if exchange is not None:
            exchange.name("/" + match.route)
    except Exception:
        log_failure("naming a route")


def _view(original: Any) -> Any:
    def make_view_atomic(self: Any, view: Any) -> Any:
        atomic_view = original(self, view)
        if current.get() is None or not is_users_code(view):
            return atomic_view
        # Awaited or called by the loop or thread that Django chooses for it.
        is_async = sys.modules["django.core.handlers.base"].iscoroutinefunction(atomic_view)
        return timed_handler(atomic_view, is_async=is_async)

    return make_view_atomic


def _name_error(request: Any, error: BaseException) -> None:
    try:
        exchange = _exchange_of(request)
        if exchange is not None:
            exchange.error_type = type(error).__qualname__
    except Exception:
        log_failure("naming an error")


def _exchange_of(request: Any) -> wsgi.WsgiExchange | asgi.AsgiExchange | None:
    environ = getattr(request, "environ", None)
    return environ.get(wsgi.KEY) if environ is not None else request.scope.get(asgi.KEY)
