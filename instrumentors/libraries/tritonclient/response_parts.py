"""A call to Triton that is answered in parts, as decoupled models do.

The wait is `network`, from the call to its last part; the first part is the request's first token, the longest time
between two parts its gap.
"""

from __future__ import annotations

from typing import Any

from ....core.names import BY_TRITON_RESPONSE
from ...instrumentor import report
from ...records import MAX_MARKS, Marks, clock
from .calls import Call

FINAL = "triton_final_response"


class Streamed(Call):
    """A call that is answered in parts."""

    __slots__ = ("_gap", "_last", "_parts", "_wait", "inferences")

    def __init__(self, marks: Marks, client: Any, model: str, version: str) -> None:
        super().__init__(marks, client, model, version)
        self._parts = 0
        self._last = self.begun
        self._wait = Growing(marks, "network", self.begun, self.begun)
        self._gap: Growing | None = None
        # Of a stream of asyncio, which is one call to us.
        self.inferences = 1

    def part(self, response: Any) -> bool:
        """Note that a part has come, and say whether the server calls it the last."""
        now = clock()
        self._wait.grow_end(now)
        last = is_last(response)
        # An empty one only says that it is the last; one that is all of the answer is no stream's first.
        if response.outputs and (self._parts or not last):
            self._parted(now)
        if response.outputs:
            self._parts += 1
            self._last = now
        return last

    def _parted(self, now: int) -> None:
        if len(self.marks) >= MAX_MARKS:
            return
        if not self._parts:
            self.marks.extend(("@first_token", now, BY_TRITON_RESPONSE))
        elif self._gap is None:
            self._gap = Growing(self.marks, "@gap", now - self._last, 0)
        else:
            self._gap.grow_start(now - self._last)

    def end(self, error: BaseException | None, status: str = "") -> None:
        """Note, once, that no part will come any more."""
        if self._ended:
            return
        self._ended = True
        try:
            if error is not None or not self._parts:
                self._last = clock()
                self._wait.grow_end(self._last)
            if len(self.marks) < MAX_MARKS:
                self.settle(self._last, error, status)
        except Exception:
            report("timing a stream of tritonclient")

    def settle(self, arrived: int, error: BaseException | None, status: str = "") -> None:
        """Say which model was called; an average tells of one inference, not of several in a row."""
        if self.inferences != 1:
            self.server = None
        super().settle(arrived, error, status)


class Growing:
    """One triple of marks that is written at once and changed later: a stream of a thousand parts is one wait.

    Args:
        marks: The request's.
        key: Its key.
        start: Its first value: a number of its own, by which it is found again.
        end: Its second value.
    """

    __slots__ = ("_at", "_key", "_marks", "_start")

    def __init__(self, marks: Marks, key: str, start: int, end: int) -> None:
        self._marks = marks
        self._key = key
        self._start = start
        self._at = 0
        if len(marks) < MAX_MARKS:
            marks.extend((key, start, end))

    def grow_start(self, value: int) -> None:
        """Raise the first value to *value*."""
        at = self._place()
        if at and value > self._start:
            self._marks[at + 1] = self._start = value

    def grow_end(self, value: int) -> None:
        """Raise the second value to *value*."""
        at = self._place()
        if at and value > self._marks[at + 2]:
            self._marks[at + 2] = value

    def _place(self) -> int:
        """Return where the triple stands, 0 if nowhere; other threads may have written after it, or made room before."""
        marks, at = self._marks, self._at
        if not self._stands(at):
            places = range(len(marks) - 3, 0, -3)
            self._at = at = next((place for place in places if self._stands(place)), 0)
        return at

    def _stands(self, at: int) -> bool:
        marks = self._marks
        return 0 < at < len(marks) and marks[at] == self._key and marks[at + 1] is self._start


def is_last(response: Any) -> bool:
    """Say whether a response is marked as the last of its call."""
    return FINAL in response.parameters and response.parameters[FINAL].bool_param
