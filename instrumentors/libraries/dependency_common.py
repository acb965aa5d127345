"""Shared by the clients of databases, queues and object stores: a call that raises is also recorded as a failed call."""

from __future__ import annotations

from typing import ClassVar, Final

from ..instrumentor import CallsInstrumentor, LongCall, Probed, log_failure, timed_call
from ..records import Marks, clock, has_capacity

FAILED: Final = "@failed"


class DependencyInstrumentor(CallsInstrumentor):
    """Base class of a client whose calls are stages, and that has a failed call for each call that raises.

    Attributes:
        service: Name of the client in the outcome of a failed call, such as "redis:timeout".
    """

    facts = ("failed_calls",)
    service: ClassVar[str] = ""

    def wrapper(self, stage: str) -> Probed:
        service = self.service
        # The part of the stage names the client in the trace.
        stage = f"{stage}@{service}"

        def failed(call: LongCall | None, error: BaseException) -> None:
            if call is not None:
                _record_failure(call.marks, call.stage, call.started, service, error)

        calls = timed_call(stage)
        calls.probe = calls.probe._replace(failed=failed)
        return calls


def _record_failure(marks: Marks, stage: str, started: int, service: str, error: BaseException) -> None:
    try:
        ended = clock()
        if has_capacity(marks):
            failure = (
                ()
                if _has_failed_inside(marks, stage, started)
                else (FAILED, f"{service}:{outcome(error)}", ended - started)
            )
            marks.extend((stage, started, ended, *failure))
    except Exception:
        log_failure(f"recording a failed call of {service}")


def _has_failed_inside(marks: Marks, stage: str, started: int) -> bool:
    """Return whether the last call, inside the call since *started*, has failed: that of a driver, whose failure is the same."""
    place, stage = len(marks) - 3, stage.partition("@")[0]
    while str(marks[place]).partition("@")[0] == stage and marks[place + 1] >= started:
        place -= 3
    return marks[place] == FAILED and marks[place - 2] >= started


def outcome(error: BaseException | None) -> str:
    """Return the outcome of a call that raised *error*: "timeout", "cancelled" or else "error".

    By the name of the class, because the classes come from asyncio, gevent, concurrent.futures and every client.

    >>> outcome(TimeoutError()), outcome(ValueError())
    ('timeout', 'error')
    """
    kind = type(error).__name__
    if error is not None and kind == "KafkaException":
        # That of librdkafka has an error with a name such as "_MSG_TIMED_OUT".
        kind = error.args[0].name()
    kind = kind.replace("_", "").lower()
    if isinstance(error, TimeoutError) or "timeout" in kind or "timedout" in kind:
        return "timeout"
    # The end of a greenlet, or of a coroutine that is closed.
    return "cancelled" if "cancel" in kind or kind.endswith("exit") else "error"
