"""gRPC client: times sync and asyncio calls as `dependency` and sends `traceparent` and `tracestate` in the metadata.

The time of a unary call with a future or with asyncio ends when the call completes. In a stream, the wait for the first message
includes the wait for the headers.
"""
# The objects at the bottom of a channel are patched, below all interceptors: no type changes, and metadata that an
# interceptor adds is visible.

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from .. import trace_context
from ..instrumentor import Instrumentor, Probed, Target, TimedCall, log_failure
from ..records import Marks, clock, current
from ..trace_context import TRACESTATE, tracestate_to_target
from .client_common import TRACEPARENT, HeadersWait, Read, record_wait

# Index of the metadata, after the request and the timeout, in all sync calls.
METADATA_POSITION = 2


class GrpcInstrumentor(Instrumentor):
    library = "grpc"
    title = "gRPC (client)"
    stages = {"dependency": "the time of a unary call until its response; in a stream, each wait for a message"}
    not_timed = ("the wait until a stream can send its next message", "interceptors")
    tested = {"grpcio": "1.85.1"}

    def targets(self) -> Iterable[Target]:
        return (
            ("grpc._channel:_UnaryUnaryMultiCallable _StreamUnaryMultiCallable", _blocking, "__call__ with_call"),
            ("grpc._channel:_UnaryUnaryMultiCallable _StreamUnaryMultiCallable", _future, "future"),
            # Returns immediately; each message of the response is a wait of its own.
            ("grpc._channel:_UnaryStreamMultiCallable _StreamStreamMultiCallable", _blocking, "__call__"),
            ("grpc._channel:_SingleThreadedUnaryStreamMultiCallable", _blocking, "__call__"),
            ("grpc._channel:_MultiThreadedRendezvous _SingleThreadedRendezvous", Probed.until_end(_next, 1), "_next"),
            # Base class of all four kinds of calls; created by the caller or in a task of the interceptors.
            ("grpc.aio._call:Call", _init, "__init__"),
            ("grpc.aio._call:_StreamResponseMixin", Probed.until_end(_read, 1), "_read"),
            ("grpc.aio._channel:Channel", _channel_init, "__init__"),
        )


def _blocking(original: Any) -> Any:
    def call(self: Any, *args: Any, **options: Any) -> Any:
        marks = current.get()
        if marks is None:
            return original(self, *args, **options)
        args = _with_trace(args, options, marks, self)
        started = clock()
        try:
            return original(self, *args, **options)
        finally:
            record_wait(marks, started, _target(self))

    return call


def _future(original: Any) -> Any:
    def future(self: Any, *args: Any, **options: Any) -> Any:
        marks = current.get()
        if marks is None:
            return original(self, *args, **options)
        args = _with_trace(args, options, marks, self)
        started = clock()
        try:
            call = original(self, *args, **options)
        except BaseException:
            record_wait(marks, started, _target(self))
            raise
        try:
            # Not `self`, which the callback would keep alive.
            _when_done(call, functools.partial(record_wait, marks, started, _target(self)))
        except Exception:
            log_failure("timing a future of gRPC")
        return call

    return future


def _when_done(call: Any, done: Callable[[], None]) -> None:
    # Not by `add_done_callback`, which keeps the future alive: gRPC cancels an unreferenced call.
    state = call._state  # noqa: SLF001 - there is no public name for it
    with state.condition:
        if state.code is None:
            state.callbacks.append(done)
            return
    done()


def _waiting(headers: object) -> TimedCall | None:
    marks = current.get()
    # The first message arrives with the headers.
    return None if marks is None else HeadersWait(marks) if headers is None else Read(marks)


def _next(call: Any) -> TimedCall | None:
    return _waiting(getattr(call._state, "initial_metadata", None))  # noqa: SLF001 - there is no public name for it


def _read(call: Any) -> TimedCall | None:
    return _waiting(getattr(call._cython_call, "_initial_metadata", None))  # noqa: SLF001 - there is no public name for it


def _init(original: Any) -> Any:
    unary = sys.modules["grpc.aio._call"]._UnaryResponseMixin  # noqa: SLF001 - there is no public name for it

    def __init__(self: Any, cython_call: Any, metadata: Any, *args: Any, **options: Any) -> None:  # noqa: N807 - shown in tracebacks
        marks = current.get()
        if marks is None:
            original(self, cython_call, metadata, *args, **options)
            return
        started = clock()
        original(self, cython_call, _carrying(metadata, marks, cython_call), *args, **options)
        if isinstance(self, unary):
            try:
                cython_call.add_done_callback(functools.partial(record_wait, marks, started, _target(cython_call)))
            except Exception:
                log_failure("timing a call of gRPC")

    return __init__


def _with_trace(args: tuple[Any, ...], options: dict[str, Any], marks: Marks, call: Any) -> tuple[Any, ...]:
    if len(args) <= METADATA_POSITION:
        options["metadata"] = _carrying(options.get("metadata"), marks, call)
        return args
    before, metadata, after = args[:METADATA_POSITION], args[METADATA_POSITION], args[METADATA_POSITION + 1 :]
    return *before, _carrying(metadata, marks, call), *after


def _carrying(metadata: Any, marks: Marks, call: Any) -> Any:
    # gRPC says what is wrong with anything else.
    if not isinstance(metadata or (), (Collection, Iterator)):
        return metadata
    # A copy, because an iterator can be read only once, and its exception is that of the call.
    pairs: tuple[Any, ...] = tuple(metadata or ())
    try:
        present = [pair[0] for pair in pairs if isinstance(pair, (tuple, list)) and pair]
        if TRACEPARENT in present:
            return pairs
        value = trace_context.traceparent(marks)
        if not value:
            return pairs or metadata
        tracestate = "" if TRACESTATE in present else tracestate_to_target(_target(call))
        state = ((TRACESTATE, tracestate),) if tracestate else ()
    except Exception:
        log_failure("propagating a trace")
        return metadata
    return (*pairs, (TRACEPARENT, value), *state)


def _target(call: Any) -> str | bytes:
    return getattr(call, "_target", None) or _aio_targets.get(id(getattr(call, "_channel", None)), "")


# Targets by the id of the Cython channel, to which calls refer and which has its target in new versions only.
_aio_targets: dict[int, str] = {}


def _channel_init(original: Any) -> Any:
    def __init__(self: Any, target: Any, *args: Any, **options: Any) -> None:  # noqa: N807 - shown in tracebacks
        original(self, target, *args, **options)
        try:
            key = id(self._channel)
            _aio_targets[key] = target
            weakref.finalize(self, _aio_targets.pop, key, None).atexit = False
        except Exception:
            log_failure("reading the target of a channel of gRPC")

    return __init__
