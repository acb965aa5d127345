"""Streams of Triton's gRPC client: one may serve many requests, whose answers are told apart by `request_id`."""

from __future__ import annotations

import threading
from typing import Any

from ...instrumentor import report
from ...records import OPEN, current
from .calls import Call, enter, headers_for, leave
from .response_parts import Streamed

STREAM = "_stagelens_stream"
# Calls of one stream whose last part never comes, the oldest of which are forgotten.
MAX_CALLS = 64


class Stream:
    """The calls under way in one stream, by their request id.

    Whoever calls and the client's reader meet here, on threads of their own.

    Args:
        callback: The user's, for every part.
    """

    def __init__(self, callback: Any) -> None:
        self._callback = callback
        # Never held while the callback runs; re-entrant, for a signal handler or a finalizer may come up in between.
        self._lock = threading.RLock()
        self._calls: dict[str, Streamed] = {}
        # Ids that two requests have used at once.
        self._ambiguous: set[str] = set()

    def add(self, call: Streamed, request_id: str) -> None:
        """Expect answers to *call*."""
        with self._lock:
            earlier = self._calls.pop(request_id, None)
            if earlier is not None:
                earlier.end(None)
                if earlier.marks is not call.marks and earlier.marks[0] == OPEN and len(self._ambiguous) < MAX_CALLS:
                    self._ambiguous.add(request_id)
            if request_id in self._ambiguous:
                return
            while len(self._calls) >= MAX_CALLS:
                self._calls.pop(next(iter(self._calls))).end(None)
            self._calls[request_id] = call

    def refused(self, call: Streamed, request_id: str, error: BaseException) -> None:
        """Expect none: it was not sent."""
        with self._lock:
            if self._calls.get(request_id) is call:
                del self._calls[request_id]
            call.end(error)

    def close(self, error: BaseException | None = None) -> None:
        """Expect no more answers."""
        with self._lock:
            while self._calls:
                self._calls.popitem()[1].end(error)

    def answered(self, result: Any, error: Any) -> None:
        """Hand a part to the user's callback, which belongs to the request too."""
        call = None
        try:
            with self._lock:
                call = self._note(result, error)
        except Exception:
            report("timing a part of a stream of tritonclient")
        if call is None:
            self._callback(result=result, error=error)
            return
        token = current.set(call.marks)
        try:
            self._callback(result=result, error=error)
        finally:
            current.reset(token)

    def _note(self, result: Any, error: Any) -> Streamed | None:
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

    def _failed(self, error: Any) -> Streamed | None:
        # The server names no call: it is the only one there is, or with a status it is the stream that has failed.
        only = next(iter(self._calls.values())) if len(self._calls) == 1 else None
        if only is not None or error.status():
            self.close(error)
        return only


def start_stream(original: Any) -> Any:
    """Return the same with a stream of ours between client and callback."""

    def start_stream(
        self: Any, callback: Any, stream_timeout: Any = None, headers: Any = None, compression_algorithm: Any = None
    ) -> Any:
        stream = Stream(callback)
        marks = current.get()
        if marks is None:
            original(self, stream.answered, stream_timeout, headers, compression_algorithm)
        else:
            call = Call(marks, self, "", "")
            headers = headers_for(call, headers)
            tokens = enter(call)
            try:
                original(self, stream.answered, stream_timeout, headers, compression_algorithm)
            finally:
                leave(tokens)
        setattr(self, STREAM, stream)

    return start_stream


def async_stream_infer(original: Any) -> Any:
    """Return the same that expects answers."""

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
        call = Streamed(marks, self, model_name, model_version)
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
    """Return the same that expects no more answers afterwards."""

    def stop_stream(self: Any, *args: Any, **options: Any) -> Any:
        try:
            return original(self, *args, **options)
        finally:
            stream = getattr(self, STREAM, None)
            if stream is not None:
                setattr(self, STREAM, None)
                stream.close()

    return stop_stream
