"""Flask: counts requests, and times `framework`, `handler`, `serialize`, `network` and `queue`.

- Each call of the outermost application counts as one request. The request ends after the last part of the response body.
- The route is the URL rule, including the prefix of the blueprint. A prefix from `DispatcherMiddleware` is not part of the route.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from ..instrumentor import Instrumentor, Probed, Target, TimedCall, log_failure, timed
from ..probes import Probe
from ..records import current
from .server_common import is_users_code
from .wsgi import KEY, Environ, StartResponse, close, serve, step


class FlaskInstrumentor(Instrumentor):
    library = "flask"
    title = "Flask"
    stages = {
        "framework": "the time outside the view, such as `before_request` functions",
        "handler": "the view function, and each slow step of a generator that it returns",
        "network": "the reading of the body, and the sending of the response",
        "queue": "the wait after a trusted proxy has set the header `X-Request-Start`; and the wait for a thread of gunicorn's pool",
        "serialize": "calls of `Request.get_json`, `Request.form`, `jsonify` and `app.json`, and the conversion of a "
        "view's return value to a response",
    }
    facts = ("method", "first_token", "gap")
    not_timed = (
        "websockets",
        "the sending of a body that a WSGI middleware returns as a list",
        'templates. To time them, wrap `render_template` in `stagelens.stage("postprocess")`.',
        "`json.loads(request.data)` in a view. Use `request.get_json()` instead. Stagelens times this call.",
    )
    tested = {"flask": "3.1.3", "werkzeug": "3.1.9", "gunicorn": "27.0.1", "gevent": "26.9.0"}

    def targets(self) -> Iterable[Target]:
        return (
            # A server that calls `app.wsgi_app` bypasses `__call__`.
            ("flask.app:Flask", _application, "__call__ wsgi_app"),
            ("flask.app:Flask", Probed(Probe(_dispatching)), "full_dispatch_request"),
            ("flask.app:Flask", Probed.until_end(_calling_view, 1), "dispatch_request"),
            ("flask.app:Flask", Probed(Probe(_handling_exception)), "handle_exception"),
            ("flask.app:Flask", timed("serialize"), "make_response"),
            # A custom provider may override either; `response` and `Request.get_json` call both.
            ("flask.json.provider:DefaultJSONProvider", timed("serialize"), "loads dumps"),
            ("flask.json.provider:JSONProvider DefaultJSONProvider", timed("serialize"), "response"),
            ("werkzeug.wrappers.request:Request", Probed.until_end(_parsing_json, 1), "get_json"),
            ("werkzeug.wrappers.request:Request", timed("serialize"), "_load_form_data"),
            ("werkzeug.wsgi:ClosingIterator FileWrapper _RangeWrapper", step, "__next__"),
            ("werkzeug.wsgi:ClosingIterator FileWrapper _RangeWrapper", close, "close"),
        )


def _application(original: Any) -> Any:
    def application(self: Any, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        return serve(original, self, environ, start_response)

    return application


def _dispatching() -> None:
    try:
        _name_route()
    except Exception:
        log_failure("naming a route")


def _calling_view(app: Any) -> TimedCall | None:
    marks = current.get()
    return TimedCall(marks, "handler") if marks is not None and _has_view(app) else None


def _has_view(app: Any) -> bool:
    try:
        from flask import request  # noqa: PLC0415 - see _name_route

        rule = request.url_rule
        return rule is not None and is_users_code(app.view_functions.get(rule.endpoint))
    except Exception:
        log_failure("timing a view")
        return False


def _handling_exception() -> None:
    # Not the parameter, which is not the same one in every version.
    error = sys.exception()
    try:
        if error is not None:
            _name_error(error)
    except Exception:
        log_failure("naming an error")


def _parsing_json(request: Any) -> TimedCall | None:
    marks = current.get()
    # Repeated calls of a view return the cached value.
    return None if marks is None or "_cached_json" in vars(request) else TimedCall(marks, "serialize")


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
