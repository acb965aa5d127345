"""The ways to call `infer` on Triton's clients: at once, awaited, by greenlet or by callback."""

from __future__ import annotations

import inspect
from typing import Any

from ...instrumentor import report
from ...records import MAX_MARKS, Marks, clock, current
from .calls import SERVER, Call, Headers, calling, enter, headers_for, leave
from .endpoint import Server

# Where `headers` stands among the arguments of `infer` after the model's version, should somebody count so far.
HTTP_HEADERS = 7
GRPC_HEADERS = 8
# HTTP: from here on an answer is an error.
CLIENT_ERROR = 400


def init(original: Any, protocol: str) -> Any:
    """Return the same that notes which server the client was told of."""
    signature = inspect.signature(original)

    def __init__(self: Any, *args: Any, **options: Any) -> None:  # noqa: N807 - shown in tracebacks
        original(self, *args, **options)
        try:
            arguments = signature.bind(self, *args, **options).arguments
            del arguments["self"]
            setattr(self, SERVER, Server(protocol, arguments["url"], arguments))
        except Exception:
            report("noting the server of a client of tritonclient")

    return __init__


def infer(original: Any, place: int) -> Any:
    """Return the same as one call of the request; *place* is where `headers` stands among the arguments."""

    def infer(self: Any, model_name: Any, inputs: Any, model_version: Any = "", *args: Any, **options: Any) -> Any:
        marks = current.get()
        if marks is None:
            return original(self, model_name, inputs, model_version, *args, **options)
        call = Call(marks, self, model_name, model_version)
        args = _with_headers(call, place, args, options)
        tokens = enter(call)
        try:
            result = original(self, model_name, inputs, model_version, *args, **options)
        except BaseException as error:
            call.end(error)
            raise
        else:
            call.end(None)
            return result
        finally:
            leave(tokens)

    return infer


def infer_aio(original: Any, place: int) -> Any:
    """Return the same for a coroutine function."""

    async def infer(
        self: Any, model_name: Any, inputs: Any, model_version: Any = "", *args: Any, **options: Any
    ) -> Any:
        marks = current.get()
        if marks is None:
            return await original(self, model_name, inputs, model_version, *args, **options)
        call = Call(marks, self, model_name, model_version)
        args = _with_headers(call, place, args, options)
        tokens = enter(call)
        try:
            result = await original(self, model_name, inputs, model_version, *args, **options)
        except BaseException as error:
            call.end(error)
            raise
        else:
            call.end(None)
            return result
        finally:
            leave(tokens)

    return infer


def async_infer_http(original: Any) -> Any:
    """Return the same, whose call ends when its greenlet has the answer (`post`)."""

    def async_infer(
        self: Any, model_name: Any, inputs: Any, model_version: Any = "", *args: Any, **options: Any
    ) -> Any:
        marks = current.get()
        if marks is None:
            return original(self, model_name, inputs, model_version, *args, **options)
        call = Call(marks, self, model_name, model_version)
        call.deferred = True
        args = _with_headers(call, HTTP_HEADERS, args, options)
        tokens = enter(call)
        try:
            return original(self, model_name, inputs, model_version, *args, **options)
        except BaseException as error:
            call.end(error)
            raise
        finally:
            leave(tokens)

    return async_infer


def post(original: Any) -> Any:
    """Return the same that ends the call of a greenlet."""

    def _post(self: Any, request_uri: Any, request_body: Any, headers: Any, query_params: Any) -> Any:
        call = headers.call if isinstance(headers, Headers) else None
        if call is None or not call.deferred:
            return original(self, request_uri, request_body, headers, query_params)
        # In a greenlet of `async_infer`, where no context variable reaches.
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
        report("reading the status of an answer to tritonclient")
        return ""


def get_result(original: Any) -> Any:
    """Return the same as a wait of the request."""

    def get_result(self: Any, block: Any = True, timeout: Any = None) -> Any:
        marks = current.get()
        if marks is None:
            return original(self, block, timeout)
        begun = clock()
        try:
            return original(self, block, timeout)
        except BaseException:
            _gave_up(marks, self, begun)
            raise
        finally:
            if len(marks) < MAX_MARKS:
                marks.extend(("network", begun, clock()))

    return get_result


def _gave_up(marks: Marks, handle: Any, begun: int) -> None:
    try:
        if not handle._greenlet.ready() and len(marks) < MAX_MARKS:  # noqa: SLF001 - nothing else says so
            marks.extend(("@failed", "triton:timeout", clock() - begun))
    except Exception:
        report("asking a call of tritonclient whether it is over")


def async_infer_grpc(original: Any) -> Any:
    """Return the same, whose call ends with its callback, which belongs to the request too."""

    def async_infer(
        self: Any, model_name: Any, inputs: Any, callback: Any, model_version: Any = "", *args: Any, **options: Any
    ) -> Any:
        marks = current.get()
        if marks is None:
            return original(self, model_name, inputs, callback, model_version, *args, **options)
        call = Call(marks, self, model_name, model_version)

        # Called by a thread of gRPC.
        def done(result: Any, error: Any) -> None:
            call.end(error)
            token = current.set(marks)
            try:
                callback(result=result, error=error)
            finally:
                current.reset(token)

        args = _with_headers(call, GRPC_HEADERS, args, options)
        tokens = enter(call)
        try:
            return original(self, model_name, inputs, done, model_version, *args, **options)
        except BaseException as error:
            call.end(error)
            raise
        finally:
            leave(tokens)

    return async_infer


def _with_headers(call: Call, place: int, args: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, ...]:
    """Return *args* with our headers in their *place*, or put them among *options*."""
    if len(args) > place:
        return (*args[:place], headers_for(call, args[place]), *args[place + 1 :])
    options["headers"] = headers_for(call, options.get("headers"))
    return args


def building(original: Any) -> Any:
    """Return the same as the building of a call's request."""

    def _get_inference_request(*args: Any, **options: Any) -> Any:
        call = calling.get()
        if call is None:
            return original(*args, **options)
        begun = clock()
        try:
            return original(*args, **options)
        finally:
            call.serialized(begun)

    return _get_inference_request
