"""Finished requests with marks that are not yet known, such as times reported by a device or by another server.

Such a request waits until all of its marks are known, for a few seconds at most; then the known ones are added to it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from .instrumentor import log_failure
from .records import Late, Marks, Record

MAX_WAIT_SECONDS = 3.0
# About 2 MB; past it the oldest goes with what is known.
MAX_WAITING = 2048


class DeferredRecords:
    """Finished requests with unknown marks, oldest first."""

    def __init__(self) -> None:
        self._held: deque[tuple[float, Record]] = deque()

    def holds(self, record: Record, now: float) -> bool:
        """Return whether *record* has to wait, and store it if so; otherwise complete it.

        Args:
            record: A finished request.
            now: Time of the monotonic clock. [seconds]
        """
        if "@late" not in record[0][::3]:
            return False
        if is_ready(record[0]):
            complete(record[0])
            return False
        self._held.append((now + MAX_WAIT_SECONDS, record))
        return True

    def due(self, now: float) -> Iterator[Record]:
        """Remove and yield the requests that are complete or have waited long enough.

        Args:
            now: Time of the monotonic clock; infinity for all requests. [seconds]
        """
        for _ in range(len(self._held)):
            until, record = self._held.popleft()
            if now < until and len(self._held) < MAX_WAITING and not is_ready(record[0]):
                self._held.append((until, record))
                continue
            complete(record[0])
            yield record


def is_ready(marks: Marks) -> bool:
    """Return whether all late parts of *marks* are known; do not block."""
    try:
        return all(late.ready() for late in _lates(marks))
    except Exception:
        log_failure("asking what a device or server says of a request")
        return True


def complete(marks: Marks) -> None:
    """Add the late parts that are known by now; to be called once."""
    for late in _lates(marks):
        try:
            marks.extend(late.marks())
        except Exception:
            log_failure("reading what a device or server says of a request")


def _lates(marks: Marks) -> list[Late]:
    return [late for key, late in zip(marks[::3], marks[1::3], strict=False) if key == "@late"]
