"""What a request costs, found out without a clock on the request path: one is rehearsed, now and then.

The rehearsed request takes the real way: through the recorder, with real stages around nothing, and its record through a
fold of its own. It is done on the thread of a request that is about to begin: only there code and data are as far from the
processor as that service's own work leaves them. On a thread of ours, which sleeps in between, they are farther than in a
tight loop, twenty times the cost, or nearer than a model leaves them. Of many such the median holds: another thread may
have had the interpreter in the middle of any one.
"""

from __future__ import annotations

import contextvars
import random
import statistics
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from . import recorder
from .config import Keep
from .fold import Fold
from .levels import NOTHING, REQUESTS_ONLY
from .manual import request, stage
from .recorder import Record, clock

# A request of the usual kind has so many; how much one more costs shows in a row of them.
USUAL_STAGES, IN_A_ROW = 6, 24
REMEMBERED = 15


class PathCost:
    """What the thread of a request spends on its being recorded, with its stages (timed) and without them."""

    def __init__(self) -> None:
        # By whether it was timed: of requests without what each stage costs that follows others, and of such a stage.
        self._requests: dict[bool, deque[float]] = {timed: deque(maxlen=REMEMBERED) for timed in (True, False)}
        self._stages: dict[bool, deque[float]] = {timed: deque(maxlen=REMEMBERED) for timed in (True, False)}

    @property
    def known(self) -> bool:
        """Whether there was a rehearsal."""
        return bool(self._stages[True])

    def rehearse(self) -> None:
        """Find out once more, as `recorder.begin` asks for. It takes a tenth of a millisecond at most."""
        # The user's context has what makes a request one of theirs.
        contextvars.Context().run(self._rehearse)

    def _rehearse(self) -> None:
        begun = clock()
        timed = _rehearsed()
        took = clock() - begun
        bare, idle = _each_ns(_nothing), _each_ns(_staged)
        token = recorder.current.set([recorder.OPEN, 0, 0])
        written = _each_ns(_staged)
        recorder.end(token)
        # First: the background reads as soon as there are stages.
        self._requests[timed].append(max(0.0, took - USUAL_STAGES * (written if timed else idle)))
        self._stages[False].append(max(0.0, idle - bare))
        self._stages[True].append(max(0.0, written - bare))

    def of_ns(self, marks: float, *, timed: bool = True) -> float:
        """Return what a request costs, in nanoseconds, after one rehearsal at least.

        Args:
            marks: How many stages and facts of it are written down, or would be if it were timed.
            timed: Whether they are.
        """
        requests = self._requests[timed] or self._requests[not timed]
        return statistics.median(requests) + marks * statistics.median(self._stages[timed])


def _each_ns(stage: Callable[[], None]) -> float:
    begun = clock()
    for _ in range(IN_A_ROW):
        stage()
    return (clock() - begun) / IN_A_ROW


def _nothing() -> None:
    """Do nothing, as the least a stage can do."""


_staged = stage("forward")(_nothing)


@request("rehearsal")
def _rehearsed() -> bool:
    """Be a request in which nothing is done, and say whether its stages were written down."""
    timed = recorder.current.get()
    marks = timed or recorder.untimed.get()
    if marks is not None:
        # From before this process was forked, if it ever was: such are not counted.
        marks[1] = -1
    for _ in range(USUAL_STAGES):
        _staged()
    return timed is not None


class FoldCost:
    """What the background spends on counting a request, by level, found out with requests that there were."""

    def __init__(self) -> None:
        keep, rng = Keep(), random.Random()  # noqa: S311 - sampling, no secrets
        self._folds = [Fold(keep, rng) for _ in range(NOTHING)]
        for level, fold in enumerate(self._folds):
            fold.level = level
        self._costs: deque[list[int]] = deque(maxlen=REMEMBERED)

    def rehearse(self, record: Record) -> None:
        """Find out once more, with a *record* whose stages are there."""
        marks, *rest = record
        start, own = marks[:3], marks[6:] if recorder.UNTIMED in marks[3:4] else marks[3:]
        timed, spared = (start + own, *rest), ([*start, recorder.UNTIMED, 0, 0], *rest)
        self._costs.append([_took_ns(fold, spared if fold.level == REQUESTS_ONLY else timed) for fold in self._folds])

    def costs(self) -> list[float]:
        """Return nanoseconds a request, by level; zeros before the first rehearsal."""
        return [statistics.fmean(each) for each in zip(*self._costs, strict=True)] or [0.0] * len(self._folds)


def _took_ns(fold: Fold, record: Any) -> int:
    took = 0
    # Requests are counted many in a row, which is what the second time is like.
    for _ in range(2):
        begun = time.thread_time_ns()
        fold.add(record)
        took = time.thread_time_ns() - begun
        fold.take()
    return took
