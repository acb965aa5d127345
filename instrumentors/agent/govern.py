"""The cost of the agent in this process, and the governor that keeps it within STAGELENS_OVERHEAD_BUDGET.

Requests are not measured. Once a second, before a request starts, a calibration request measures the cost on the request's
thread (`PathCost`); this cost is multiplied by the number of marks. It takes the real way through the recorder, with real
stages around nothing, because only on that thread code and data are as far from the processor as the work of the service
leaves them. The median of many calibrations counts: another thread may have held the interpreter during any one. The CPU
time of our own threads is measured (`CpuAccount`).

The governor lowers the level as soon as the cost has exceeded the budget for a few seconds, to the first level whose expected
cost fits. It raises the level only after the next one has been expected to fit, with a margin, for a while. After a raise
that soon had to be undone, the next one waits twice as long, up to an hour, so that a varying load changes the level rarely.
A new level takes effect in `recorder.begin` and in the aggregation.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
import math
import random
import statistics
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from ...core import names
from .. import recorder, records
from ..api import request, stage
from ..config import Budget, Keep
from ..records import Record, clock
from .aggregate import ALL, NOTHING, REQUESTS_ONLY, Aggregator, Delta, Dimensions, RequestTotals

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

    def calibrate(self) -> None:
        """Find out once more, as `recorder.begin` asks for. It takes a tenth of a millisecond at most."""
        # The user's context has what makes a request one of theirs.
        contextvars.Context().run(self._calibrate)

    def _calibrate(self) -> None:
        begun = clock()
        timed = _calibration_request()
        took = clock() - begun
        bare, idle = _each_ns(_nothing), _each_ns(_staged)
        token = records.current.set([records.OPEN, 0, 0])
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


@request("calibration")
def _calibration_request() -> bool:
    """Be a request in which nothing is done, and say whether its stages were written down."""
    timed = records.current.get()
    marks = timed or records.untimed.get()
    if marks is not None:
        # From before this process was forked, if it ever was: such are not counted.
        marks[1] = -1
    for _ in range(USUAL_STAGES):
        _staged()
    return timed is not None


class AggregationCost:
    """What the background spends on counting a request, by level, found out with requests that there were."""

    def __init__(self) -> None:
        keep, rng = Keep(), random.Random()  # noqa: S311 - sampling, no secrets
        self._folds = [Aggregator(keep, rng) for _ in range(NOTHING)]
        for level, fold in enumerate(self._folds):
            fold.level = level
        self._costs: deque[list[int]] = deque(maxlen=REMEMBERED)

    def calibrate(self, record: Record) -> None:
        """Find out once more, with a *record* whose stages are there."""
        marks, *rest = record
        start, own = marks[:3], marks[6:] if records.UNTIMED in marks[3:4] else marks[3:]
        timed, spared = (start + own, *rest), ([*start, records.UNTIMED, 0, 0], *rest)
        self._costs.append([_took_ns(fold, spared if fold.level == REQUESTS_ONLY else timed) for fold in self._folds])

    def costs(self) -> list[float]:
        """Return nanoseconds a request, by level; zeros before the first rehearsal."""
        return [statistics.fmean(each) for each in zip(*self._costs, strict=True)] or [0.0] * len(self._folds)


def _took_ns(fold: Aggregator, record: Any) -> int:
    took = 0
    # Requests are counted many in a row, which is what the second time is like.
    for _ in range(2):
        begun = time.thread_time_ns()
        fold.add(record)
        took = time.thread_time_ns() - begun
        fold.take()
    return took


# An agent that takes no more of one core is over no budget, whatever it costs a request: of the few requests of an idle
# service each pays for the exports of a whole minute. [ratio]
FREE_SHARE = 0.01
# Over the budget for so long: down. [seconds]
PATIENCE_SECONDS = 3.0
# Within this part of the budget for so long: up. [ratio, seconds]
ROOM = 0.7
CALM_SECONDS, MAX_CALM_SECONDS = 60.0, 3600.0
# Who is over the budget again so soon went up in vain. [seconds]
RELAPSE_SECONDS = 600.0


class Look(NamedTuple):
    """What a stretch of time was like.

    Args:
        now: Its end, by a monotonic clock. [seconds]
        costs_ns: What a request costs or would cost, by level; at the last, which records nothing, 0. [nanoseconds]
        duration_ns: How long requests take. [nanoseconds]
        rate: How many there are. [1/s]
    """

    now: float
    costs_ns: Sequence[float]
    duration_ns: float
    rate: float


class Governor:
    """Decides the level.

    Args:
        budget: What the agent may cost.

    Attributes:
        level: What may be recorded; a position in `AGENT_LEVELS`.
    """

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.level = ALL
        self._calm_seconds = CALM_SECONDS
        # Since when the budget has been exceeded, since when there has been room, and when there last was a rise.
        self._over: float | None = None
        self._room: float | None = None
        self._rose = -math.inf

    def look(self, look: Look) -> bool:
        """Take in how things are; say whether that changes the level."""
        fitting, roomy = (self._first_fit(look, part) for part in (1.0, ROOM))
        self._over = None if fitting <= self.level else look.now if self._over is None else self._over
        self._room = None if roomy >= self.level else look.now if self._room is None else self._room
        if self._over is not None and look.now - self._over >= PATIENCE_SECONDS:
            self._fall(fitting, look.now)
        elif self._room is not None and look.now - self._room >= self._calm_seconds:
            self._rise(roomy, look.now)
        else:
            return False
        return True

    def rest(self, now: float) -> bool:
        """Where nothing is recorded, and so nothing known, count requests again after a while; say whether that is now."""
        self._room = now if self._room is None else self._room
        if self.level != NOTHING or now - self._room < self._calm_seconds:
            return False
        self._rise(REQUESTS_ONLY, now)
        return True

    def _fall(self, level: int, now: float) -> None:
        relapsed = now - self._rose < RELAPSE_SECONDS
        self._calm_seconds = min(2 * self._calm_seconds, MAX_CALM_SECONDS) if relapsed else CALM_SECONDS
        self._go(level)

    def _rise(self, level: int, now: float) -> None:
        self._rose = now
        self._go(level)

    def _go(self, level: int) -> None:
        self.level = level
        self._over = self._room = None

    def _first_fit(self, look: Look, part: float) -> int:
        """Return the first level whose cost is within *part* of what it may be."""
        allowed_ns, free_ns = part * self._budget.allows_ns(look.duration_ns), part * FREE_SHARE * 1e9
        return next(
            level for level, cost in enumerate(look.costs_ns) if cost <= allowed_ns or cost * look.rate <= free_ns
        )


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

    def __init__(self, budget: Budget | None, fold: Aggregator, processor: Processor) -> None:
        self._governor = Governor(budget) if budget is not None else None
        self._budget = budget
        self._fold = fold
        self._processor = processor
        self._path, self._counting = PathCost(), AggregationCost()
        self._looked_at = self._exported_at = time.monotonic()
        self._calibrated_at = -math.inf
        self._spare = recorder.NEVER
        self._before = RequestTotals()
        self._spent_before = self._told_before = self._exported_before = processor.spent_ns()
        # Of a request that is recorded with its stages.
        self._marks = 0.0
        # What exports take, and their traces, when last there were any. [nanoseconds of CPU time a second]
        self._exporting = self._tracing = 0.0

    @property
    def level(self) -> int:
        """What is recorded, as a position in `AGENT_LEVELS`."""
        return self._governor.level if self._governor is not None else ALL

    def calibrate(self) -> None:
        """Have the thread of the next request find out, once a second, what a request costs."""
        now = time.monotonic()
        # A rehearsed request that finds no room would count as dropped; where nothing is recorded, neither would it be.
        has_room = self.level < NOTHING and len(recorder.pending) < recorder.MAX_PENDING // 2
        if has_room and now - self._calibrated_at >= LOOK_EVERY_SECONDS:
            self._calibrated_at = now
            recorder.calibrate = self._path.calibrate
            recorder.spare = self._spare | recorder.CALIBRATION

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
                self._counting.calibrate(samples[0])
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
