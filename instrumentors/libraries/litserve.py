"""LitServe: times the wait in LitServe's queue, and the stages of a request or batch in the worker process.

The [Starlette and FastAPI](starlette.md) module counts the web requests. Each stage of a batch counts for each request in it.
If a server process is killed, its open requests [count as failed](../reliability.md).
"""
# The HTTP process stores a ticket (`tickets.py`) under the id of each request that it queues. The worker records a run,
# which starts when the request or its complete batch arrives; the response carries the run back on its id.

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from operator import itemgetter
from types import MappingProxyType, ModuleType
from typing import Any, Final

from ...core.stages import HANDLER
from ..instrumentor import Hook, Instrumentor, Target, log_failure
from ..records import CLOSED, OPEN, SHARED, STATE, clock, current, has_capacity
from ..tickets import BatchRun, TicketsById, ticket, with_run

# `litserve.utils.LitAPIStatus`: the worker has started a request; more responses follow.
START: Final = "START"
OK: Final = "OK"
STREAMING: Final = "STREAMING"
# Events of LitServe that are common to all loops.
BEGINS: Final = {
    "on_before_decode_request": "preprocess",
    "on_before_predict": "forward",
    "on_before_encode_response": "postprocess",
}
ENDS: Final = {name.replace("before", "after"): stage for name, stage in BEGINS.items()}
# `predict` and `encode_response` of a stream are generators that run alternately until the last response, which ends the run.
STREAM_BEGINS: Final = {"on_before_decode_request": "preprocess", "on_before_predict": HANDLER}
STREAM_ENDS: Final = frozenset({"on_after_decode_request"})


class LitServeInstrumentor(Instrumentor):
    library = "litserve"
    title = "LitServe"
    stages = MappingProxyType(
        {
            "queue": "the time from the entry into LitServe's queue until a worker has all requests of the batch",
            "preprocess": "the time in `decode_request`, for all requests of a batch",
            "forward": "the time in `predict`, except the time that libraries in it record as other stages",
            "postprocess": "the time in `encode_response`, for all requests of a batch",
            "handler": "the time in `predict` and `encode_response` of a stream",
        }
    )
    facts = ("batch",)
    not_timed = (
        "the return of the result from the worker, and the methods `batch` and `unbatch`. Their time is *Framework*.",
        "continuous batching, except for `queue`",
    )
    tested = MappingProxyType({"litserve": "0.2.19"})

    def targets(self) -> Iterable[Target]:
        return (
            ("litserve.server:BaseRequestHandler", _waiting.wrap_queueing, "_submit_request"),
            ("litserve.specs.base:LitSpec", _setup, "setup"),
            ("litserve.transport.process_transport:MPQueueTransport", _receive, "areceive"),
            ("litserve.transport.zmq_transport:ZMQTransport", _receive, "areceive"),
            ("litserve.callbacks.base:CallbackRunner", _event, "trigger_event"),
            ("litserve.loops.base:LitLoop", _put_response, "put_response"),
        )

    def hooks(self) -> Mapping[str, Hook]:
        return {**super().hooks(), "litserve.loops.streaming_loops": self._batches}

    def _batches(self, module: ModuleType) -> None:
        base = sys.modules[module.collate_requests.__module__]
        self.replace(base, "collate_requests", _collate)
        # Pickle looks it up by reference in the module that defines it.
        self.replace(module, "collate_requests", lambda _: base.collate_requests)


# Tickets of waiting requests, in the HTTP process.
_waiting = TicketsById("LitServe")


def _setup(original: Any) -> Any:
    def setup(self: Any, server: Any) -> None:
        original(self, server)
        try:
            self.request_queue = Queue(self.request_queue)
        except Exception:
            log_failure("watching the queue of a spec of LitServe")

    return setup


class Queue:
    """Wrapper of the queue of a spec, such as the OpenAI one, which queues requests without LitServe."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only the queue of LitServe, because consumers need nothing else."""
        return itemgetter(0), ((self._queue,),)

    def put(self, item: Any, *args: Any, **options: Any) -> Any:
        _waiting.add(next(iter(item[1:2]), None), ticket())
        return self._queue.put(item, *args, **options)

    def put_nowait(self, item: Any) -> Any:
        return self.put(item, block=False)


def _receive(original: Any) -> Any:
    async def receive(self: Any, *args: Any, **options: Any) -> Any:
        result = await original(self, *args, **options)
        if type(result) is tuple:
            _waiting.responded(result[0])
        return result

    return receive


class _Work:
    def __init__(self, uids: Iterable[Any]) -> None:
        self.uids = frozenset(uids)
        self.run = BatchRun([OPEN, clock(), 0, SHARED, 0, 0, "@batch", len(self.uids), 0])
        self.stage: tuple[str, int] | None = None
        current.set(self.run.marks)
        _work.set(self)

    def begin(self, stage: str) -> None:
        self.end_stage()
        self.stage = (stage, clock())

    def end_stage(self) -> None:
        stage, self.stage = self.stage, None
        if stage is not None and has_capacity(self.run.marks):
            self.run.marks.extend((*stage, clock()))

    def end(self) -> BatchRun:
        if not self.run.ended:
            self.end_stage()
            self.run.marks[STATE] = CLOSED
            self.run.ended = clock()
        return self.run


_work: ContextVar[_Work | None] = ContextVar("stagelens_litserve", default=None)
# In the worker: arrival of the requests without a response. [nanoseconds]
_arrivals: dict[Any, int] = {}


def _collate(original: Any) -> Any:
    def collate(*args: Any, **options: Any) -> Any:
        collated = original(*args, **options)
        try:
            if collated[0]:
                _Work(uid for _, uid, _ in collated[0])
        except Exception:
            log_failure("starting a batch of LitServe")
        return collated

    return collate


def _event(original: Any) -> Callable[..., Any]:
    def trigger_event(self: Any, event_name: Any, *args: Any, **options: Any) -> Any:
        # Callbacks of the user are not part of the stage.
        work = _work.get() if event_name in BEGINS or event_name in ENDS else None
        streams = work is not None and getattr(options.get("lit_api"), "stream", False)
        begins, ends = (STREAM_BEGINS, STREAM_ENDS) if streams else (BEGINS, ENDS)
        if work is not None and event_name in ends:
            work.end_stage()
        result = original(self, event_name, *args, **options)
        if work is not None and event_name in begins:
            work.begin(begins[event_name])
        return result

    return trigger_event


def _put_response(original: Any) -> Any:
    def put_response(  # noqa: PLR0917 - signature of LitServe
        self: Any, transport: Any, response_queue_id: Any, uid: Any, response_data: Any, status: Any, response_type: Any
    ) -> Any:
        try:
            if status == START:
                _arrivals[uid] = clock()
                _Work([uid])
            elif status != OK or getattr(response_type, "name", "") != STREAMING:
                uid = _with_run(uid)
        except Exception:
            log_failure("returning the stages that a worker of LitServe recorded for a request")
        return original(self, transport, response_queue_id, uid, response_data, status, response_type)

    return put_response


def _with_run(uid: Any) -> Any:
    arrived_at = _arrivals.pop(uid, None)
    work = _work.get()
    if work is not None and uid in work.uids:
        return with_run(uid, work.end())
    # Rejected, or from a custom loop: only the start of the work is known.
    return uid if arrived_at is None else with_run(uid, BatchRun([CLOSED, arrived_at, 0], arrived_at))
