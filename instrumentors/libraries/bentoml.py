"""BentoML: the wait of a request for its batch, and the stages of the batch of a batchable API.

BentoML's dispatcher puts the calls of a batchable API into a queue and processes them in tasks that all run in the
context of the very first request. Each call creates a ticket (`tickets.py`), which is stored with the future that it
waits for, and each batch takes the tickets of its calls. The ticket of a call that was split belongs to both batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from types import MappingProxyType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from ..instrumentor import Hook, Instrumentor, log_failure
from ..records import SHARED, Marks, clock
from ..tickets import BatchScope, Ticket, ticket


class BentoMLInstrumentor(Instrumentor):
    """Instrumentor of the dispatcher of `bentoml.api(batchable=True)`."""

    library = "bentoml"
    title = "BentoML"
    stages = MappingProxyType(
        {"queue": "from the call of a batchable API until its batch begins; also of a call that BentoML gave up"}
    )
    facts = ("batch",)
    not_timed = (
        'the method of a batchable API itself, but libraries in it: `stagelens.stage("forward")` around its body',
    )
    tested = MappingProxyType({"bentoml": "1.4.39"})

    def hooks(self) -> Mapping[str, Hook]:
        """Return the patch functions by module."""
        return {"bentoml._internal.marshal.dispatcher": self._dispatcher}

    def _dispatcher(self, module: ModuleType) -> None:
        self.replace(module.CorkDispatcher, "inbound_call", _inbound)
        self.replace(module.CorkDispatcher, "outbound_call", _outbound)
        self.replace(module.CorkDispatcher, "split_job", _split)
        self.replace(module.Job, "__init__", _job)


# Ticket of the call that is being queued; tickets of the queued calls by their future.
_drawn: ContextVar[Ticket | None] = ContextVar("stagelens_bentoml", default=None)
_waiting: WeakKeyDictionary[Any, Ticket] = WeakKeyDictionary()


def _inbound(original: Any) -> Any:
    async def inbound_call(self: Any, data: Any) -> Any:
        drawn = ticket()
        token = _drawn.set(drawn)
        try:
            return await original(self, data)
        finally:
            _drawn.reset(token)
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
