"""urllib3, and requests, which makes its calls with urllib3.

The docstring of a class is the text of its page in the documentation.
"""
# All calls go through `urlopen` of a pool; it calls itself for a retry or a redirect. Bodies are read by three methods of
# the response, on which all others are built: one for plain bodies, two for chunked ones.

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from typing import Any
from urllib.parse import urlsplit

from ..instrumentor import Instrumentor, Probed, Target, timed
from ..records import Marks, clock, current
from .client_common import (
    DEPENDENCY,
    Read,
    RespondedCall,
    attach_call,
    body_probe,
    call_of,
    noted_lines,
    record_wait,
    trace_headers,
)


class Urllib3Instrumentor(Instrumentor):
    """urllib3: times calls as `dependency` and sends `traceparent`, also for the calls of requests and botocore.

    If the called server reports its times, these times become stages: see [server-reported times](../reported.md). Over HTTP/2,
    urllib3 reads the body with the headers, so the time of the call includes the body.
    """

    library = "urllib3"
    title = "urllib3"
    stages = {
        "dependency": "the time from the call until the response headers, with retries, redirects and the wait for "
        "a connection; and each read of the body from the network"
    }
    tested = {"urllib3": "2.8.0"}

    def targets(self) -> Iterable[Target]:
        return (
            ("urllib3.connectionpool:HTTPConnectionPool", _urlopen, "urlopen"),
            (
                "urllib3.response:HTTPResponse",
                Probed.until_end(_reading, 1),
                "_fp_read _update_chunk_length _handle_chunk",
            ),
            ("urllib3.response:HTTPResponse", body_probe(call_of), "data"),
        )


class RequestsInstrumentor(Instrumentor):
    """requests: times each complete call as `dependency`, including redirects.

    The [urllib3](urllib3.md) module times headers and body separately, and sends `traceparent`.
    If the called server reports its times, these times become stages: see [server-reported times](../reported.md).
    """

    library = "requests"
    title = "requests"
    stages = {
        "dependency": "the call with its redirects, authentication, hooks and body. With `stream=True`, only [urllib3](urllib3.md) times the body."
    }
    tested = {"requests": "2.34.2"}

    def targets(self) -> Iterable[Target]:
        return (
            # `resolve_redirects` calls this method for each further hop: those intervals lie inside this one.
            ("requests.sessions:Session", timed(DEPENDENCY), "send"),
            ("requests.models:Response", body_probe(_call_of), "content"),
            ("requests.models:Response", _iter_lines, "iter_lines"),
        )


# Whether this context is already inside a call. Not a thread local, which greenlets of a thread would share.
_inside: ContextVar[bool] = ContextVar("stagelens_urllib3", default=False)


def _urlopen(original: Any) -> Any:
    def urlopen(
        self: Any, method: Any, url: Any, body: Any = None, headers: Any = None, *args: Any, **options: Any
    ) -> Any:
        marks = current.get()
        if marks is None or _inside.get():
            return original(self, method, url, body, headers, *args, **options)
        host = _host(self, url)
        headers = _with_trace(self.headers if headers is None else headers, marks, host)
        token = _inside.set(True)
        started = clock()
        response = None
        try:
            response = original(self, method, url, body, headers, *args, **options)
            return response
        finally:
            record_wait(marks, started, host)
            _inside.reset(token)
            del token
            if response is not None and not _is_repeated(response):
                attach_call(response, response, marks, started)

    return urlopen


def _with_trace(headers: Any, marks: Marks, host: str) -> Any:
    # The library copies and changes them too, and says what is wrong where it cannot.
    if isinstance(headers, Mapping) and (added := trace_headers(headers, marks, host)):
        with contextlib.suppress(Exception):
            carrier: Any = headers.copy()  # type: ignore[attr-defined]
            carrier.update(added)
            return carrier
    return headers


def _host(pool: Any, url: Any) -> str:
    """Return the called host; a call over a proxy has it in its *url*."""
    try:
        return (urlsplit(url).hostname or "") if "://" in url else pool.host
    except Exception:
        # The library reports an invalid address better.
        return ""


def _is_repeated(response: Any) -> bool:
    """Return whether there were retries or redirects, because the server reports only the last attempt."""
    return bool(getattr(getattr(response, "retries", None), "history", ()))


def _reading(response: Any) -> Read | None:
    marks = current.get()
    return None if marks is None else Read(marks, call_of(response))


def _call_of(response: Any) -> RespondedCall | None:
    return call_of(getattr(response, "raw", None))


def _iter_lines(original: Any) -> Any:
    def iter_lines(self: Any, *args: Any, **options: Any) -> Any:
        return noted_lines(original(self, *args, **options), _call_of(self))

    return iter_lines
