"""What the process went through around a request, where nobody can say for how long that held which request up.

The background thread reads counters about once a second. A trace is told how much they grew between the last reading
before its request and the first one after it: so many in so long a time, of the whole process. None of it is a stall.
"""

from __future__ import annotations

import resource
import sys
from bisect import bisect_left, bisect_right
from collections import deque
from operator import attrgetter
from typing import Any, Final, NamedTuple

from ..core import names
from .instrumentor import report
from .recorder import clock

# Measured: a reading takes 5 µs.
LOOK_EVERY_NS: Final = 500_000_000
# Ten minutes; kept traces are at most an export old.
MAX_LOOKS: Final = 1200


class Look(NamedTuple):
    """One reading, in the order of `names.AROUND`.

    Args:
        at: When, by the recorder's clock. [nanoseconds]
        switches: How often a thread was taken off its CPU though it had more to do.
        major_faults: How many pages had to be read from a disk.
        allocator_retries: How often torch had no memory left on a device, and gave back what it had cached.
    """

    at: int
    switches: int
    major_faults: int
    allocator_retries: int


class Surroundings:
    """The latest readings of this process."""

    def __init__(self) -> None:
        self._looks: deque[Look] = deque(maxlen=MAX_LOOKS)

    def look(self, *, again: bool = False) -> None:
        """Read the counters, *again* also where that was done just now; never raises."""
        now = clock()
        if self._looks and now - self._looks[-1].at < LOOK_EVERY_NS and not again:
            return
        try:
            used = resource.getrusage(resource.RUSAGE_SELF)
            self._looks.append(Look(now, used.ru_nivcsw, used.ru_majflt, _allocator_retries()))
        except Exception:
            report("reading what the process goes through")

    def around(self, start: int, end: int) -> dict[str, int]:
        """Return what happened around a request as attributes of its root; none where nothing did, or nobody looked.

        Args:
            start: When it began, by the recorder's clock. [nanoseconds]
            end: When it ended. [nanoseconds]
        """
        looks = list(self._looks)
        before = bisect_right(looks, start, key=attrgetter("at")) - 1
        after = bisect_left(looks, end, key=attrgetter("at"))
        if before < 0 or after == len(looks):
            return {}
        grown = [last - first for first, last in zip(looks[before], looks[after], strict=True)]
        return {key: more for key, more in zip(names.AROUND, grown, strict=True) if more > 0} if any(grown[1:]) else {}


def _allocator_retries() -> int:
    torch: Any = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return 0
    return sum(cuda.memory_stats(device).get("num_alloc_retries", 0) for device in range(cuda.device_count()))
