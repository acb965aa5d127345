"""Triton client: times `serialize`, `network`, and the stages that the server reports.

- The times of the server's stages are averages over its recent calls. A background thread reads the server's statistics.
- Stagelens sends `traceparent` with each call, except in a gRPC stream that was started outside of the request. If tracing is
  enabled in the server, the server's spans join the trace.
- Stagelens also counts rejected, cancelled and timed-out calls, because Triton does not count them.
- Stagelens is tested with version 2.51 of the Triton server (release 24.10).
"""
# `traceparent` is added to a copy of the user's `headers`, so that the single plugin slot of the client stays free.

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterable
from functools import partial
from typing import Any

from ....core.names import BY_TRITON_RESPONSE
from ...instrumentor import Instrumentor, Target, log_failure, timed
from ...records import OPEN, STATE, Marks, clock, current, has_capacity
from . import calls, statistics
from .calls import Call, Sending, enter, leave

FINAL = "triton_final_response"
STREAM = "_stagelens_stream"
# Limit of calls per stream without a last part; the oldest ones are ended.
MAX_CALLS = 64


class TritonClientInstrumentor(Instrumentor):
    library = "tritonclient"
    title = "Triton Inference Server (client)"
    stages = {
        "serialize": "calls of `set_data_from_numpy`, `as_numpy`; copies to and from system shared memory; and "
        "the creation of the request",
        "network": "for `infer`, `async_infer` and streams: the time from the call to its response, without the time "
        "that the server reports",
        "queue": "the average wait in the server",
        "h2d": "the average `compute_input` time of the server",
        "forward": "the average `compute_infer` time of the server",
        "d2h": "the average `compute_output` time of the server",
    }
    facts = ("model", "model_version", "first_token", "gap", "failed_calls")
    not_timed = (
        "the stages of the server for the first call to a model and for failed calls",
        "the stages of the server, if a proxy or PyTriton requires a custom header",
        "the stages of the server for clients that were created before `instrument()`. In these three cases, the whole call counts as `network`.",
        "compression and protobuf encoding as separate stages. Both count as `network`.",
        "CUDA shared memory",
        "the server spans of about 4 % of the calls over gRPC, because Triton 24.10 ignores their `traceparent`",
        "calls of several requests without `request_id` in one gRPC stream, because their responses cannot be matched",
    )
    tested = {"tritonclient": "2.73.0"}

    def targets(self) -> Iterable[Target]:
        yield "tritonclient._client:InferenceServerClientBase", calls.ADD_TRACE, "_call_plugin"
        for protocol in ("http", "grpc"):
            for module in (f"tritonclient.{protocol}._client", f"tritonclient.{protocol}.aio"):
                yield f"{module}:InferenceServerClient", calls.INFER, "infer"
                yield f"{module}:InferenceServerClient", partial(calls.init, protocol=protocol), "__init__"
                yield module, calls.building, "_get_inference_request"
            yield f"tritonclient.{protocol}._infer_input:InferInput", timed("serialize"), "set_data_from_numpy"
            yield f"tritonclient.{protocol}._infer_result:InferResult", timed("serialize"), "as_numpy"
        yield "tritonclient.http._client:InferenceServerClient", calls.async_infer_http, "async_infer"
        yield "tritonclient.http._client:InferenceServerClient", calls.post, "_post"
        yield "tritonclient.http._client:InferAsyncRequest", calls.get_result, "get_result"
        yield "tritonclient.grpc._client:InferenceServerClient", calls.async_infer_grpc, "async_infer"
        yield "tritonclient.grpc._client:InferenceServerClient", start_stream, "start_stream"
        yield "tritonclient.grpc._client:InferenceServerClient", async_stream_infer, "async_stream_infer"
        yield "tritonclient.grpc._client:InferenceServerClient", stop_stream, "stop_stream"
        yield "tritonclient.grpc.aio:InferenceServerClient", stream_infer, "stream_infer"
        yield "tritonclient.utils.shared_memory", timed("serialize"), "set_shared_memory_region get_contents_as_numpy"

    def uninstrument(self, **options: Any) -> None:
        super().uninstrument(**options)
        statistics.known = statistics.KnownModels()
        statistics.close_channels()


# Streams of the gRPC clients, for threads and for asyncio, and calls with several responses (decoupled models).
#
# The wait from the call to its last response is `network`; the first response is the first token of the request, and the longest
# time between two responses its gap. A stream of the threaded client may serve many requests, whose responses are distinguished by
# `request_id`; a stream of asyncio is one call of one request.


class StreamedCall(Call):
    __slots__ = ("_gap", "_last", "_parts", "_wait", "inferences")

    def __init__(self, marks: Marks, client: Any, model: str, version: str) -> None:
        super().__init__(marks, client, model, version)
        self._parts = 0
        self._last = self.started
        self._wait = MutableMark(marks, "network", self.started, self.started)
        self._gap: MutableMark | None = None
        # Number of inferences in a stream of asyncio, which is recorded as one call.
        self.inferences = 1

    def part(self, response: Any) -> bool:
        now = clock()
        self._wait.grow_end(now)
        last = is_last_response(response)
        # An empty part only marks the end; a part that is the complete response is no first part of a stream.
        if response.outputs and (self._parts or not last):
            self._parted(now)
        if response.outputs:
            self._parts += 1
            self._last = now
        return last

    def _parted(self, now: int) -> None:
        if not has_capacity(self.marks):
            return
        if not self._parts:
            self.marks.extend(("@first_token", now, BY_TRITON_RESPONSE))
        elif self._gap is None:
            self._gap = MutableMark(self.marks, "@gap", now - self._last, 0)
        else:
            self._gap.grow_start(now - self._last)

    def end(self, error: BaseException | None, status: str = "") -> None:
        """Record the end of the stream; repeated calls have no effect."""
        if self._ended:
            return
        self._ended = True
        try:
            if error is not None or not self._parts:
                self._last = clock()
                self._wait.grow_end(self._last)
            if has_capacity(self.marks):
                self.settle(self._last, error, status)
        except Exception:
            log_failure("timing a stream of tritonclient")

    def settle(self, arrived: int, error: BaseException | None, status: str = "") -> None:
        """Record the called model and the outcome; server averages only for a single inference."""
        if self.inferences != 1:
            self.server = None
        super().settle(arrived, error, status)


class MutableMark:
    """A triple of marks that can be changed later, so that a stream of a thousand parts is one wait."""

    __slots__ = ("_at", "_end", "_key", "_marks", "_start")

    def __init__(self, marks: Marks, key: str, start: int, end: int) -> None:
        self._marks, self._key, self._start, self._end = marks, key, start, end
        self._at = 0
        if has_capacity(marks):
            marks.extend((key, start, end))

    def grow_start(self, value: int) -> None:
        if value > self._start:
            at, self._start = self._current_index(), value
            if at:
                self._marks[at + 1] = value
            elif has_capacity(self._marks):
                self._marks.extend((self._key, value, self._end))

    def grow_end(self, value: int) -> None:
        if value > self._end:
            before, self._end, at = self._end, value, self._current_index()
            if at:
                self._marks[at + 2] = value
            elif has_capacity(self._marks):
                # The rest of an interval that was merged.
                self._start = before
                self._marks.extend((self._key, before, value))

    def _current_index(self) -> int:
        """Return the index of the triple, 0 if it was removed; other threads may have compacted the marks."""
        marks, at = self._marks, self._at
        if not self._stands(at):
            indexes = range(len(marks) - 3, 0, -3)
            self._at = at = next((index for index in indexes if self._stands(index)), 0)
        return at

    def _stands(self, at: int) -> bool:
        marks = self._marks
        return 0 < at < len(marks) and marks[at] == self._key and marks[at + 1] is self._start


def is_last_response(response: Any) -> bool:
    return FINAL in response.parameters and response.parameters[FINAL].bool_param


class CallStream:
    """Running calls of one stream, by request id.

    Thread-safe, because the callers and the reader of the client run on different threads.
    """

    def __init__(self, callback: Any) -> None:
        self._callback = callback
        # Not held while the callback runs. Re-entrant, because a signal handler or finalizer may interrupt the holder.
        self._lock = threading.RLock()
        self._calls: dict[str, StreamedCall] = {}
        # Ids that two requests have used at the same time.
        self._ambiguous: set[str] = set()

    def add(self, call: StreamedCall, request_id: str) -> None:
        with self._lock:
            earlier = self._calls.pop(request_id, None)
            if earlier is not None:
                earlier.end(None)
                if (
                    earlier.marks is not call.marks
                    and earlier.marks[STATE] == OPEN
                    and len(self._ambiguous) < MAX_CALLS
                ):
                    self._ambiguous.add(request_id)
            if request_id in self._ambiguous:
                return
            while len(self._calls) >= MAX_CALLS:
                self._calls.pop(next(iter(self._calls))).end(None)
            self._calls[request_id] = call

    def refused(self, call: StreamedCall, request_id: str, error: BaseException) -> None:
        with self._lock:
            if self._calls.get(request_id) is call:
                del self._calls[request_id]
            call.end(error)

    def close(self, error: BaseException | None = None) -> None:
        """End all running calls, because no more responses follow."""
        with self._lock:
            while self._calls:
                self._calls.popitem()[1].end(error)

    def on_response(self, result: Any, error: Any) -> None:
        call = None
        try:
            with self._lock:
                call = self._note(result, error)
        except Exception:
            log_failure("timing a part of a stream of tritonclient")
        if call is None:
            self._callback(result=result, error=error)
            return
        token = current.set(call.marks)
        try:
            self._callback(result=result, error=error)
        finally:
            current.reset(token)
            del token

    def _note(self, result: Any, error: Any) -> StreamedCall | None:
        if error is not None:
            return self._failed(error)
        response = result.get_response()
        call = self._calls.get(response.id)
        if call is None:
            return None
        if call.part(response):
            del self._calls[response.id]
            call.end(None)
        return call

    def _failed(self, error: Any) -> StreamedCall | None:
        # An error has no request id: it belongs to the only running call, or, with a status, to the complete stream.
        only = next(iter(self._calls.values())) if len(self._calls) == 1 else None
        if only is not None or error.status():
            self.close(error)
        return only


def start_stream(original: Any) -> Any:
    def start_stream(self: Any, callback: Any, *args: Any, **options: Any) -> Any:
        stream = CallStream(callback)
        marks = current.get()
        if marks is None:
            original(self, stream.on_response, *args, **options)
        else:
            tokens = enter(Call(marks, self, "", ""))
            try:
                original(self, stream.on_response, *args, **options)
            finally:
                leave(tokens)
        setattr(self, STREAM, stream)

    return start_stream


def async_stream_infer(original: Any) -> Any:
    def async_stream_infer(  # noqa: PLR0917 - the client's signature
        self: Any,
        model_name: Any,
        inputs: Any,
        model_version: Any = "",
        outputs: Any = None,
        request_id: Any = "",
        *args: Any,
        **options: Any,
    ) -> Any:
        marks = current.get()
        stream = getattr(self, STREAM, None)
        if marks is None or stream is None:
            return original(self, model_name, inputs, model_version, outputs, request_id, *args, **options)
        call = StreamedCall(marks, self, model_name, model_version)
        stream.add(call, request_id)
        tokens = enter(call)
        try:
            return original(self, model_name, inputs, model_version, outputs, request_id, *args, **options)
        except BaseException as error:
            stream.refused(call, request_id, error)
            raise
        finally:
            leave(tokens)

    return async_stream_infer


def stop_stream(original: Any) -> Any:
    def stop_stream(self: Any, *args: Any, **options: Any) -> Any:
        try:
            return original(self, *args, **options)
        finally:
            stream = getattr(self, STREAM, None)
            if stream is not None:
                setattr(self, STREAM, None)
                stream.close()

    return stop_stream


def stream_infer(original: Any) -> Any:
    def stream_infer(self: Any, inputs_iterator: Any, *args: Any, **options: Any) -> Any:
        marks = current.get()
        if marks is None or not hasattr(type(inputs_iterator), "__aiter__"):
            return original(self, inputs_iterator, *args, **options)
        call = StreamedCall(marks, self, "", "")
        with Sending(call):
            parts = original(self, StreamInputs(inputs_iterator, call), *args, **options)
        return ResponseParts(parts, call)

    return stream_infer


class StreamInputs:
    def __init__(self, inputs: Any, call: StreamedCall) -> None:
        self._inputs = inputs
        self._call = call
        call.inferences = 0

    def __aiter__(self) -> AsyncIterator[Any]:
        self._inputs = aiter(self._inputs)
        return self

    async def __anext__(self) -> Any:
        given = await anext(self._inputs)
        try:
            self._call.inferences += 1
            self._call.model = given["model_name"]
            self._call.version = given.get("model_version", "")
        except Exception:
            # Invalid input, which the client will report.
            pass
        return given


class ResponseParts:
    def __init__(self, parts: Any, call: StreamedCall) -> None:
        self._parts = parts
        self._call = call

    def __aiter__(self) -> ResponseParts:
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parts, name)

    async def __anext__(self) -> Any:
        try:
            result, error = await self._parts.__anext__()
        except StopAsyncIteration:
            self._call.end(None)
            raise
        except BaseException as failure:
            self._call.end(failure, _failure_status(failure))
            raise
        try:
            self._note(result, error)
        except Exception:
            log_failure("timing a part of a stream of tritonclient")
        return result, error

    def cancel(self) -> Any:
        self._call.end(None, "StatusCode.CANCELLED")
        return self._parts.cancel()

    def _note(self, result: Any, error: Any) -> None:
        if error is not None:
            self._call.end(error)
        else:
            self._call.part(result.get_response())


def _failure_status(failure: BaseException) -> str:
    # A gRPC error, which the client does not translate here.
    code = getattr(failure, "code", None)
    return str(code()) if callable(code) else ""
