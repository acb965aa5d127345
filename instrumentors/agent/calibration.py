"""Cost of recording a request, measured in this process: on the thread of the request and on the background thread.

A calibration request runs on the thread of a real one, whose CPU caches are in the state that the work of the service leaves; the
median counts, because another thread may have held the interpreter lock.
"""

from __future__ import annotations

import contextvars
import math
import random
import statistics
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from .. import recorder, records
from ..api import Request, stage
from ..config import SamplingLimits
from ..records import START, Record, clock
from .aggregate import NOTHING, REQUESTS_ONLY, Aggregator

# Number of stages of a typical request; number of consecutive stages with which the cost of one stage is measured.
USUAL_STAGES, IN_A_ROW = 6, 24
MAX_CALIBRATIONS = 15
# The same for the cost of aggregation, and the time between two of its calibrations once there are as many. [seconds]
MAX_AGGREGATIONS, AGGREGATION_EVERY_SECONDS = 5, 10.0


class PathCost:
    def __init__(self) -> None:
        # By whether the request was timed: cost of a request without its stages, and of one stage. [nanoseconds]
        self._requests: dict[bool, deque[float]] = {timed: deque(maxlen=MAX_CALIBRATIONS) for timed in (True, False)}
        self._stages: dict[bool, deque[float]] = {timed: deque(maxlen=MAX_CALIBRATIONS) for timed in (True, False)}

    @property
    def known(self) -> bool:
        return bool(self._stages[True])

    def calibrate(self) -> None:
        # In the user's context the calibration request might count as one of theirs.
        contextvars.Context().run(self._calibrate)

    def _calibrate(self) -> None:
        started = clock()
        timed = _calibration_request()
        took = clock() - started
        bare, idle = _each_ns(_empty_stage), _each_ns(_timed_empty_stage)
        token = records.current.set([records.OPEN, 0, 0])
        written = _each_ns(_timed_empty_stage)
        recorder.end(token)
        # Stored before the stages, because the background thread reads both as soon as the stages exist.
        self._requests[timed].append(max(0.0, took - USUAL_STAGES * (written if timed else idle)))
        self._stages[False].append(max(0.0, idle - bare))
        self._stages[True].append(max(0.0, written - bare))

    def of_ns(self, stages: float, *, timed: bool = True) -> float:
        requests = self._requests[timed] or self._requests[not timed]
        return statistics.median(requests) + stages * statistics.median(self._stages[timed])


def _each_ns(stage: Callable[[], None]) -> float:
    started = clock()
    for _ in range(IN_A_ROW):
        stage()
    return (clock() - started) / IN_A_ROW


def _empty_stage() -> None:
    """Do nothing."""


_timed_empty_stage = stage("forward")(_empty_stage)


@Request("calibration", [])
def _calibration_request() -> bool:
    timed = records.current.get()
    marks = timed or records.untimed.get()
    if marks is not None:
        # The start lies before the fork of this process: such requests are not counted.
        marks[START] = -1
    for _ in range(USUAL_STAGES):
        _timed_empty_stage()
    return timed is not None


class AggregationCost:
    """Cost of aggregating one request on the background thread, by level, measured with sampled requests."""

    def __init__(self) -> None:
        limits, rng = SamplingLimits(), random.Random()  # noqa: S311 - sampling, no secrets
        self._aggregators = [Aggregator(limits, rng) for _ in range(NOTHING)]
        for level, aggregator in enumerate(self._aggregators):
            aggregator.level = level
        self._costs: deque[list[int]] = deque(maxlen=MAX_AGGREGATIONS)
        self._calibrated_at = -math.inf

    def is_due(self, now: float) -> bool:
        """Return whether the cost is to be measured again: it takes half a millisecond, and changes with the requests only."""
        return len(self._costs) < MAX_AGGREGATIONS or now - self._calibrated_at >= AGGREGATION_EVERY_SECONDS

    def calibrate(self, record: Record, now: float) -> None:
        self._calibrated_at = now
        marks, *rest = record
        keys = marks[::3]
        at = 3 * keys.index(records.UNTIMED) if records.UNTIMED in keys else len(marks)
        timed, spared = (marks[:at] + marks[at + 3 :], *rest), ([*marks[:3], records.UNTIMED, 0, 0], *rest)
        self._costs.append(
            [
                _aggregation_ns(aggregator, spared if aggregator.level == REQUESTS_ONLY else timed)
                for aggregator in self._aggregators
            ]
        )

    def costs(self) -> list[float]:
        return [statistics.fmean(costs) for costs in zip(*self._costs, strict=True)] or [0.0] * len(self._aggregators)


def _aggregation_ns(aggregator: Aggregator, record: Any) -> int:
    took = 0
    # Requests are aggregated in bulk; the second run represents this warm state.
    for _ in range(2):
        started = time.thread_time_ns()
        aggregator.add(record)
        took = time.thread_time_ns() - started
        aggregator.take()
    for _, attributes in aggregator.attributes():
        deque(attributes.take(), maxlen=0)
    return took
