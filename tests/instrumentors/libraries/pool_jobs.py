"""Jobs for the processes of a pool, which import them by name."""

from __future__ import annotations

import os
from pathlib import Path

from stagelens.instrumentors import records, trace_context
from stagelens.instrumentors.api import request, stage
from stagelens.instrumentors.records import clock

prepared: list[str] = []


def prepare(word: str) -> None:
    prepared.append(word)


def square(number: int) -> int:
    with stage("forward"):
        return number**2


def describe_process() -> tuple[int, int, bool, str, list[str]]:
    """Return the process id, the time, whether a request runs here, the propagated header, and the initializer."""
    marks = records.current.get()
    header = "" if marks is None else trace_context.traceparent(marks)
    return os.getpid(), clock(), marks is not None, header, prepared


class Failed(Exception):  # noqa: N818 - not ours to say
    def __init__(self, code: int, why: str) -> None:
        super().__init__(code, why)
        self.code = code


class OwnPickle(Exception):  # noqa: N818
    def __reduce__(self) -> tuple[type, tuple[str]]:
        return type(self), ("again",)


class OwnState(Exception):  # noqa: N818
    def __setstate__(self, state: dict[str, int] | None) -> None:
        """Refuse others, after which the pool would be broken."""
        if state != {"code": 7}:
            raise ValueError(state)
        self.code = 7


def fail(kind: type[Exception]) -> None:
    error = kind(7, "planted")
    vars(error)["code"] = 7
    with stage("forward"):
        raise error


def nested() -> None:
    """Be a request of its own, in the process."""
    with request("child"), stage("forward"):
        pass


def wait_at(gate: str) -> None:
    Path(gate).read_text()


def die() -> None:
    os._exit(3)
