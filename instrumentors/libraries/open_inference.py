"""Servers of the Open Inference Protocol, which run the methods of your model: KServe and MLServer.

The docstring of a class is the text of its page in the documentation.
"""
# The batcher of MLServer processes batches in tasks that run in the context of an early request. So each request creates a
# ticket (`tickets.py`) under the id that MLServer assigns there. The run of a worker returns on the id of its response.

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncGenerator, Awaitable, Iterable, Mapping
from types import ModuleType
from typing import Any, Final

from ...core.stages import HANDLER
from ..instrumentor import Hook, Instrumentor, Target, log_failure, timed
from ..records import SHARED, START, clock, current
from ..tickets import BatchRun, BatchScope, Ticket, TicketsById, ticket, with_run
from .server_common import is_users_code

_KSERVE_STAGES: Final = {
    "preprocess": "preprocess",
    "predict": "handler",
    "explain": "handler",
    "postprocess": "postprocess",
}


class KServeInstrumentor(Instrumentor):
    """KServe: times the methods of a model.

    The [Starlette and FastAPI](starlette.md) module counts the web requests, and the [gRPC (server)](grpc_server.md) module the others.
    """

    library = "kserve"
    title = "KServe"
    stages = {
        "preprocess": "the time in `preprocess`",
        "handler": "the time in `predict` and `explain` that no other stage covers",
        "postprocess": "the time in `postprocess`",
    }
    tested = {"kserve": "0.21.0"}

    def targets(self) -> Iterable[Target]:
        return (("kserve.model:Model", self._init, "__init__"),)

    def _init(self, original: Any) -> Any:
        def __init__(model: Any, *args: Any, **options: Any) -> None:  # noqa: N807 - shown in tracebacks
            original(model, *args, **options)
            try:
                for owner in filter(is_users_code, type(model).__mro__[:-1]):
                    self._time_methods(owner)
            except Exception:
                log_failure("timing the methods of a model of KServe")

        return __init__

    def _time_methods(self, owner: type) -> None:
        for name, stage in _KSERVE_STAGES.items():
            self.replace(owner, name, timed(stage))


class MLServerInstrumentor(Instrumentor):
    """MLServer: times the runtime, the wait of a request for its batch and for a worker process, and the stages of the batch or worker.

    - The [Starlette and FastAPI](starlette.md) module counts the web requests, and the [gRPC (server)](grpc_server.md) module the others.
    - The stages of a batch count for each request of the batch.
    """

    library = "mlserver"
    title = "MLServer"
    stages = {
        "handler": "`predict` of a runtime, for all requests of a batch",
        "queue": "with adaptive batching, the time from the call of a model until its batch starts; with `parallel_workers`, "
        "the time from the entry into the queue of a worker process until the worker has received the message",
    }
    facts = ("batch",)
    not_timed = (
        "the return of the result from a worker, and the merging and splitting of a batch. Their time is *Framework*.",
        "Kafka requests, because this server is not instrumented",
        "the work of a worker with a separate Python environment (`environment_tarball`). This time is *Framework*.",
    )
    tested = {"mlserver": "1.7.1"}

    def targets(self) -> Iterable[Target]:
        return (
            ("mlserver.handlers.dataplane:DataPlane", _infer, "_infer_contextmanager"),
            ("mlserver.batching.adaptive:AdaptiveBatcher", _waiting.wrap_queueing, "_queue_request"),
            ("mlserver.parallel.dispatcher:Dispatcher", _dispatch, "dispatch_request"),
            ("mlserver.parallel.dispatcher:AsyncResponses", _resolve, "resolve"),
            ("mlserver.parallel.worker:Worker", _process, "_process_request"),
        )

    def hooks(self) -> Mapping[str, Hook]:
        return {**super().hooks(), "mlserver.batching.adaptive": self._batching}

    def _batching(self, module: ModuleType) -> None:
        self._patch(module)
        defined_in = sys.modules[module.schedule_with_callback.__module__]
        self.replace(defined_in, "schedule_with_callback", _schedule)
        # Pickle looks it up by reference in the module that defines it.
        self.replace(module, "schedule_with_callback", lambda _: defined_in.schedule_with_callback)


_waiting = TicketsById("MLServer")


def _schedule(original: Any) -> Any:
    def schedule_with_callback(coro: Any, cb: Any) -> Any:
        # The callback of a batch is a `partial` with the object that splits its response; the batcher's own loop has none.
        batched = next(iter(getattr(cb, "args", ())), None)
        requests = getattr(batched, "inference_requests", None)
        return original(_in_batch(coro, map(_waiting.get, requests)) if requests else coro, cb)

    return schedule_with_callback


def _infer(original: Any) -> Any:
    @contextlib.asynccontextmanager
    async def _infer_contextmanager(self: Any, *args: Any, **options: Any) -> AsyncGenerator[Any]:
        async with original(self, *args, **options) as model:
            marks = current.get()
            # A batch and a worker process are timed where they run.
            if marks is None or "predict" in vars(model) or type(model).__module__.startswith("mlserver.parallel."):
                yield model
                return
            started = clock()
            try:
                yield model
            finally:
                marks.extend((HANDLER, started, clock()))

    return _infer_contextmanager


async def _in_batch(work: Awaitable[Any], tickets: Iterable[Ticket | None]) -> Any:
    async with BatchScope(tickets) as run:
        return await _handled(work, run)


async def _handled(work: Awaitable[Any], run: BatchRun) -> Any:
    try:
        return await work
    finally:
        run.marks.extend((HANDLER, run.marks[START], clock()))


def _dispatch(original: Any) -> Any:
    async def dispatch_request(self: Any, request_message: Any) -> Any:
        drawn = ticket()
        _waiting.add(getattr(request_message, "id", None), drawn)
        try:
            return await original(self, request_message)
        except asyncio.CancelledError:
            drawn.drop(clock())
            raise
        finally:
            drawn.drop(0)

    return dispatch_request


def _resolve(original: Any) -> Any:
    def resolve(self: Any, response: Any) -> Any:
        _waiting.responded(getattr(response, "id", None))
        return original(self, response)

    return resolve


def _process(original: Any) -> Any:
    async def _process_request(self: Any, request: Any) -> Any:
        async with BatchScope((), [SHARED, 0, 0]) as run:
            work = original(self, request)
            response = await (_handled(work, run) if getattr(request, "method_name", "") == "predict" else work)
        try:
            response.id = with_run(response.id, run)
        except Exception:
            log_failure("returning the stages that a worker of MLServer recorded for a request")
        return response

    return _process_request
