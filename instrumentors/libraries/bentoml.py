"""BentoML: times the methods of an API, and the wait of a request for its batch.

Only APIs with `batchable=True` have batches. Each stage of a batch counts for each of its requests. The
[Starlette and FastAPI](starlette.md) module counts the web requests.
"""
# The dispatcher processes all batches in tasks that run in the context of the first request. So each call creates a ticket
# (`tickets.py`), stored with the future that it waits for. Both parts of a split call share its ticket.

from __future__ import annotations

import functools
from collections.abc import Iterable
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary

from ..instrumentor import Instrumentor, Target, log_failure, timed
from ..records import SHARED, Marks, clock
from ..tickets import BatchScope, Ticket, ticket
from .server_common import as_handler


class BentoMLInstrumentor(Instrumentor):
    library = "bentoml"
    title = "BentoML"
    stages = {
        "handler": "the method of an API; the methods of a batch and of a stream too",
        "serialize": "the parsing of the input and the conversion of the output",
        "queue": "the time from the call of a batchable API until its batch starts, or until BentoML cancels the call",
    }
    facts = ("batch",)
    tested = {"bentoml": "1.4.39"}

    def targets(self) -> Iterable[Target]:
        return (
            ("_bentoml_sdk.method:APIMethod", _local_call, "_local_call"),
            ("_bentoml_sdk.io_models:IOMixin", timed("serialize"), "from_http_request to_http_response"),
            ("bentoml._internal.marshal.dispatcher:CorkDispatcher", _inbound, "inbound_call"),
            ("bentoml._internal.marshal.dispatcher:CorkDispatcher", _outbound, "outbound_call"),
            ("bentoml._internal.marshal.dispatcher:CorkDispatcher", _split, "split_job"),
            ("bentoml._internal.marshal.dispatcher:Job", _job, "__init__"),
        )


# Ticket of the call that is being queued; tickets of the queued calls by their future.
_drawn: ContextVar[Ticket | None] = ContextVar("stagelens_bentoml", default=None)
_waiting: WeakKeyDictionary[Any, Ticket] = WeakKeyDictionary()


def _local_call(original: Any) -> Any:
    def _local_call(self: Any, instance: Any) -> Any:
        call = original(self, instance)
        # With the attributes by which BentoML finds the method.
        return functools.update_wrapper(as_handler(call, self.func), call)

    return _local_call


def _inbound(original: Any) -> Any:
    async def inbound_call(self: Any, data: Any) -> Any:
        drawn = ticket()
        token = _drawn.set(drawn)
        try:
            return await original(self, data)
        finally:
            _drawn.reset(token)
            del token
            drawn.drop(clock())

    return inbound_call


def _job(original: Any) -> Any:
    def __init__(self: Any, *args: Any, **options: Any) -> None:  # noqa: N807 - shown in tracebacks
        original(self, *args, **options)
        drawn = _drawn.get()
        if drawn is not None:
            _waiting[self.future] = drawn

    return __init__


def _split(original: Any) -> Any:
    def split_job(self: Any, job: Any, split_indexes: Any) -> Any:
        parts = original(self, job, split_indexes)
        drawn = _waiting.get(job.future)
        if drawn is not None:
            _waiting.update((part.future, drawn) for part in parts)
        return parts

    return split_job


def _outbound(original: Any) -> Any:
    async def outbound_call(self: Any, inputs_info: Any, *args: Any, **options: Any) -> Any:
        async with BatchScope((_waiting.get(job.future) for job in inputs_info), _facts(self, inputs_info)):
            return await original(self, inputs_info, *args, **options)

    return outbound_call


def _facts(dispatcher: Any, jobs: Any) -> Marks:
    try:
        size = sum(dispatcher.get_batch_size(job.data) for job in jobs)
    except Exception:
        log_failure("reading the size of a batch of BentoML")
        size = 0
    return [SHARED, 0, 0, "@batch", size, 0]
