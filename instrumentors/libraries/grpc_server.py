"""gRPC server: counts calls as requests, and times `framework`, `handler`, `serialize`, `network` and `queue`.

- Each call counts as one request, of a server from `grpc.server` and from `grpc.aio.server`. The route is the full name of the
  method, such as `inference.Model/Predict`. Calls of methods that the server does not have share one route.
- A request failed if its status is `UNKNOWN`, `DEADLINE_EXCEEDED`, `UNIMPLEMENTED`, `INTERNAL`, `UNAVAILABLE` or `DATA_LOSS`, as in
  OpenTelemetry. A call that the client cancelled before its deadline counts as cancelled.
- `traceparent`, `tracestate`, `x-force-trace`, and with `STAGELENS_TRUSTED_PROXIES=*` `x-request-start` are read from the metadata.
"""
# Private functions of grpc._server run on the thread that needs them: arrival and interceptors on the thread of the completion
# queue, the rest on a thread of the pool. The asyncio server is compiled, so two interceptors record its calls: the first one
# has the whole call, and the last one has the method of the user.

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import inspect
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextvars import ContextVar
from threading import get_ident
from types import ModuleType
from typing import Any

from ...core.stages import FRAMEWORK
from .. import named_attributes, scripts
from ..instrumentor import MIN_CALL_NS, Hook, Instrumentor, LongCall, Probed, Target, log_failure, timed, timed_call
from ..probes import Probe
from ..recorder import abandon, begin, end
from ..recorder_state import state
from ..records import ROUTE, START, Marks, clock, has_capacity
from ..stalls import watch_loop
from .proxy_waits import trusted_wait_ns
from .server_common import (
    MIN_CHUNK_NS,
    UNMATCHED,
    Exchange,
    as_handler,
    is_users_code,
    record_request_head,
    timed_callable,
)
from .streams import ResponseStream

# Errors of a server: https://opentelemetry.io/docs/specs/semconv/rpc/grpc/
FAILURES = frozenset({"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"})
DEADLINE = "DEADLINE_EXCEEDED"
# The client has cancelled the call, before its deadline.
GONE = "CANCELLED"
# The client cancels the call at its deadline, which arrives rounded up, and before that of the server by the time on the network.
DEADLINE_TOLERANCE_SECONDS = 0.15
_READ = frozenset({"traceparent", "tracestate", "x-request-start", "x-force-trace"})
# Exceptions that say nothing about the status: `context.abort`, and the client's end of the call.
_NO_ERRORS = frozenset({"", "AbortError", "CancelledError", "GeneratorExit"})


class GrpcExchange(Exchange):
    # Name of the status, and class of the exception behind it.
    code = error = ""
    # Start of the running method, of the wait for the only message of the request, and of the sending of the response; 0 for none.
    handling = _receiving = sending = 0
    # Context of a method of an asyncio server.
    context: Any = None
    # Thread or task of the call.
    owner: Any = None
    # Size of the messages of the request so far, None if not known. [bytes]
    request_bytes: int | None = None
    rest = FRAMEWORK

    def __init__(self, method: str, arrived: int) -> None:
        self.method = method
        self._arrived = self.start = self.submitted = arrived
        # Until a thread works on the call.
        self.marks = []

    def open(self, marks: Marks, metadata: Iterable[Any]) -> None:
        """Read the metadata into the new *marks*; the request starts with its arrival."""
        self.marks = marks
        pairs = tuple(metadata or ())
        head = {pair[0]: pair[1] for pair in pairs if pair[0] in _READ and isinstance(pair[1], str)}
        opened, marks[START] = marks[START], self._arrived
        # The address of the peer is not known here, so only `*` trusts it.
        waited = trusted_wait_ns(head.get("x-request-start", ""), tuple)
        forced = head.get("x-force-trace", "")
        tracestate = head.get("tracestate", "")
        self.start = record_request_head(marks, None, head.get("traceparent", ""), forced, waited, tracestate)
        if named_attributes.sources:
            given = {pair[0]: pair[1] for pair in pairs if isinstance(pair[1], str)}
            named_attributes.record_headers(marks, given.get)
        if opened > self.submitted:
            marks.extend(("queue", self.submitted, opened))
        marks[ROUTE] = self.template()
        if state.register is not None:
            state.register(marks, marks[ROUTE])

    def mark(self, stage: str, started: int, shortest: int = MIN_CALL_NS) -> None:
        now = clock()
        if now - started >= shortest and has_capacity(self.marks):
            self.marks.extend((stage, started, now))

    def receive(self) -> None:
        self._receiving = clock()

    def received(self) -> None:
        started, self._receiving = self._receiving, 0
        if started:
            self.mark("network", started)

    def enter(self, context: Any, behavior: Any) -> None:
        self.received()
        self.context = context
        if is_users_code(behavior):
            self.handling = clock()

    def end_handler(self) -> None:
        started, self.handling = self.handling, 0
        if started:
            self.mark("handler", started, 0)

    def hand_over(self, at: int, message: Any) -> None:
        """Record the sending of a *message* at the time *at*; an empty one only keeps the call open."""
        if self.stream is None:
            self.stream = ResponseStream()
        self.stream.add(at, message)

    def sized(self, message: Any) -> Any:
        if isinstance(message, bytes):
            self.size = (self.size or 0) + len(message)
        return message

    def finish(self, ended: int) -> None:
        self.end_handler()
        if self.request_bytes is not None:
            self.marks.extend(("@request_size", self.request_bytes, 0))
        if self.stream is None and self.sending:
            self.marks.extend(("network", self.sending, ended))
        self.ended, self.gone = ended, self.code == GONE
        self.complete(self.error or self.code if self.code in FAILURES else "")

    def template(self) -> str:
        return self.method.lstrip("/")


# Call of the running task of an asyncio server.
_exchange: ContextVar[GrpcExchange | None] = ContextVar("stagelens_grpc_exchange", default=None)


class GrpcServerInstrumentor(Instrumentor):
    library = "grpc"
    title = "gRPC (server)"
    stages = {
        "framework": "the time outside the method, such as interceptors",
        "handler": "the method of the servicer, and each slow step of a generator that it returns",
        "network": "the wait for the messages of the request, and the sending of the response",
        "queue": "the wait for a thread of the pool; and the wait after a trusted proxy has set `x-request-start`",
        "serialize": "the parsing of messages into protobuf objects, and the serialization of the response",
    }
    facts = ("first_token", "gap")
    not_timed = (
        "`context.read` and `context.write` of a method of `grpc.aio`: their time is `handler`",
        "the status that a method without `async` sets on a server of `grpc.aio`: its exceptions count, its `abort` does not",
        "methods of the experimental non-blocking API",
    )
    tested = {"grpcio": "1.85.1"}

    def targets(self) -> Iterable[Target]:
        return (
            ("grpc._server", _find_method_handler, "_find_method_handler"),
            ("grpc._server", _reject_rpc, "_reject_rpc"),
            ("grpc._server", _in_pool, "_unary_response_in_pool _stream_response_in_pool"),
            ("grpc._server", _abort, "_abort"),
            ("grpc._server", _unary_request, "_unary_request"),
            ("grpc._server:_RequestIterator", Probed.until_end(_next, 1), "_next"),
            ("grpc._server", _receive_message, "_receive_message"),
            ("grpc._server", _serialize_response, "_serialize_response"),
            ("grpc._server", _send_response, "_send_response"),
            ("grpc._server:_interceptor", _service_pipeline, "service_pipeline"),
        )

    def hooks(self) -> Mapping[str, Hook]:
        return {**super().hooks(), "grpc.aio._server": self._aio}

    def _aio(self, module: ModuleType) -> None:
        first = type("StagelensCall", (module.ServerInterceptor,), {"intercept_service": _intercept_call})
        last = type("StagelensMethod", (module.ServerInterceptor,), {"intercept_service": _intercept_method})

        def make(original: Any) -> Any:
            def __init__(  # noqa: N807 - shown in tracebacks
                self: Any, thread_pool: Any, generic_handlers: Any, interceptors: Any, *rest: Any, **named: Any
            ) -> None:
                original(self, thread_pool, generic_handlers, (first(), *(interceptors or ()), last()), *rest, **named)

            return __init__

        self.replace(module.Server, "__init__", make)
        self.replace(module.Server, "start", Probed(Probe(_starting)))


def _find_method_handler(original: Any) -> Any:
    def _find_method_handler(rpc_event: Any, state: Any, method_with_handler: Any, *rest: Any, **named: Any) -> Any:
        exchange = None
        try:
            name = method_with_handler.name() or rpc_event.call_details.method.decode()
            exchange = state.stagelens = GrpcExchange(name, clock())
            state.callbacks.append(lambda: _note_end(state, rpc_event))
        except Exception:
            log_failure("timing a call of a gRPC server")
        try:
            return original(rpc_event, state, method_with_handler, *rest, **named)
        finally:
            if exchange is not None:
                exchange.submitted = clock()

    return _find_method_handler


def _note_end(state: Any, rpc_event: Any) -> None:
    exchange = vars(state).get("stagelens")
    if exchange is None or exchange.code or not _is_gone(state):
        return
    if rpc_event.call_details.deadline - time.time() <= DEADLINE_TOLERANCE_SECONDS:
        exchange.code = DEADLINE


def _reject_rpc(original: Any) -> Any:
    def _reject_rpc(rpc_event: Any, rpc_state: Any, status: Any, *rest: Any, **named: Any) -> Any:
        exchange: GrpcExchange | None = vars(rpc_state).get("stagelens")
        opened = None if exchange is None else begin()
        if exchange is not None and opened is not None:
            end(opened[1])
            try:
                exchange.open(opened[0], rpc_event.invocation_metadata)
                exchange.code, exchange.error = _name(status), _class_of(sys.exception())
                if exchange.code == "UNIMPLEMENTED":
                    # The request of a client for what does not exist is no failure of the service.
                    exchange.method, exchange.code = UNMATCHED, ""
                exchange.finish(clock())
            except Exception:
                log_failure("recording a rejected call of a gRPC server")
        return original(rpc_event, rpc_state, status, *rest, **named)

    return _reject_rpc


def _is_gone(state: Any) -> bool:
    return state.client is sys.modules["grpc._server"]._CANCELLED  # noqa: SLF001 - there is no public name for it


def _in_pool(original: Any) -> Any:
    def run(rpc_event: Any, state: Any, behavior: Any, *rest: Any, **named: Any) -> None:
        exchange: GrpcExchange | None = None
        if not hasattr(behavior, "experimental_non_blocking"):
            exchange = vars(state).get("stagelens")
        opened = None if exchange is None else begin()
        if exchange is None or opened is None:
            original(rpc_event, state, behavior, *rest, **named)
            return
        marks, token = opened
        try:
            exchange.owner = get_ident()
            exchange.open(marks, rpc_event.invocation_metadata)
        except Exception:
            log_failure("timing a call of a gRPC server")
        try:
            original(rpc_event, state, behavior, *rest, **named)
        finally:
            ended = clock()
            end(token)
            try:
                if not exchange.code:
                    exchange.code = GONE if _is_gone(state) else _name(state.code)
                exchange.finish(ended)
            except Exception:
                log_failure("recording a call of a gRPC server")
            # The thread may keep the state of its last call.
            state.stagelens = None

    return run


def _abort(original: Any) -> Any:
    def _abort(state: Any, call: Any, code: Any, *rest: Any, **named: Any) -> None:
        exchange = vars(state).get("stagelens")
        try:
            if exchange is not None and not exchange.code:
                exchange.code = _name(code if state.code is None else state.code)
                # Called while the exception is handled, if there is one. That of `context.abort` says nothing.
                exchange.error = "" if state.aborted else _class_of(sys.exception()) or exchange.error
        except Exception:
            log_failure("naming the error of a gRPC server")
        original(state, call, code, *rest, **named)

    return _abort


def _class_of(error: BaseException | None) -> str:
    return "" if error is None else type(error).__qualname__


def _name(code: Any) -> str:
    # Every server imports it, but a process with asyncio servers only does not import `grpc._server`.
    status = sys.modules["grpc._common"].CYGRPC_STATUS_CODE_TO_STATUS_CODE.get(code, code)
    return getattr(status, "name", "" if status is None else "UNKNOWN")


def _unary_request(original: Any) -> Any:
    def _unary_request(*args: Any, **named: Any) -> Any:
        return timed("network")(original(*args, **named))

    return _unary_request


def _next(iterator: Any) -> LongCall | None:
    exchange = vars(iterator._state).get("stagelens")  # noqa: SLF001 - there is no public name for it
    # The method may work while another thread waits for messages.
    return None if exchange is None or exchange.owner != get_ident() else LongCall(exchange.marks, "network")


def _receive_message(original: Any) -> Any:
    # Called on the thread that waits for the message; the message is deserialized on that of the completion queue.
    def _receive_message(state: Any, call: Any, request_deserializer: Any) -> Any:
        exchange = vars(state).get("stagelens")
        if exchange is None or not exchange.marks:
            return original(state, call, request_deserializer)
        return original(state, call, _receiving(exchange, request_deserializer))

    return _receive_message


def _receiving(exchange: GrpcExchange, deserializer: Any) -> Any:
    recorded = _recorded(exchange, deserializer)
    if recorded is None:
        return None

    def call(message: Any) -> Any:
        if isinstance(message, bytes):
            exchange.request_bytes = (exchange.request_bytes or 0) + len(message)
        return recorded(message)

    return call


def _recorded(exchange: GrpcExchange, convert: Any) -> Any:
    if convert is None:
        return None

    def call(message: Any) -> Any:
        exchange.received()
        started = clock()
        try:
            return convert(message)
        except BaseException as error:
            exchange.error = _class_of(error)
            raise
        finally:
            exchange.mark("serialize", started)

    return call


def _serialize_response(original: Any) -> Any:
    timed_original = timed_call("serialize")(original)

    def _serialize_response(rpc_event: Any, state: Any, *rest: Any, **named: Any) -> Any:
        serialized = timed_original(rpc_event, state, *rest, **named)
        exchange = vars(state).get("stagelens")
        return serialized if exchange is None else exchange.sized(serialized)

    return _serialize_response


def _send_response(original: Any) -> Any:
    def _send_response(rpc_event: Any, state: Any, serialized_response: Any) -> Any:
        exchange = vars(state).get("stagelens")
        if exchange is None:
            return original(rpc_event, state, serialized_response)
        started = clock()
        try:
            return original(rpc_event, state, serialized_response)
        finally:
            exchange.hand_over(started, serialized_response)
            exchange.mark("network", started, MIN_CHUNK_NS)

    return _send_response


class MethodInterceptor:
    @staticmethod
    def intercept_service(continuation: Callable[[Any], Any], details: Any) -> Any:
        return _with_behavior(continuation(details), _timed_behavior)


def _service_pipeline(original: Any) -> Any:
    def service_pipeline(interceptors: Any) -> Any:
        return original((*(interceptors or ()), MethodInterceptor()))

    return service_pipeline


def _with_behavior(handler: Any, wrap: Callable[[Any], Any], *converters: Callable[[Any], Any]) -> Any:
    try:
        if handler is None:
            return None
        kind = "_".join(
            "stream" if is_stream else "unary" for is_stream in (handler.request_streaming, handler.response_streaming)
        )
        changes = {kind: _as_original(wrap, getattr(handler, kind))}
        for make, name in zip(converters, ("request_deserializer", "response_serializer"), strict=False):
            changes[name] = _as_original(make, getattr(handler, name))
        # That of gRPC is a named tuple, which may have further attributes.
        is_tuple = hasattr(handler, "_replace")
        twin = handler._replace(**changes) if is_tuple else copy.copy(handler)
        for name, value in (vars(handler) if is_tuple else changes).items():
            setattr(twin, name, value)
    except AttributeError:
        # The type forbids it.
        return handler
    except Exception:
        log_failure("timing a method of a gRPC server")
        return handler
    return twin


def _as_original(make: Callable[[Any], Any], original: Any) -> Any:
    replacement = make(original)
    return replacement if replacement is None or replacement is original else timed_callable(replacement, original)


def _timed_behavior(behavior: Any) -> Any:
    return as_handler(behavior, behavior) if is_users_code(behavior) else behavior


async def _intercept_call(_: Any, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
    exchange = _opened(details)
    _exchange.set(exchange)
    if exchange is None:
        return await continuation(details)
    try:
        handler = await continuation(details)
    except BaseException as error:
        exchange.error = _class_of(error)
        raise
    if handler is None:
        exchange.method = UNMATCHED
    exchange.receive()
    return handler


def _opened(details: Any) -> GrpcExchange | None:
    opened = begin()
    if opened is None:
        return None
    marks, token = opened
    try:
        exchange = GrpcExchange(details.method, marks[START])
        exchange.open(marks, details.invocation_metadata)
        task = exchange.owner = asyncio.current_task()
        # Ends the request: the task also sends the response.
        if task is not None:
            task.add_done_callback(functools.partial(_done, exchange))
    except Exception:
        abandon(token)
        log_failure("timing a call of a gRPC server")
        return None
    return exchange


def _done(exchange: GrpcExchange, _: Any) -> None:
    ended = clock()
    try:
        exchange.code = _outcome(exchange.context, exchange.error)
        if exchange.error in _NO_ERRORS:
            exchange.error = ""
    except Exception:
        log_failure("reading the status of a call to a gRPC server")
    try:
        exchange.finish(ended)
    except Exception:
        log_failure("recording a call of a gRPC server")


def _outcome(context: Any, error: str) -> str:
    code = ""
    if hasattr(context, "done"):
        if not context.done():
            # No status was sent, because the client is gone.
            remaining = context.time_remaining()
            return DEADLINE if remaining is not None and remaining <= DEADLINE_TOLERANCE_SECONDS else GONE
        code = _name(context.code())
    # Otherwise no method was called, or one without `async`, whose context does not know the status.
    return code if error in _NO_ERRORS or code not in {"", "OK"} else "UNKNOWN"


async def _intercept_method(_: Any, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
    handler = await continuation(details)
    exchange = _exchange.get()
    if exchange is None:
        return handler
    return _with_behavior(
        handler,
        lambda behavior: _aio_behavior(exchange, behavior),
        lambda deserializer: _receiving(exchange, deserializer),
        lambda serializer: _sending(exchange, serializer),
    )


def _sending(exchange: GrpcExchange, serializer: Any) -> Any:
    recorded = _recorded(exchange, serializer)
    if recorded is None:
        return None

    def call(message: Any) -> Any:
        try:
            return exchange.sized(recorded(message))
        finally:
            exchange.sending = clock()

    return call


def _aio_behavior(exchange: GrpcExchange, behavior: Any) -> Any:
    if inspect.isasyncgenfunction(behavior):

        async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
            exchange.enter(context, behavior)
            try:
                async with contextlib.aclosing(behavior(_incoming(exchange, request), context)) as messages:
                    async for message in messages:
                        started, before = clock(), exchange.size or 0
                        yield message
                        # Its size, once it is serialized.
                        exchange.hand_over(started, message if isinstance(message, bytes) else exchange.size != before)
                        exchange.mark("network", started, MIN_CHUNK_NS)
            except BaseException as error:
                exchange.error = _class_of(error)
                raise
            finally:
                exchange.end_handler()

        return stream
    if inspect.iscoroutinefunction(behavior):

        async def method(request: Any, context: Any) -> Any:
            exchange.enter(context, behavior)
            try:
                return await behavior(_incoming(exchange, request), context)
            except BaseException as error:
                exchange.error = _class_of(error)
                raise
            finally:
                exchange.end_handler()

        return method
    timed_behavior = _timed_behavior(behavior)

    def call(*arguments: Any) -> Any:
        try:
            return timed_behavior(*arguments)
        except BaseException as error:
            exchange.error = _class_of(error)
            raise

    return call


def _incoming(exchange: GrpcExchange, request: Any) -> Any:
    return IncomingMessages(exchange, request) if type(request).__name__ == "_MessageReceiver" else request


class IncomingMessages:
    __slots__ = ("_exchange", "_messages")

    def __init__(self, exchange: GrpcExchange, messages: Any) -> None:
        self._exchange = exchange
        self._messages = messages

    def __getattr__(self, name: str) -> Any:
        return getattr(self._messages, name)

    def __aiter__(self) -> IncomingMessages:
        return self

    async def __anext__(self) -> Any:
        # The method may work while another task waits for messages.
        waits = asyncio.current_task() is self._exchange.owner
        started = clock()
        try:
            return await self._messages.__anext__()
        finally:
            if waits:
                self._exchange.mark("network", started)


def _starting() -> None:
    watch_loop()
    scripts.turn_off()
