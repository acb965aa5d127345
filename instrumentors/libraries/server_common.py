"""Shared by the web servers: the headers of a request that are read, its route, and the timing of its handler.

The method and five headers of a request are read, and those that STAGELENS_ATTRIBUTES names:

- `traceparent`: the trace of the request.
- `tracestate`: the service that sent the request, if Stagelens names it there.
- `Content-Length`: the size of the body.
- `X-Request-Start`: its arrival at a proxy in STAGELENS_TRUSTED_PROXIES. It moves the start of the request back; the wait is `queue`.
- `X-Force-Trace`: forces the retention of its trace, if configured.
"""

from __future__ import annotations

import functools
import inspect
import re
import select
import socket
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator
from contextlib import aclosing
from types import FunctionType, GeneratorType, MethodType
from typing import Any, Final

from ...core import health_probes
from ..instrumentor import log_failure, timed, timed_async, unpatched
from ..recorder import finish
from ..records import ROUTE, START, Marks, clock, current, has_capacity, untimed
from ..trace_context import OWN_ENTRY, is_forced
from .streams import ResponseStream

# Writes into the buffer of the socket take less; recording each of them would fill the list without benefit.
MIN_CHUNK_NS = 50_000
# Frameworks whose endpoints are not the user's code.
_FRAMEWORKS = frozenset(
    {
        "_bentoml_impl",
        "_bentoml_sdk",
        "aiohttp",
        "bentoml",
        "django",
        "fastapi",
        "flask",
        "gradio",
        "grpc_health",
        "grpc_reflection",
        "kserve",
        "litserve",
        "mlserver",
        "ray",
        "starlette",
        "tornado",
    }
)
# What a relayed generator passes on when it ends, instead of a part.
ENDED: Final = object()
# Exactly these types: a subclass may do anything when it is iterated, and another iterable may be read only once.
COMPLETE: Final = frozenset({list, tuple})
# What a stand-in has of its own. `__del__` is for the original alone.
_OWN: Final = frozenset({"__class__", "__del__", "__getattr__", "__getattribute__", "__init__", "__new__"})
MAX_STAND_INS: Final = 64
# First status of HTTP for which there may be no route.
NOT_FOUND = 404
# The paths of an unknown framework: the first templates are routes of their own, the others share one.
MAX_TEMPLATES = 100
MAX_SEGMENTS = 8
OTHER_PATH = "__other__"
# A segment that is no part of a template: a number, one with many digits, a hash, a text of a client.
_VALUE = re.compile(r"\d+|(?:.*?\d){5}.*|[0-9a-fA-F-]{16,}|.{33,}|.*[^\w.~-].*", re.ASCII | re.DOTALL)
# First HTTP status that is a failure of the service.
FAILED = 500
# The methods of RFC 9110 and RFC 5789; a client may also send any other word.
METHODS = frozenset({"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"})
OTHER_METHOD = "_OTHER"
# Fact of a request whose client had gone before the response was complete.
CANCELLED: Final = ("@cancelled", 1, 0)
# Exceptions that end such a request, "" for none; any other one is a failure of the service.
DISCONNECTS: Final = frozenset(
    {
        "",
        "BrokenPipeError",
        "CancelledError",
        "ClientConnectionResetError",
        "ClientDisconnect",
        "ConnectionAbortedError",
        "ConnectionResetError",
        "GeneratorExit",
        "StreamClosedError",
    }
)
# Shortest duration of a request whose client is checked, which costs 2 µs: no client disconnects sooner. [nanoseconds]
MIN_CHECK_NS: Final = 1_000_000
_HANGUP: Final = getattr(select, "POLLRDHUP", 0)
# A client that closes its sending half so soon after its request still reads the response, as `nc -N` does. [milliseconds]
_HALF_CLOSE_MS: Final = 8
# Of the structure `tcp_info` of Linux: the times since the last data and the last packet of the client.
_LAST_RECEIVED: Final = struct.Struct("52x2I")


class NotCopied:
    """A value of a mapping that applications may copy and serialize: there it is None."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()


class Exchange(NotCopied):
    """State of one request of a server; finishes its record exactly once."""

    # Defaults in the class cost a request less than a call of an `__init__` of this class would.
    status = 0
    # Time of the last byte of the response, 0 before it.
    ended = 0
    stream: ResponseStream | None = None
    # Size of the response body so far, -1 if the server sends a file, None if not known. [bytes]
    size: Any = None
    # Whether the client has gone before the response was complete; whether the record was passed on.
    gone = finished = False
    # Class of an exception for which the framework has sent the response.
    error_type = ""
    route = ""

    def __init__(self, marks: Marks, rest: str) -> None:
        self.marks = marks
        # Stage of the time that nothing else covers.
        self.rest = rest
        self.start: int = marks[START]

    def template(self) -> str:
        return UNMATCHED

    def complete(self, error_type: str) -> None:
        """Finish the record of the request; repeated calls have no effect."""
        if self.finished:
            return
        self.finished = True
        marks, ended, status, route = self.marks, self.ended or clock(), self.status, self.route or UNMATCHED
        try:
            route = self.route or self.template()
            if self.stream is not None:
                marks.extend(self.stream.facts())
        except Exception:
            log_failure("describing a request")
        if not error_type and not 0 < status < FAILED:
            error_type = self.error_type
        if self.gone and is_cancelled(error_type, status):
            marks.extend(CANCELLED)
        if self.size is None:
            marks.extend((self.rest, marks[START], ended))
        else:
            marks.extend((self.rest, marks[START], ended, "@response_size", self.size, 0))
        finish(marks, self.start, ended, route, error_type, status)


def is_users_code(endpoint: object) -> bool:
    """Return whether the user wrote *endpoint*, which is no endpoint of a framework, such as that of its documentation."""
    module = getattr(endpoint, "__module__", None)
    return not isinstance(module, str) or module.partition(".")[0] not in _FRAMEWORKS


def relayed(parts: Any, after: Callable[[int, Any], None]) -> Any:
    return named_like((_relayed_async if hasattr(parts, "__anext__") else _relayed)(parts, after), parts)


def named_like(replacement: Any, original: Any) -> Any:
    try:
        replacement.__name__, replacement.__qualname__ = original.__name__, original.__qualname__
    except AttributeError:
        replacement.__name__ = replacement.__qualname__ = type(original).__name__
    return replacement


def called_like(replacement: Any, original: Any) -> Any:
    """Return the function *replacement* in place of the callable *original*, as which other code sees it."""
    # A function costs a call the least. That of a method may be any callable object.
    function = original.__func__ if type(original) is MethodType else original
    if type(function) is not FunctionType:
        return timed_callable(replacement, original)
    if function is not original:
        replacement.__self__ = original.__self__
    if function.__dict__:
        replacement.__dict__.update(function.__dict__)
    replacement.__module__, replacement.__name__, replacement.__qualname__ = (
        function.__module__,
        function.__name__,
        function.__qualname__,
    )
    return replacement


def readable(headers: Any) -> Any:
    """Return *headers* if they can be read without a change for others, else none."""
    return headers if type(headers) in COMPLETE else ()


def _relayed(parts: Any, after: Callable[[int, Any], None]) -> Generator[Any, Any, Any]:
    produce: Callable[[], Any] = parts.__next__
    while True:
        started, part = clock(), ENDED
        try:
            part = produce()
        except StopIteration as last:
            return last.value
        finally:
            after(started, part)
        try:
            sent = yield part
            produce = parts.__next__ if sent is None else functools.partial(parts.send, sent)
        except GeneratorExit:
            after(0, ENDED)
            parts.close()
            raise
        except BaseException as error:
            produce = functools.partial(parts.throw, error)


async def _relayed_async(parts: Any, after: Callable[[int, Any], None]) -> AsyncGenerator[Any, Any]:
    produce: Callable[[], Any] = parts.__anext__
    while True:
        started, part = clock(), ENDED
        try:
            part = await produce()
        except StopAsyncIteration:
            return
        finally:
            after(started, part)
        try:
            sent = yield part
            produce = parts.__anext__ if sent is None else functools.partial(parts.asend, sent)
        except GeneratorExit:
            after(0, ENDED)
            await parts.aclose()
            raise
        except BaseException as error:
            produce = functools.partial(parts.athrow, error)


def record_step(started: int, _: Any = None) -> None:
    marks, now = current.get(), clock()
    if started and marks is not None and now - started > MIN_CHUNK_NS and has_capacity(marks):
        marks.extend(("handler", started, now))


class _StandIn:
    # The original, and the function of `stand_in`.
    __slots__ = ("__weakref__", "state")
    state: Any

    def __getattribute__(self, name: str) -> Any:
        original, timed = _state(self)
        if name == "__signature__" and callable(original):
            return inspect.signature(original)
        attribute, call = getattr(original, name), timed(name)
        return attribute if call is None else timed_callable(call, attribute)


# Not by its name, which is one of the original.
_state, _set_state = _StandIn.state.__get__, _StandIn.state.__set__


def _special(name: str) -> Any:
    def method(self: Any, *args: Any, **options: Any) -> Any:
        original, timed = _state(self)
        call = timed(name)
        if call is None:
            is_class = isinstance(original, type)
            call = functools.partial(getattr(type(original), name), original) if is_class else getattr(original, name)
        result = call(*args, **options)
        return self if result is original else result

    return method


# By the id of the class, which may have no hash; each entry keeps its class.
_stand_ins: Final[dict[int, tuple[type[Any], Any]]] = {}


def _stand_in_class(kind: type[Any]) -> Any:
    entry = _stand_ins.get(id(kind))
    if entry is None:
        if len(_stand_ins) >= MAX_STAND_INS:
            _stand_ins.clear()
        entry = _stand_ins[id(kind)] = kind, _new_stand_in_class(kind)
    return entry[1]


def _new_stand_in_class(kind: type[Any]) -> Any:
    # Python looks up special methods in the class, whose `__dir__` may leave some out.
    members = {name: value for base in reversed(kind.__mro__) for name, value in vars(base).items()}
    names = [name for name, value in members.items() if name[:2] == name[-2:] == "__" and callable(value)]
    special = {name: _special(name) for name in names if name not in _OWN}
    return type(kind.__name__, (_StandIn,), {"__slots__": (), "__module__": kind.__module__, **special})


def stand_in(original: Any, timed: Callable[[str], Any]) -> Any:
    """Return an object that is *original* in all but its identity and what *timed* returns for the name of a method."""
    instance = _stand_in_class(type(original))()
    _set_state(instance, (original, timed))
    return instance


def timed_callable(call: Callable[..., Any], original: Any) -> Any:
    return stand_in(original, {"__call__": call}.get)


def timed_handler(handler: Any, *, is_async: bool) -> Any:
    timed_call = (timed_async if is_async else timed)("handler")(handler)
    if type(handler) is FunctionType:
        return functools.update_wrapper(timed_call, handler)
    return timed_callable(timed_call, handler)


def as_handler(call: Any, function: Any) -> Any:
    """Return *call* timed as `handler`, with each slow step of a generator."""
    if inspect.isasyncgenfunction(function):

        async def steps(*args: Any, **options: Any) -> AsyncIterator[Any]:
            async with aclosing(relayed(call(*args, **options), record_step)) as generator:
                async for step in generator:
                    yield step

        return steps
    if inspect.iscoroutinefunction(function):
        return timed_async("handler")(call)
    handled = timed("handler")(call)

    def handle(*args: Any, **options: Any) -> Any:
        result = handled(*args, **options)
        # Not `isgenerator`, which takes a proxy for what it is around.
        return relayed(result, record_step) if type(result) is GeneratorType else result

    return handle


# Route of a request that matched no route; its path is never used, but identifies a health probe.
UNMATCHED, unmatched_route = health_probes.UNMATCHED, health_probes.unmatched_route


def name_route(template: Any) -> None:
    """Name the running request after the *template* of a framework; for anything but a text, it keeps its name."""
    marks = current.get() or untimed.get()
    if marks is not None and template and isinstance(template, str):
        marks[ROUTE] = template


_templates: set[str] = set()


def route_of(marks: Marks, path: str, status: int, params: Any = None) -> str:
    """Return the route of a request whose exchange has no name for it: that of its framework, else a template of its *path*."""
    named = marks[ROUTE]
    if named and isinstance(named, str):
        return named
    if status == NOT_FOUND:
        return unmatched_route(path)
    names = {str(value): "{" + str(name) + "}" for name, value in params.items()} if isinstance(params, dict) else {}
    segments = path.split("/")
    template_segments = [
        names.get(segment) or ("{}" if _VALUE.fullmatch(segment) else segment)
        for segment in segments[: MAX_SEGMENTS + 1]
    ]
    template = "/".join(template_segments if len(segments) == len(template_segments) else [*template_segments, "…"])
    if template not in _templates:
        if len(_templates) >= MAX_TEMPLATES:
            return OTHER_PATH
        _templates.add(template)
    return template


def has_hung_up(connection: Any) -> bool | None:
    """Return whether the client, or the server for it, has closed *connection*, a socket.

    False if that is not known, and None if the client has only closed its sending half: then that is all that can be known.
    """
    try:
        number = connection.fileno()
        if number < 0:
            return True
        poll = unpatched("select", "poll")()
        poll.register(number, _HANGUP)
        events = poll.poll(0)
        return None if events and events[0][1] == _HANGUP and _still_reads(connection) else bool(events)
    except Exception:
        # No socket, or a system without `poll`.
        return False


def _still_reads(connection: Any) -> bool:
    try:
        head = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_RECEIVED.size)
        data, packet = _LAST_RECEIVED.unpack(head)
    except (OSError, struct.error):  # a Unix socket
        return False
    return data - packet <= _HALF_CLOSE_MS


def is_cancelled(error_type: str, status: int) -> bool:
    """Return whether a request whose client has gone was cancelled, not failed.

    >>> is_cancelled("", 200), is_cancelled("ClientDisconnect", 500), is_cancelled("ValueError", 500), is_cancelled("", 503)
    (True, True, False, False)
    """
    return error_type in DISCONNECTS and (bool(error_type) or status < FAILED)


def record_request_head(  # noqa: PLR0917 - positional, because keywords cost the request path more
    marks: Marks,
    method: str | None,
    traceparent: str,
    forced: str,
    waited_ns: int,
    tracestate: str = "",
    size: str = "",
    agent: str = "",
) -> int:
    arrived: int = marks[START]
    if method is not None:
        marks.extend(("@method", method if method in METHODS else OTHER_METHOD, 0))
    if traceparent:
        marks.extend(("@traceparent", traceparent, 0))
    if OWN_ENTRY in tracestate:
        marks.extend(("@caller", tracestate, 0))
    if size:
        marks.extend(("@request_size", size, 0))
    if agent and health_probes.is_known_agent(agent):
        marks.extend(("@user_agent", agent, 0))
    if forced and is_forced(forced):
        marks.extend(("@force", 1, 0))
    if waited_ns:
        marks.extend(("queue", arrived - waited_ns, arrived))
    return arrived - waited_ns
