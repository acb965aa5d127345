"""Ray Serve: counts the requests of each deployment, and times `queue`, `dependency`, `network` and batches.

- In Ray's proxy, Stagelens adds the header `X-Stagelens-Arrived`. The time from this header's timestamp until a replica has the
  request is `queue`.
- The [Starlette and FastAPI](starlette.md) module counts the requests of FastAPI deployments. The Ray Serve module counts all others.
- A call through a handle counts as `dependency` of the caller. The called deployment counts it as a request of the same trace.
- The stages of a batch (`@serve.batch`) count for each call in the batch.
"""
# `@serve.batch` processes batches in tasks that run in the context of the first request. So each call creates a ticket
# (`tickets.py`), stored with the future that it waits for, and each batch takes the tickets of its calls.

from __future__ import annotations

import asyncio
import contextlib
import inspect
import sys
import time
from collections.abc import Generator, Iterable, Mapping
from types import ModuleType
from typing import Any, Final
from weakref import WeakKeyDictionary

from .. import recorder, trace_context
from ..instrumentor import Hook, Instrumentor, Target, log_failure, timed, timed_async
from ..recorder import begin, end, finish
from ..records import ROUTE, START, clock, current
from ..tickets import BatchScope, Ticket, ticket
from .asgi import ARRIVED as SCOPE_ARRIVED
from .asgi import KEY, Receive, Scope, Send, forwarding, recorded
from .client_common import DEPENDENCY, record_wait
from .proxy_waits import own_wait_ns, trusted_wait_ns

# Header between the processes of Ray; one of a client is removed.
ARRIVED: Final = b"x-stagelens-arrived"
# Attributes of the pickled metadata of a call: `traceparent` of the caller, and time of sending.
SENT: Final = "_stagelens"


class RayServeInstrumentor(Instrumentor):
    library = "ray.serve"
    title = "Ray Serve"
    stages = {
        "queue": "the time from the proxy, or from the call of a handle, until a replica has the request; and the time "
        "from the call of a `@serve.batch` method until its batch starts",
        "handler": "the method of a deployment, with its batch",
        "framework": "the time of a replica outside the method",
        "dependency": "the wait for the response to `handle.remote()`",
        "network": "the sending of the response to the proxy, except in FastAPI deployments",
    }
    facts = ("batch", "method")
    not_timed = (
        "the time in the proxy after the replica has sent its response.",
        "a response that goes directly to another deployment, as in `second.remote(first.remote())`. The wait counts as `queue` of the second deployment.",
        "the `queue` of a call whose start is in the future, because the clocks of its two hosts differ",
    )
    tested = {"ray": "2.60.0"}

    def targets(self) -> Iterable[Target]:
        return (
            ("ray.serve._private.proxy:HTTPProxy", _proxy, "__call__"),
            ("ray.serve.handle:_DeploymentHandleBase", _metadata, "_init_router_and_get_metadata"),
            ("ray.serve.handle:DeploymentResponse", _await, "__await__"),
            ("ray.serve.handle:DeploymentResponse", timed(DEPENDENCY), "result"),
            ("ray.serve.handle:DeploymentResponseGenerator", timed(DEPENDENCY), "__anext__ __next__"),
            ("ray.serve._private.replica:Replica", _call, "_wrap_request"),
            ("ray.serve._private.replica:Replica", _shutdown, "perform_graceful_shutdown"),
            ("ray.serve._private.replica:UserCallableWrapper", _http, "_call_http_entrypoint"),
            ("ray.serve._private.replica:UserCallableWrapper", timed("handler"), "_call_func_or_gen"),
            ("ray.serve._private.replica:UserCallableWrapper", _result, "_handle_user_method_result"),
        )

    def hooks(self) -> Mapping[str, Hook]:
        return {**super().hooks(), "ray.serve.batching": self._batching}

    def _batching(self, module: ModuleType) -> None:
        batches = getattr(module, "_BatchQueue", None)
        if hasattr(batches, "_process_batch_inner"):
            self.replace(batches, "put", _put)
            self.replace(batches, "_process_batch_inner", _batch)


def _proxy(original: Any) -> Any:
    async def __call__(self: Any, scope: Scope, receive: Receive, send: Send) -> Any:  # noqa: N807 - shown in tracebacks
        try:
            if scope["type"] == "http":
                # Of several headers the first one counts, as in other servers.
                sent = next((value for name, value in scope["headers"] if name == b"x-request-start"), b"").decode(
                    "latin-1"
                )
                arrived = time.time() - trusted_wait_ns(sent, lambda: scope.get("client")) / 1e9
                others = [pair for pair in scope["headers"] if pair[0] != ARRIVED]
                scope["headers"] = [*others, (ARRIVED, b"t=%.6f" % arrived)]
        except Exception:
            log_failure("recording the arrival of a request")
        return await original(self, scope, receive, send)

    return forwarding(__call__)


def _metadata(original: Any) -> Any:
    def _init_router_and_get_metadata(self: Any) -> Any:
        router, metadata = original(self)
        try:
            marks = current.get()
            vars(metadata)[SENT] = "" if marks is None else trace_context.traceparent(marks), time.time()
        except Exception:
            log_failure("passing a request with a call")
        return router, metadata

    return _init_router_and_get_metadata


def _await(original: Any) -> Any:
    def __await__(self: Any) -> Generator[Any, Any, Any]:  # noqa: N807 - shown in tracebacks
        marks = current.get()
        if marks is None:
            return (yield from original(self))
        started = clock()
        try:
            return (yield from original(self))
        finally:
            record_wait(marks, started)

    return __await__


def _call(original: Any) -> Any:
    def _wrap_request(self: Any, request_metadata: Any, *args: Any, **options: Any) -> Any:
        wrapped = original(self, request_metadata, *args, **options)
        # HTTP requests are counted elsewhere, with their messages.
        return wrapped if request_metadata.is_http_request else _counted(wrapped, self, request_metadata)

    return _wrap_request


@contextlib.contextmanager
def _counted(wrapped: Any, replica: Any, metadata: Any) -> Generator[Any]:
    opened = begin()
    if opened is None:
        with wrapped as value:
            yield value
        return
    marks, token = opened
    start: int = marks[START]
    route = error_type = ""
    try:
        caller, sent = getattr(metadata, SENT, ("", 0.0))
        start -= own_wait_ns(f"{sent:.6f}")
        marks.extend(("@traceparent", caller, 0, "queue", start, marks[START]))
        method = metadata.call_method
        route = marks[ROUTE] = replica._deployment_id.name + (f".{method}" if method != "__call__" else "")  # noqa: SLF001 - there is no public name for it
    except Exception:
        log_failure("describing a call of a deployment")
    try:
        with wrapped as value:
            yield value
    except BaseException as error:
        error_type = type(error).__qualname__
        raise
    finally:
        end(token)
        ended = clock()
        marks.extend(("framework", marks[START], ended))
        finish(marks, start, ended, route, error_type)


def _result(original: Any) -> Any:
    handled = timed_async("handler")(original)

    async def _handle_user_method_result(self: Any, result: Any, *args: Any, **options: Any) -> Any:
        # The method is a generator, which runs now.
        generates = inspect.isgenerator(result) or inspect.isasyncgen(result)
        return await (handled if generates else original)(self, result, *args, **options)

    return _handle_user_method_result


def _http(original: Any) -> Any:
    def _call_http_entrypoint(self: Any, user_method_info: Any, scope: Scope, receive: Receive, send: Send) -> Any:
        _record_arrival(scope)
        if user_method_info.is_asgi_app:
            return original(self, user_method_info, scope, receive, send)

        async def deployment(_: Any, scope: Scope, __: Receive, send: Send) -> None:
            _record_route(scope)
            # The `receive` object of Ray has further attributes, so it is not wrapped.
            await original(self, user_method_info, scope, receive, send)

        served = recorded(deployment)(None, scope, receive, send)
        # The original returns a future if the user's code runs on a separate thread.
        return asyncio.ensure_future(served) if getattr(self, "_run_user_code_in_separate_thread", True) else served

    return _call_http_entrypoint


def _record_arrival(scope: Scope) -> None:
    try:
        scope[SCOPE_ARRIVED] = next(value for name, value in scope["headers"] if name == ARRIVED).decode("latin-1")
    except Exception:
        log_failure("reading the arrival of a request")


def _record_route(scope: Scope) -> None:
    try:
        if KEY in scope:
            scope[KEY].name(sys.modules["ray.serve.context"]._get_serve_request_context().route)  # noqa: SLF001
    except Exception:
        log_failure("naming a route")


def _shutdown(original: Any) -> Any:
    async def perform_graceful_shutdown(self: Any) -> None:
        await original(self)
        # Flushed now, because the process is killed next.
        await asyncio.to_thread(recorder.flush)

    return perform_graceful_shutdown


# Tickets of the calls that wait for their batch, by future.
_waiting: WeakKeyDictionary[Any, Ticket] = WeakKeyDictionary()


def _put(original: Any) -> Any:
    def put(self: Any, request: Any) -> Any:
        try:
            _waiting[request.future] = ticket()
        except Exception:
            log_failure("adding a call to a batch of Ray Serve")
        return original(self, request)

    return put


def _batch(original: Any) -> Any:
    async def _process_batch_inner(self: Any, func: Any, batch: Any) -> Any:
        async with BatchScope(_tickets(batch)):
            return await original(self, func, batch)

    return _process_batch_inner


def _tickets(batch: Any) -> list[Ticket | None]:
    try:
        # Cancelled calls are left out, as in Ray.
        return [_waiting.get(job.future) for job in batch if not job.future.cancelled()]
    except Exception:
        log_failure("starting a batch of Ray Serve")
        return []
