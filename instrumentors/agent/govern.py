"""The governor that limits the cost of the agent in this process to STAGELENS_OVERHEAD_BUDGET.

It lowers the level when the cost, which about every two seconds is measured, has exceeded the budget for ten seconds, and raises it
when the next one has fit for a while, which doubles after each raise that had to be undone. The tail profiler gets what the rest
leaves of the budget.
"""

from __future__ import annotations

import contextlib
import logging
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from typing import Literal, NamedTuple, TypeAlias

from ...core import names
from .. import recorder, recorder_state
from ..config import OverheadBudget
from ..recorder_state import state
from ..request_marks import read_request
from .aggregate import ALL, NO_FACTS, NOTHING, REQUESTS_ONLY, Aggregator, Delta, Dimensions, RequestTotals
from .calibration import AggregationCost, PathCost

logger = logging.getLogger("stagelens")

# An agent that uses at most this share of one core never exceeds the budget: each of the few requests of an idle service pays
# for the exports of a whole minute. [ratio]
FREE_SHARE = 0.01
# Share of a core that the tail profiler may use even if the rest uses up the budget. [ratio]
MIN_PROFILER_SHARE = 0.003
# Lower the level after this time over the budget. [seconds]
OVER_BUDGET_SECONDS = 10.0
# Raise the level after this time within this part of the budget. [ratio, seconds]
RAISE_MARGIN = 0.7
RAISE_AFTER_SECONDS, MAX_RAISE_AFTER_SECONDS = 60.0, 3600.0
# A raise failed if the budget is exceeded again within this time. [seconds]
RELAPSE_SECONDS = 600.0
SAMPLE_EVERY_SECONDS = 1.0
# Fewer requests are no representative sample.
MIN_SAMPLE_REQUESTS = 20
_LEVEL_TEXTS = (
    "everything is recorded",
    "no traces are retained",
    "no traces are retained, and no tokens, batch sizes and failed calls are counted",
    "requests are counted without their stages",
    "nothing is recorded",
)


class CostSample(NamedTuple):
    now: float
    costs_ns: Sequence[float]
    duration_ns: float
    rate: float


class Governor:
    def __init__(self, budget: OverheadBudget) -> None:
        self._budget = budget
        self.level = ALL
        self._raise_after_seconds = RAISE_AFTER_SECONDS
        # Start of the time over the budget, start of the time with a margin, and time of the last raise. [seconds]
        self._over: float | None = None
        self._margin_since: float | None = None
        self._rose = -math.inf

    def update(self, sample: CostSample) -> bool:
        fitting, with_margin = (self._first_fit(sample, part) for part in (1.0, RAISE_MARGIN))
        self._over = None if fitting <= self.level else sample.now if self._over is None else self._over
        self._margin_since = (
            None if with_margin >= self.level else sample.now if self._margin_since is None else self._margin_since
        )
        if self._over is not None and sample.now - self._over >= OVER_BUDGET_SECONDS:
            self._fall(fitting, sample.now)
        elif self._margin_since is not None and sample.now - self._margin_since >= self._raise_after_seconds:
            self._rise(with_margin, sample.now)
        else:
            return False
        return True

    def try_again(self, now: float) -> bool:
        """At level `NOTHING`, where costs are unknown, count requests again after a waiting time; return whether counting resumed."""
        self._margin_since = now if self._margin_since is None else self._margin_since
        if self.level != NOTHING or now - self._margin_since < self._raise_after_seconds:
            return False
        self._rise(REQUESTS_ONLY, now)
        return True

    def _fall(self, level: int, now: float) -> None:
        relapsed = now - self._rose < RELAPSE_SECONDS
        self._raise_after_seconds = (
            min(2 * self._raise_after_seconds, MAX_RAISE_AFTER_SECONDS) if relapsed else RAISE_AFTER_SECONDS
        )
        self._go(level)

    def _rise(self, level: int, now: float) -> None:
        self._rose = now
        self._go(level)

    def _go(self, level: int) -> None:
        self.level = level
        self._over = self._margin_since = None

    def profiler_share(self, sample: CostSample) -> float:
        if self.level >= NO_FACTS:
            return 0.0
        allowed_ns = max(self._budget.allows_ns(sample.duration_ns) * sample.rate, FREE_SHARE * 1e9)
        return max(MIN_PROFILER_SHARE, (allowed_ns - sample.costs_ns[self.level] * sample.rate) / 1e9)

    def _first_fit(self, sample: CostSample, part: float) -> int:
        allowed_ns, free_ns = part * self._budget.allows_ns(sample.duration_ns), part * FREE_SHARE * 1e9
        return next(
            level for level, cost in enumerate(sample.costs_ns) if cost <= allowed_ns or cost * sample.rate <= free_ns
        )


Work: TypeAlias = Literal["counting", "export", "traces", "attributes", "profile"]


class CpuAccount:
    def __init__(self, sending_ns: Callable[[], int], profiling_ns: Callable[[], int] = int) -> None:
        self._sending_ns = sending_ns
        self._profiling_ns = profiling_ns
        self._spent: Counter[Work] = Counter()
        self._paused_ns = 0

    @contextlib.contextmanager
    def spending(self, work: Work) -> Generator[None]:
        started = self._now()
        try:
            yield
        finally:
            self._spent[work] += self._now() - started

    def pause(self, seconds: float) -> None:
        started = time.thread_time_ns()
        time.sleep(seconds)
        self._paused_ns += time.thread_time_ns() - started

    def spent_ns(self) -> dict[Work, int]:
        return {
            "counting": self._spent["counting"],
            "export": self._spent["export"] + self._sending_ns(),
            "traces": self._spent["traces"],
            "attributes": self._spent["attributes"],
            "profile": self._profiling_ns(),
        }

    def _now(self) -> int:
        return time.thread_time_ns() - self._paused_ns


class CostController:
    def __init__(self, budget: OverheadBudget | None, aggregator: Aggregator, cpu: CpuAccount) -> None:
        self._governor = Governor(budget) if budget is not None else None
        self._budget = budget
        self._aggregator = aggregator
        self._cpu = cpu
        self._path, self._counting = PathCost(), AggregationCost()
        self._sampled_at = self._exported_at = time.monotonic()
        self._calibrated_at = -math.inf
        self._mode = recorder_state.WITH_STAGES
        self._before = RequestTotals()
        self._spent_before = self._added_before = self._exported_before = cpu.spent_ns()
        # Mean number of stages of a request that is recorded with them. Facts cost little: most are recorded with a stage.
        self._stages = 0.0
        # CPU time of the latest exports, of their traces, and of the latest export of attributes. [nanoseconds per second]
        self._exporting = self._tracing = self._attributing = 0.0
        self._attributes_at, self._attributes_before = self._exported_at, self._exported_before
        # Part of a core that the profiler may use.
        self.profiler_share = 1.0

    @property
    def level(self) -> int:
        return self._governor.level if self._governor is not None else ALL

    def calibrate(self) -> None:
        now = time.monotonic()
        # A calibration request that finds the queue full would count as dropped; at level `NOTHING` it would not be recorded.
        has_capacity = self.level < NOTHING and len(recorder.pending) < recorder.MAX_PENDING // 2
        if has_capacity and now - self._calibrated_at >= SAMPLE_EVERY_SECONDS:
            self._calibrated_at = now
            state.calibrate_next(self._mode, self._path.calibrate)

    def adjust(self) -> None:
        governor, now, before = self._governor, time.monotonic(), self.level
        if governor is None:
            return
        if before == NOTHING:
            if governor.try_again(now):
                self._apply("the agent tests whether the cost is within the budget")
            return
        seconds = now - self._sampled_at
        sample = self._sample(now, seconds) if seconds >= SAMPLE_EVERY_SECONDS and self._path.known else None
        if sample is None:
            return
        if governor.update(sample):
            self._apply(_describe_change(sample, before, self.level, self._budget))
        self.profiler_share = governor.profiler_share(sample)

    def note_export(self) -> None:
        now, spent = time.monotonic(), self._cpu.spent_ns()
        seconds = now - self._exported_at
        if seconds < SAMPLE_EVERY_SECONDS:
            return
        self._exporting = (spent["export"] - self._exported_before["export"]) / seconds
        if self.level == ALL:
            self._tracing = (spent["traces"] - self._exported_before["traces"]) / seconds
        self._exported_at, self._exported_before = now, spent

    def note_attributes(self) -> None:
        now, spent = time.monotonic(), self._cpu.spent_ns()
        seconds = now - self._attributes_at
        if self.level < NO_FACTS and seconds >= SAMPLE_EVERY_SECONDS:
            self._attributing = (spent["attributes"] - self._attributes_before["attributes"]) / seconds
        self._attributes_at, self._attributes_before = now, spent

    def add_costs(self, deltas: dict[Dimensions, Delta]) -> None:
        loads = [(delta, level, load) for delta in deltas.values() for level, load in delta.loads.items()]
        if self.level == NOTHING:
            silent = deltas.setdefault(Dimensions("", "", "", "", names.STATUS_OK), self._aggregator.nothing())
            silent.counts.add_stream(names.AGENT_COST, names.AGENT_LEVELS[NOTHING], 0.0)
        if not loads or not self._path.known:
            return
        spent = self._cpu.spent_ns()
        background_ns = sum(spent.values()) - sum(self._added_before.values())
        self._added_before = spent
        each_ns = max(0.0, background_ns / sum(load.requests for _, _, load in loads))
        for delta, level, load in loads:
            path_ns = self._path_ns(level, load.stages / load.requests)
            key = names.AGENT_LEVELS[level]
            delta.counts.add_equal(names.AGENT_COST, key, path_ns / 1e9, load.requests)
            delta.counts.add_equal(names.AGENT_BACKGROUND, key, each_ns / 1e9, load.requests)

    def _sample(self, now: float, seconds: float) -> CostSample | None:
        load = self._aggregator.load()
        seen = load.since(self._before)
        if seen.requests < MIN_SAMPLE_REQUESTS:
            return None
        spent = self._cpu.spent_ns()
        counting_ns = (spent["counting"] - self._spent_before["counting"]) / seen.requests
        self._sampled_at, self._before, self._spent_before = now, load, spent
        samples = self._aggregator.samples
        if samples and self._counting.is_due(now):
            with self._cpu.spending("counting"):
                self._counting.calibrate(samples[0], now)
            samples.rotate()
        if self.level < REQUESTS_ONLY:
            self._stages = seen.stages / seen.requests
        elif samples:
            self._stages = statistics.fmean(len(read_request(record).intervals) for record in samples)
        rate = seen.requests / seconds
        return CostSample(now, self._costs_ns(counting_ns, rate), seen.duration_ns / seen.requests, rate)

    def _costs_ns(self, counting_ns: float, rate: float) -> list[float]:
        calibrated = self._counting.costs()
        costs: list[float] = []
        for level in range(NOTHING):
            counting = max(0.0, counting_ns + calibrated[level] - calibrated[min(self.level, REQUESTS_ONLY)])
            tracing = self._tracing if level == ALL else 0.0
            attributing = self._attributing if level < NO_FACTS else 0.0
            spent = self._exporting + tracing + attributing
            costs.append(self._path_ns(level, self._stages) + counting + spent / rate)
        return [*costs, 0.0]

    def _path_ns(self, level: int, stages: float) -> float:
        if level < REQUESTS_ONLY:
            return self._path.of_ns(stages)
        # One request in `SCOUTS` is still timed.
        return self._path.of_ns(self._stages, timed=False) + self._path.of_ns(self._stages) / recorder.SCOUTS

    def _apply(self, why: str) -> None:
        level = self.level
        self._aggregator.level = min(level, REQUESTS_ONLY)
        modes = {REQUESTS_ONLY: recorder_state.WITHOUT_STAGES, NOTHING: recorder_state.NOTHING}
        self._mode = state.mode = modes.get(level, recorder_state.TIMED_AGAIN)
        logger.warning("stagelens: from now on %s: %s", _LEVEL_TEXTS[level], why)


def _describe_change(sample: CostSample, before: int, level: int, budget: OverheadBudget | None) -> str:
    cost, then, mean = (
        f"{nanoseconds / 1000:.3g} us"
        for nanoseconds in (sample.costs_ns[before], sample.costs_ns[level], sample.duration_ns)
    )
    return (
        f"overhead per request was {cost} and is now estimated at {then}; the mean request takes {mean}, "
        f"STAGELENS_OVERHEAD_BUDGET allows {budget}"
    )
