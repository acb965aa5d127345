"""What the agent costs this process, and what it does about it.

No request is measured. What its thread spends is rehearsed once a second, before a request begins (`rehearsal.py`), and
multiplied by what was written down; what our own threads spend is measured, as their CPU time. The governor is asked once a
second, and its decision takes effect where it costs nothing: in `recorder.begin` and in the fold.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Generator
from typing import Literal, TypeAlias

from ..core import names
from . import recorder
from .fold import Delta, Dimensions, Fold
from .governor import Budget, Governor, Look
from .levels import ALL, NOTHING, REQUESTS_ONLY, Load
from .self_calibration import FoldCost, PathCost

logger = logging.getLogger("stagelens")

LOOK_EVERY_SECONDS = 1.0
# Fewer say little about what requests are like.
MIN_REQUESTS = 20

_SAID = (
    "everything is recorded",
    "no traces are kept",
    "no traces are kept and no tokens, batch sizes and failed calls counted",
    "requests are counted without their stages",
    "nothing is recorded",
)
Work: TypeAlias = Literal["counting", "export", "traces"]


class Processor:
    """The CPU time of our threads in nanoseconds, by what they did with it.

    Args:
        sending_ns: Returns that of the thread that posts.
    """

    def __init__(self, sending_ns: Callable[[], int]) -> None:
        self._sending_ns = sending_ns
        self._spent: Counter[Work] = Counter()
        self._paused_ns = 0

    @contextlib.contextmanager
    def spending(self, work: Work) -> Generator[None]:
        """Count what is spent inside as spent on *work*."""
        begun = self._now()
        try:
            yield
        finally:
            self._spent[work] += self._now() - begun

    def pause(self, seconds: float) -> None:
        """Sleep; what greenlets of the same thread do meanwhile is not ours."""
        begun = time.thread_time_ns()
        time.sleep(seconds)
        self._paused_ns += time.thread_time_ns() - begun

    def spent_ns(self) -> dict[Work, int]:
        """Return what was spent so far; what the posting thread spent on exports as well."""
        return {
            "counting": self._spent["counting"],
            "export": self._spent["export"] + self._sending_ns(),
            "traces": self._spent["traces"],
        }

    def _now(self) -> int:
        return time.thread_time_ns() - self._paused_ns


class Overhead:
    """What recording costs, and how much of it is done.

    Args:
        budget: What it may cost; None to measure only.
        fold: What counts the requests.
        processor: What our threads spend.
    """

    def __init__(self, budget: Budget | None, fold: Fold, processor: Processor) -> None:
        self._governor = Governor(budget) if budget is not None else None
        self._budget = budget
        self._fold = fold
        self._processor = processor
        self._path, self._counting = PathCost(), FoldCost()
        self._looked_at = self._exported_at = time.monotonic()
        self._rehearsed_at = -math.inf
        self._spare = recorder.NEVER
        self._before = Load()
        self._spent_before = self._told_before = self._exported_before = processor.spent_ns()
        # Of a request that is recorded with its stages.
        self._marks = 0.0
        # What exports take, and their traces, when last there were any. [nanoseconds of CPU time a second]
        self._exporting = self._tracing = 0.0

    @property
    def level(self) -> int:
        """What is recorded, as a position in `AGENT_LEVELS`."""
        return self._governor.level if self._governor is not None else ALL

    def rehearse(self) -> None:
        """Have the thread of the next request find out, once a second, what a request costs."""
        now = time.monotonic()
        # A rehearsed request that finds no room would count as dropped; where nothing is recorded, neither would it be.
        has_room = self.level < NOTHING and len(recorder.pending) < recorder.MAX_PENDING // 2
        if has_room and now - self._rehearsed_at >= LOOK_EVERY_SECONDS:
            self._rehearsed_at = now
            recorder.rehearse = self._path.rehearse
            recorder.spare = self._spare | recorder.REHEARSAL

    def look(self) -> None:
        """Once a second, and where there were requests: see what they cost, and record as much as the budget lets."""
        governor, now, before = self._governor, time.monotonic(), self.level
        if governor is None:
            return
        if before == NOTHING:
            if governor.rest(now):
                self._apply("whether that fits the budget is tried")
            return
        seconds = now - self._looked_at
        look = self._seen(now, seconds) if seconds >= LOOK_EVERY_SECONDS and self._path.known else None
        if look is not None and governor.look(look):
            self._apply(_why(look, before, self.level, self._budget))

    def exported(self) -> None:
        """Note that an export has just been made."""
        now, spent = time.monotonic(), self._processor.spent_ns()
        seconds = now - self._exported_at
        if seconds < LOOK_EVERY_SECONDS:
            return
        self._exporting = (spent["export"] - self._exported_before["export"]) / seconds
        if self.level == ALL:
            self._tracing = (spent["traces"] - self._exported_before["traces"]) / seconds
        self._exported_at, self._exported_before = now, spent

    def tell(self, deltas: dict[Dimensions, Delta]) -> None:
        """Add to *deltas* what their requests cost; and, where nothing is recorded, one that says so."""
        loads = [(delta, level, load) for delta in deltas.values() for level, load in delta.loads.items()]
        if self.level == NOTHING:
            silent = deltas.setdefault(Dimensions("", "", "", "", names.STATUS_OK), self._fold.nothing())
            silent.counts.add_stream(names.AGENT_COST, names.AGENT_LEVELS[NOTHING], 0.0)
        if not loads or not self._path.known:
            return
        spent = self._processor.spent_ns()
        background_ns = sum(spent.values()) - sum(self._told_before.values())
        self._told_before = spent
        each_ns = max(0.0, background_ns / sum(load.requests for _, _, load in loads))
        for delta, level, load in loads:
            path_ns = self._path_ns(level, load.marks / load.requests)
            key = names.AGENT_LEVELS[level]
            delta.counts.add_equal(names.AGENT_COST, key, path_ns / 1e9, load.requests)
            delta.counts.add_equal(names.AGENT_BACKGROUND, key, each_ns / 1e9, load.requests)

    def _seen(self, now: float, seconds: float) -> Look | None:
        """Return what the last *seconds* were like; None where there were too few requests to say."""
        load = self._fold.load()
        seen = load.since(self._before)
        if seen.requests < MIN_REQUESTS:
            return None
        spent = self._processor.spent_ns()
        counting_ns = (spent["counting"] - self._spent_before["counting"]) / seen.requests
        self._looked_at, self._before, self._spent_before = now, load, spent
        samples = self._fold.samples
        if samples:
            with self._processor.spending("counting"):
                self._counting.rehearse(samples[0])
            samples.rotate()
        if self.level < REQUESTS_ONLY:
            self._marks = seen.marks / seen.requests
        elif samples:
            # But for the first three places, which say whether it runs, and the next, which say that it is not timed.
            self._marks = sum(len(record[0]) // 3 - 2 for record in samples) / len(samples)
        rate = seen.requests / seconds
        return Look(now, self._costs_ns(counting_ns, rate), seen.duration_ns / seen.requests, rate)

    def _costs_ns(self, counting_ns: float, rate: float) -> list[float]:
        """Return what a request costs, or would, by level."""
        rehearsed = self._counting.costs()
        costs: list[float] = []
        for level in range(NOTHING):
            counting = max(0.0, counting_ns + rehearsed[level] - rehearsed[min(self.level, REQUESTS_ONLY)])
            tracing = self._tracing if level == ALL else 0.0
            costs.append(self._path_ns(level, self._marks) + counting + (self._exporting + tracing) / rate)
        return [*costs, 0.0]

    def _path_ns(self, level: int, marks: float) -> float:
        if level < REQUESTS_ONLY:
            return self._path.of_ns(marks)
        # One of so many is timed all the same.
        return self._path.of_ns(self._marks, timed=False) + self._path.of_ns(self._marks) / recorder.SCOUTS

    def _apply(self, why: str) -> None:
        level = self.level
        self._fold.level = min(level, REQUESTS_ONLY)
        self._spare = {REQUESTS_ONLY: recorder.WITHOUT_STAGES, NOTHING: recorder.NOTHING}.get(
            level, recorder.TIMED_AGAIN
        )
        recorder.spare = self._spare
        logger.warning("stagelens: %s from here on: %s", _SAID[level], why)


def _why(look: Look, before: int, level: int, budget: Budget | None) -> str:
    cost, then, mean = (
        f"{nanoseconds / 1000:.3g} us"
        for nanoseconds in (look.costs_ns[before], look.costs_ns[level], look.duration_ns)
    )
    return (
        f"with what was until now it costs a request {cost}, with this {then}, where requests take {mean} and "
        f"STAGELENS_OVERHEAD_BUDGET allows {budget}"
    )
