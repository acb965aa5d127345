"""Calls of Triton's clients: sync, awaited, by greenlet or by callback, with `serialize`, `network` and the outcome.

While the client works, the request is not in the context: our instrumentation of the HTTP or gRPC library would time
the same wait again. `calling` replaces it where the client builds its request.
"""

from __future__ import annotations

import inspect
from contextlib import suppress
from contextvars import ContextVar, Token
from typing import Any, Final, TypeAlias

from ...instrumentor import Probed, log_failure
from ...probes import Probe
from ...records import Marks, clock, current, has_capacity
from ...trace_context import TRACESTATE, traceparent, tracestate_to_target
from .. import catalog
from .statistics import Averaged, Server

# Outcome by status of HTTP and gRPC: queue full or server unavailable, timeout, cancelled.
OUTCOMES = {
    "503": "rejected",
    "StatusCode.UNAVAILABLE": "rejected",
    "StatusCode.DEADLINE_EXCEEDED": "timeout",
    "StatusCode.CANCELLED": "cancelled",
}

# Attribute of a client that holds its server.
SERVER = "_stagelens_server"

calling: ContextVar[Call | None] = ContextVar("stagelens_triton_call", default=None)
# First HTTP status of an error.
CLIENT_ERROR = 400
# Position of `headers` among the arguments of `async_infer` after the model version, for positional calls.
HEADERS = 7


class Call:
    __slots__ = ("_ended", "marks", "model", "sent", "server", "started", "version")

    def __init__(self, marks: Marks, client: Any, model: str, version: str) -> None:
        self.marks = marks
        self.server: Server | None = getattr(client, SERVER, None)
        self.model = model
        self.version = version
        self.started = self.sent = clock()
        self._ended = False

    def serialized(self, started: int) -> None:
        self.sent = clock()
        if has_capacity(self.marks):
            self.marks.extend(("serialize", started, self.sent))

    def end(self, error: BaseException | None, status: str = "") -> None:
        """Record the wait and the outcome once; an *error* or a failure *status* marks the call as failed."""
        arrived = clock()
        if self._ended or not has_capacity(self.marks):
            return
        self._ended = True
        try:
            self.marks.extend(("network", self.started, arrived))
            self.settle(arrived, error, status)
        except Exception:
            log_failure("timing a call of tritonclient")

    def settle(self, arrived: int, error: BaseException | None, status: str = "") -> None:
        self.marks.extend(("@model", self.model, 0))
        if self.version:
            self.marks.extend(("@model_version", self.version, 0))
        if error is not None or status:
            self.marks.extend(("@failed", f"triton:{outcome(error, status)}", arrived - self.started))
        elif self.server is not None:
            late = Averaged(self.server, self.model, self.version, self.sent, arrived)
            self.marks.extend(("@late", late, 0))


Tokens: TypeAlias = tuple[Token[Marks | None], Token[Call | None]]


def enter(call: Call) -> Tokens:
    return current.set(None), calling.set(call)


def leave(tokens: Tokens) -> None:
    """Restore the request in the context; tokens of another one (a coroutine was closed there), or that were used, have no effect."""
    marks, call = tokens
    with suppress(RuntimeError, ValueError):
        current.reset(marks)
    with suppress(RuntimeError, ValueError):
        calling.reset(call)


class Sending:
    """The work of the client on a call: the request is not in the context, and an exception ends the call."""

    __slots__ = ("_call", "_tokens")

    def __init__(self, call: Call) -> None:
        self._call, self._tokens = call, enter(call)

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is not None:
            self.end(error)
        else:
            leave(self._tokens)

    def end(self, error: BaseException | None) -> None:
        try:
            self._call.end(error)
        finally:
            leave(self._tokens)


class Headers(dict[str, Any]):
    """Copy of the user's headers that also refers to the call, for a greenlet, which does not have the context of the request."""

    call: Call


def _add_trace(_client: Any, request: Any) -> None:
    call = calling.get() or getattr(request.headers, "call", None)
    if call is None:
        return
    try:
        present = {name.lower() for name in request.headers}
        if "traceparent" not in present and (ours := traceparent(call.marks)):
            added = {"traceparent": ours}
            if TRACESTATE not in present and call.server and (state := tracestate_to_target(call.server.url)):
                added[TRACESTATE] = state
            request.headers = {**request.headers, **added}
    except Exception:
        # The client reports invalid headers better.
        if isinstance(request.headers, dict):
            log_failure("adding traceparent to a call of tritonclient")


# All clients ask for the plugin's headers with it before they send.
ADD_TRACE: Final = Probed(Probe(_add_trace, parameters=2))


def outcome(error: BaseException | None, status: str = "") -> str:
    """Return the outcome of a failed call: "rejected", "timeout", "cancelled" or else "error".

    >>> outcome(TimeoutError()), outcome(None, "503"), outcome(ValueError())
    ('timeout', 'rejected', 'error')
    """
    if not status and callable(ask := getattr(error, "status", None)):
        status = str(ask())
    return OUTCOMES.get(status) or catalog.outcome(error)


def init(original: Any, protocol: str) -> Any:
    signature = inspect.signature(original)

    def __init__(self: Any, *args: Any, **options: Any) -> None:  # noqa: N807 - shown in tracebacks
        original(self, *args, **options)
        try:
            arguments = signature.bind(self, *args, **options).arguments
            del arguments["self"]
            setattr(self, SERVER, Server(protocol, arguments["url"], arguments))
        except Exception:
            log_failure("recording the server of a client of tritonclient")

    return __init__


def _begin(client: Any, model_name: Any, _inputs: Any, model_version: Any) -> Sending | None:
    marks = current.get()
    return None if marks is None else Sending(Call(marks, client, model_name or "", model_version or ""))


def _responded(sending: Sending | None, _response: object) -> None:
    if sending is not None:
        sending.end(None)


def _failed(sending: Sending | None, error: BaseException) -> None:
    if sending is not None:
        sending.end(error)


# Of the clients for threads and for asyncio.
INFER: Final = Probed(Probe(_begin, _responded, _failed, parameters=4))


def async_infer_http(original: Any) -> Any:
    """Wrap `async_infer`, whose call ends when its greenlet has the response (`post`)."""

    def async_infer(
        self: Any, model_name: Any, inputs: Any, model_version: Any = "", *args: Any, **options: Any
    ) -> Any:
        marks = current.get()
        if marks is None:
            return original(self, model_name, inputs, model_version, *args, **options)
        call = Call(marks, self, model_name, model_version)
        if len(args) > HEADERS:
            args = (*args[:HEADERS], _with_call(call, args[HEADERS]), *args[HEADERS + 1 :])
        else:
            options["headers"] = _with_call(call, options.get("headers"))
        with Sending(call):
            return original(self, model_name, inputs, model_version, *args, **options)

    return async_infer


def _with_call(call: Call, given: Any) -> Any:
    try:
        headers = Headers(given or {})
    except Exception:
        # The client reports invalid headers better.
        return given
    headers.call = call
    return headers


def post(original: Any) -> Any:
    def _post(self: Any, request_uri: Any, request_body: Any, headers: Any, query_params: Any) -> Any:
        if not isinstance(headers, Headers):
            return original(self, request_uri, request_body, headers, query_params)
        call = headers.call
        # In a greenlet of `async_infer`, which does not have the context of the request.
        try:
            response = original(self, request_uri, request_body, headers, query_params)
        except BaseException as error:
            call.end(error)
            raise
        call.end(None, _failure(response))
        return response

    return _post


def _failure(response: Any) -> str:
    try:
        return str(response.status_code) if response.status_code >= CLIENT_ERROR else ""
    except Exception:
        log_failure("reading the status of a response to tritonclient")
        return ""


def get_result(original: Any) -> Any:
    def get_result(self: Any, block: Any = True, timeout: Any = None) -> Any:
        marks = current.get()
        if marks is None:
            return original(self, block, timeout)
        started = clock()
        try:
            return original(self, block, timeout)
        except BaseException:
            _gave_up(marks, self, started)
            raise
        finally:
            if has_capacity(marks):
                marks.extend(("network", started, clock()))

    return get_result


def _gave_up(marks: Marks, handle: Any, started: int) -> None:
    try:
        if not handle._greenlet.ready() and has_capacity(marks):  # noqa: SLF001 - there is no public name for it
            marks.extend(("@failed", "triton:timeout", clock() - started))
    except Exception:
        log_failure("checking whether a call of tritonclient is done")


def async_infer_grpc(original: Any) -> Any:
    """Wrap `async_infer`: its callback ends the call and runs in the context of the request."""

    def async_infer(
        self: Any, model_name: Any, inputs: Any, callback: Any, model_version: Any = "", *args: Any, **options: Any
    ) -> Any:
        marks = current.get()
        if marks is None:
            return original(self, model_name, inputs, callback, model_version, *args, **options)
        call = Call(marks, self, model_name, model_version)

        # Called on a thread of gRPC.
        def done(result: Any, error: Any) -> None:
            call.end(error)
            token = current.set(marks)
            try:
                callback(result=result, error=error)
            finally:
                current.reset(token)
                del token

        with Sending(call):
            return original(self, model_name, inputs, done, model_version, *args, **options)

    return async_infer


def building(original: Any) -> Any:
    def _get_inference_request(*args: Any, **options: Any) -> Any:
        call = calling.get()
        if call is None:
            return original(*args, **options)
        started = clock()
        try:
            return original(*args, **options)
        finally:
            call.serialized(started)

    return _get_inference_request
