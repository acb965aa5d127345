"""Rejection of data points, spans and traces: reasons, explanations for the sender, and plausible times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from ...core.columns import Bools
from ..otlp.model import Scalar

# Maximum number of explanations: a batch may have thousands of invalid points, and the first ones are enough to fix the sender.
MAX_MESSAGES = 5
MAX_VALUE_CHARS = 200
MAX_STAGE_CHARS = 64
UNKNOWN_SERVICE = "unknown_service"
NANOSECONDS = 1_000_000_000
# Far above any real count, and 200 days of stage time in microseconds; the sum of half a million such points fits into a
# signed 64-bit integer.
MAX_COUNT = 2**44


class Reason(StrEnum):
    """Reason to reject a data point or a trace; a label value of the collector's own metrics."""

    TYPE = "type"
    TEMPORALITY = "temporality"
    TIME = "time"
    SCALE = "scale"
    BUCKETS = "buckets"
    COUNT = "count"
    NEGATIVE = "negative"
    SUM = "sum"
    NUMBER = "number"
    STATUS = "status"
    STAGE = "stage"
    IDS = "ids"
    PARENT = "parent"
    DURATION = "duration"
    PARTITION = "partition"
    SIZE = "size"


class RejectedError(Exception):
    """One data point or one trace is invalid; the rest of its batch may be valid."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(slots=True)
class IngestResult:
    """Counts of the points, spans or log records of one export that are not stored."""

    ignored: int = 0
    rejected: Counter[Reason] = field(default_factory=Counter[Reason])
    messages: list[str] = field(default_factory=list[str])
    unexplained: int = 0

    def reject(self, reason: Reason, message: str, count: int = 1) -> None:
        if count == 0:
            return
        self.rejected[reason] += count
        self.explain(message)

    def explain(self, message: str) -> None:
        if len(self.messages) < MAX_MESSAGES:
            self.messages.append(message)
        else:
            self.unexplained += 1

    @property
    def error_message(self) -> str:
        more = [f"and {self.unexplained} more"] if self.unexplained else []
        return "; ".join([*self.messages, *more])


def printable_text(value: Scalar) -> str:
    r"""Return *value* as text of at most `MAX_VALUE_CHARS` printable characters; others show as U+FFFD.

    >>> printable_text(7), printable_text(True), printable_text("a\x00b")
    ('7', 'true', 'a�b')
    """
    if isinstance(value, str):
        shown = value[:MAX_VALUE_CHARS]
    else:
        shown = str(value).lower() if isinstance(value, bool) else str(value)
    if shown.isprintable():
        return shown
    return "".join(character if character.isprintable() else "\ufffd" for character in shown)


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """Range of plausible times, [oldest, newest], in Unix seconds."""

    oldest: int
    newest: int

    def check(self, time_ns: int) -> None:
        if not self.oldest <= time_ns // NANOSECONDS <= self.newest:
            raise RejectedError(Reason.TIME, self.explain(time_ns))

    def excludes(self, times: NDArray[np.uint64]) -> Bools:
        seconds = times // np.uint64(NANOSECONDS)
        return (seconds < max(self.oldest, 0)) | (seconds > max(self.newest, 0))

    def explain(self, time_ns: int) -> str:
        at = time_ns // NANOSECONDS
        wrong = f"more than a day ahead ({self.newest})" if at > self.newest else f"too long ago, before {self.oldest}"
        return f"its time, {at} s after 1970, is {wrong}; check the sender's clock"


class Validation:
    """Rejects rows of exports, each for the first reason that applies.

    Args:
        size: Number of rows.
        exports: Result of each export, with its range of rows, [low, high).
        name: Returns what a row is called in explanations.
    """

    def __init__(self, size: int, exports: Sequence[tuple[IngestResult, int, int]], name: Callable[[int], str]) -> None:
        self._exports, self._name = exports, name
        self.valid: Bools = np.ones(size, np.bool_)

    def reject(self, wrong: Bools, reason: Reason, explain: Callable[[int], str]) -> None:
        rejected = wrong & self.valid
        if not rejected.any():
            return
        self.valid &= ~wrong
        for result, low, high in self._exports:
            rows = low + np.flatnonzero(rejected[low:high])
            if len(rows):
                first = int(rows[0])
                more = "" if len(rows) == 1 else f" (and {len(rows) - 1} more)"
                result.reject(reason, f"{self._name(first)}: {explain(first)}{more}", len(rows))
