"""Flask: counts requests, and times `framework`, `handler`, `serialize`, `network` and `queue`.

- Each call of the outermost application counts as one request. The request ends after the last part of the response body.
- The route is the URL rule, including the prefix of the blueprint. A prefix from `DispatcherMiddleware` is not part of the route.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType, ModuleType
from typing import Any

from ..instrumentor import Hook, Instrumentor, log_failure, timed
from ..records import MAX_MARKS, clock, current
from .server_common import is_users_code
from .wsgi import KEY, Environ, StartResponse, close, serve, step


class FlaskInstrumentor(Instrumentor):
    """Instrumentor of `flask.Flask` and its subclasses, under any WSGI server."""

    library = "flask"
    title = "Flask"
    stages = MappingProxyType(
        {
            "framework": "the time outside the view, such as `before_request` functions",
            "handler": "the view function, and each slow step of a generator that it returns",
            "network": "the reading of the body, and the sending of the response",
            "queue": "the wait after a proxy has set the header `X-Request-Start`; and the wait for a thread of gunicorn's pool",
            "serialize": "calls of `Request.get_json`, `Request.form`, `jsonify` and `app.json`, and the conversion of a "
            "view's return value to a response",
        }
    )
    facts = ("method", "first_token", "gap")
    not_timed = (
        "websockets",
        "the sending of a body that a WSGI middleware returns as a list",
        'templates. To time them, wrap `render_template` in `stagelens.stage("postprocess")`.',
        "`json.loads(request.data)` in a view. Use `request.get_json()` instead. Stagelens times this call.",
    )
    tested = MappingProxyType({"flask": "3.1.3", "werkzeug": "3.1.9", "gunicorn": "27.0.1", "gevent": "26.9.0"})

    def hooks(self) -> Mapping[str, Hook]:
        """Return the patch functions by module."""
        return {
            "flask.app": self._app,
            "flask.json.provider": self._provider,
            "werkzeug.wrappers.request": self._request,
            "werkzeug.wsgi": self._bodies,
        }

    def _app(self, module: ModuleType) -> None:
        # A server that calls `app.wsgi_app` bypasses `__call__`.
        self.replace(module.Flask, "__call__", _application)
        self.replace(module.Flask, "wsgi_app", _application)
        self.replace(module.Flask, "full_dispatch_request", _dispatch)
        self.replace(module.Flask, "dispatch_request", _view)
        self.replace(module.Flask, "handle_exception", _handle_exception)
        self.replace(module.Flask, "make_response", timed("serialize"))

    def _provider(self, module: ModuleType) -> None:
        # A custom provider may override either; `response` and `Request.get_json` call both.
        self.replace(module.DefaultJSONProvider, "loads", timed("serialize"))
        self.replace(module.DefaultJSONProvider, "dumps", timed("serialize"))
        for provider in (module.JSONProvider, module.DefaultJSONProvider):
            self.replace(provider, "response", timed("serialize"))

    def _request(self, module: ModuleType) -> None:
        self.replace(module.Request, "get_json", _get_json)
        self.replace(module.Request, "_load_form_data", timed("serialize"))

    def _bodies(self, module: ModuleType) -> None:
        for name in ("ClosingIterator", "FileWrapper", "_RangeWrapper"):
            self.replace(getattr(module, name), "__next__", step)
            self.replace(getattr(module, name), "close", close)


def _application(original: Any) -> Any:
    def application(self: Any, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        return serve(original, self, environ, start_response)

    return application


def _dispatch(original: Any) -> Any:
    # Later versions of Flask pass the request context as an argument.
    def full_dispatch_request(self: Any, *context: Any, **named: Any) -> Any:
        try:
            _name_route()
        except Exception:
            log_failure("naming a route")
        return original(self, *context, **named)

    return full_dispatch_request


def _view(original: Any) -> Any:
    handled = timed("handler")(original)

    def dispatch_request(self: Any, *context: Any, **named: Any) -> Any:
        return (handled if _has_view(self) else original)(self, *context, **named)

    return dispatch_request


def _has_view(app: Any) -> bool:
    """Return whether the running request matches a view of the user."""
    try:
        from flask import request  # noqa: PLC0415 - see _name_route

        rule = request.url_rule
        return rule is not None and is_users_code(app.view_functions.get(rule.endpoint))
    except Exception:
        log_failure("timing a view")
        return False


def _handle_exception(original: Any) -> Any:
    # The exception is the last argument in every version, and is named "e".
    def handle_exception(self: Any, *context_and_error: Any, **named: Any) -> Any:
        try:
            _name_error(named["e"] if "e" in named else context_and_error[-1])
        except Exception:
            log_failure("naming an error")
        return original(self, *context_and_error, **named)

    return handle_exception


def _get_json(original: Any) -> Any:
    def get_json(self: Any, force: bool = False, silent: bool = False, cache: bool = True) -> Any:
        marks = current.get()
        # Repeated calls of a view return the cached value.
        if marks is None or "_cached_json" in vars(self):
            return original(self, force, silent, cache)
        started = clock()
        try:
            return original(self, force, silent, cache)
        finally:
            if len(marks) < MAX_MARKS:
                marks.extend(("serialize", started, clock()))

    return get_json


def _name_route() -> None:
    from flask import request  # noqa: PLC0415 - imported by the time an application is called

    exchange = request.environ.get(KEY)
    if exchange is not None and request.url_rule is not None:
        exchange.name(request.url_rule.rule)


def _name_error(error: BaseException) -> None:
    from flask import request  # noqa: PLC0415 - see _name_route

    exchange = request.environ.get(KEY)
    if exchange is not None:
        exchange.error_type = type(error).__qualname__
