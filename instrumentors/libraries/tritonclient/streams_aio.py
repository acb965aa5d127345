"""Streams of Triton's gRPC client for asyncio: each is one call of one request."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from ...instrumentor import report
from ...records import current
from .calls import enter, headers_for, leave
from .response_parts import Streamed


def stream_infer(original: Any) -> Any:
    """Return the same whose parts are noted as they are fetched."""

    def stream_infer(
        self: Any,
        inputs_iterator: Any,
        stream_timeout: Any = None,
        headers: Any = None,
        compression_algorithm: Any = None,
    ) -> Any:
        marks = current.get()
        if marks is None or not hasattr(type(inputs_iterator), "__aiter__"):
            return original(self, inputs_iterator, stream_timeout, headers, compression_algorithm)
        call = Streamed(marks, self, "", "")
        headers = headers_for(call, headers)
        tokens = enter(call)
        try:
            parts = original(self, Inputs(inputs_iterator, call), stream_timeout, headers, compression_algorithm)
        except BaseException as error:
            call.end(error)
            raise
        finally:
            leave(tokens)
        return Parts(parts, call)

    return stream_infer


class Inputs:
    """The inputs of a stream, passed on; they say which model is called.

    Args:
        inputs: The user's.
        call: The call.
    """

    def __init__(self, inputs: Any, call: Streamed) -> None:
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
            # Of no use to the client either, which says so better.
            pass
        return given


class Parts:
    """The answers of a stream, passed on and noted.

    Args:
        parts: The client's.
        call: The call.
    """

    def __init__(self, parts: Any, call: Streamed) -> None:
        self._parts = parts
        self._call = call

    def __aiter__(self) -> Parts:
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
            self._call.end(failure, _status(failure))
            raise
        try:
            self._note(result, error)
        except Exception:
            report("timing a part of a stream of tritonclient")
        return result, error

    def cancel(self) -> Any:
        """Cancel the call."""
        self._call.end(None, "StatusCode.CANCELLED")
        return self._parts.cancel()

    def _note(self, result: Any, error: Any) -> None:
        if error is not None:
            self._call.end(error)
        else:
            self._call.part(result.get_response())


def _status(failure: BaseException) -> str:
    # gRPC's own error, which the client does not translate here.
    code = getattr(failure, "code", None)
    return str(code()) if callable(code) else ""
