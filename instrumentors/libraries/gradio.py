"""Gradio: counts each event of its queue as a request, and times the function of the event.

- The route is the name of the event in Gradio's API, such as `/predict`, or the name of its function.
- The [Starlette and FastAPI](starlette.md) module counts the web requests. Those of the queue only add events, and wait for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from typing import Any

from .. import recorder
from ..instrumentor import Instrumentor, Target, log_failure, timed
from ..recorder import begin, end, finish
from ..records import FIRST_FACT, ROUTE, START, Marks, clock, current, triples_of


class GradioInstrumentor(Instrumentor):
    library = "gradio"
    title = "Gradio"
    stages = {
        "queue": "the time from the entry of an event into Gradio's queue until it is processed",
        "preprocess": "the conversion of the inputs by the components",
        "handler": "the function of the event",
        "postprocess": "the conversion of the outputs by the components",
        "framework": "the rest of the processing of an event",
    }
    not_timed = ("the way of the result to the browser",)
    tested = {"gradio": "6.31.0"}

    def targets(self) -> Iterable[Target]:
        return (
            ("gradio.queueing:Event", _event, "__init__"),
            ("gradio.queueing:Queue", _process_events, "process_events"),
            ("gradio.route_utils", _call, "call_process_api"),
            ("gradio.blocks:Blocks", timed("preprocess"), "preprocess_data"),
            ("gradio.blocks:Blocks", timed("handler"), "call_function"),
            ("gradio.blocks:Blocks", timed("postprocess"), "postprocess_data"),
        )


# Classes of the exceptions in the events that the current task processes.
_errors: ContextVar[list[str] | None] = ContextVar("stagelens_gradio", default=None)


def _event(original: Any) -> Any:
    def __init__(self: Any, *args: Any, **options: Any) -> None:  # noqa: N807 - shown in tracebacks
        original(self, *args, **options)
        self.stagelens_queued = clock()

    return __init__


def _call(original: Any) -> Any:
    async def call_process_api(*args: Any, **options: Any) -> Any:
        try:
            return await original(*args, **options)
        except BaseException as error:
            errors = _errors.get()
            if errors is not None:
                errors.append(type(error).__qualname__)
            raise

    return call_process_api


def _process_events(original: Any) -> Any:
    async def process_events(
        self: Any, events: Sequence[Any], batch: Any, begin_time: Any, fn: Any, **options: Any
    ) -> Any:
        # The task may run in the context of the web request that has started the queue.
        outer = current.set(None)
        opened = begin()
        if opened is None:
            current.reset(outer)
            return await original(self, events, batch, begin_time, fn, **options)
        marks, token = opened
        marks[ROUTE] = _route(fn)
        queued = [getattr(event, "stagelens_queued", marks[START]) for event in events if getattr(event, "alive", True)]
        errors: list[str] = []
        noted = _errors.set(errors)
        try:
            return await original(self, events, batch, begin_time, fn, **options)
        finally:
            ended = clock()
            _errors.reset(noted)
            end(token)
            current.reset(outer)
            if not queued:
                recorder.discard(marks)
            try:
                _finish(marks, queued, ended, _route(fn), errors[-1] if errors else "")
            except Exception:
                log_failure("recording an event of Gradio")

    return process_events


def _finish(marks: Marks, queued: Sequence[int], ended: int, route: str, error_type: str) -> None:
    started = marks[START]
    if len(queued) > 1:
        marks.extend(("@batch", len(queued), 0))
    # Facts of the first event, such as its trace, are no facts of the others.
    shared = [mark for triple in triples_of(marks) if triple[0] == "@batch" or triple[0][0] != "@" for mark in triple]
    for number, since in enumerate(queued):
        event_marks = [*marks[:FIRST_FACT], *shared] if number else marks
        event_marks.extend(("queue", since, started, "framework", started, ended))
        finish(event_marks, since, ended, route, error_type)


def _route(fn: Any) -> str:
    name = getattr(fn, "api_name", None) or getattr(fn, "name", None)
    return f"/{name}" if isinstance(name, str) else ""
