"""The tail profiler: samples the call stacks of requests that run longer than the recent p90 of their route.

It samples the running requests ten times per second, and every few milliseconds while one is slow; random requests are the baseline.
Passes become rarer as they cost more CPU time than their limits. A stack is that of the thread that works for the request, or the
await chain of its task; it contains code, never values. The samples wait for the end of the request, and are divided among its stages.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from importlib import import_module
from types import FrameType
from typing import Any

from ...core.partition import Interval, segments
from ...core.stages import FRAMEWORK, UNEXPLAINED
from .. import recorder
from ..instrumentor import log_failure, unpatched
from ..recorder_state import state
from ..records import OPEN, START, STATE, Marks, clock, is_shared
from ..stalls import overlapping
from ..tickets import Tickets
from .frames import RequestTasks, current_frames, is_lock_wait, no_collection, thread_frames
from .recent_durations import RecentDurations
from .stacks import Stack, Stacks

# Time between two sampling passes. [seconds]
IDLE_SECONDS, SLOW_SECONDS = 0.1, 0.007
# Limits of the CPU time: while no request is slow, and while one is. [ratio of one core]
IDLE_SHARE, SLOW_SHARE = 0.0005, 0.01
# Sampling of locks: the time between two passes, for some time after a request that waited for a lock; that time; and the
# longest time that one pass represents. [nanoseconds]
LOCK_NS, LOCKED_NS, MAX_GAP_NS = 5 * 10**6, 10 * 10**9, 50 * 10**6
# Limit of their CPU time, and what each kind of pass may use even if the rest uses up the overhead budget. [ratio of one core]
LOCK_SHARE, MIN_SHARE = 0.01, 0.003
# CPU time saved for a burst of passes over slow requests: three seconds of their limit, half of it for them alone. [nanoseconds]
MAX_CREDIT_NS = 30e6
# CPU time of a new process for passes that find no slow request, beside what the governor allows, so that its first 1,500
# requests have enough samples. Over its first minute this is 0.1 % of a core. [nanoseconds]
FIRST_NS = 60e6
# Time after a slow request in which passes stay frequent. [nanoseconds]
ALERT_NS = 10 * 10**9
# Passes during the shortest duration of a slow request, in that time.
PASSES_AHEAD = 4
# One in this many passes, while requests are slow or were lately, samples another request, as the baseline.
BASELINE_EVERY = 8
# Stacks of one pass.
STACKS_AT_ONCE = 8
# Time after which other threads may run, which wait for the interpreter lock. Busy ones keep it for 5 ms each. [nanoseconds]
PAUSE_AFTER_NS = 300_000
# Length of that pause: one that waits needs a part of it to wake up. [seconds]
PAUSE_SECONDS = 0.0002
MAX_RUNNING, MAX_SAMPLED, MAX_SAMPLES = 4096, 4096, 512
# What a wait for a lock may belong to: the time of no stage.
_UNEXPLAINED = frozenset({FRAMEWORK, *UNEXPLAINED})

# Where a request runs: marks, thread, task or greenlet if any, route as far as known.
Execution = tuple[Marks, int, Any, str]


class _Request:
    __slots__ = ("executions", "is_batch", "marks", "route")

    def __init__(self, marks: Marks) -> None:
        self.marks = marks
        self.is_batch = is_shared(marks)
        self.executions: list[Execution] = []
        self.route = ""


class _Samples:
    """Samples of a request: every *stride*-th pass; and its waits for locks: start, last pass, time between passes."""

    __slots__ = ("marks", "passes", "stacks", "stride", "waits")

    def __init__(self, marks: Marks) -> None:
        self.marks = marks
        self.stacks: list[tuple[int, Stack]] = []
        self.waits: deque[list[int]] = deque(maxlen=MAX_SAMPLES)
        self.passes = 0
        self.stride = 1

    def add(self, now: int, stack: Stack) -> None:
        self.passes += 1
        if self.passes % self.stride:
            return
        self.stacks.append((now, stack))
        if len(self.stacks) >= MAX_SAMPLES:
            self.stacks = self.stacks[1::2]
            self.stride *= 2


class Profiler:
    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.recent = RecentDurations()
        self.cpu_ns = self._spent_before = 0
        self._share = 0.0
        self._sleep = unpatched("time", "sleep")
        self._enabled = self._started = self._failed = False
        self._running: deque[Execution] = deque(maxlen=MAX_RUNNING)
        self._open: dict[int, _Request] = {}
        self._threads: dict[int, Marks] = {}
        self._samples: dict[int, _Samples] = {}
        # Times of the last sampling of locks, of the next one, and until which it is frequent.
        self._locks_at = self._locks_due = self._locks_until = 0
        self._stacks = Stacks()
        self._tasks = RequestTasks(self._stacks.is_user, rng)

    def allow(self, share: float) -> None:
        """Start sampling within *share* of a core, and within the limits of the profiler; pause it for 0."""
        self._share = share
        enabled = share > 0
        if enabled == self._enabled or self._failed:
            return
        if enabled and not self._started:
            try:
                unpatched("_thread", "start_new_thread")(self._run, ())
            except RuntimeError:
                # The interpreter is shutting down, or the host has reached its limit: the next call tries again.
                return
            self._started = True
        self._enabled = enabled
        state.register = _registrar(self._running, self._threads) if enabled else None

    def _run(self) -> None:
        seconds, credit_ns, first_ns = IDLE_SECONDS, MAX_CREDIT_NS, FIRST_NS
        sampled_at, no_baseline_until = clock(), 0.0
        try:
            while True:
                self.rest(seconds)
                if not self._enabled:
                    self._clear()
                    seconds = 1.0
                    continue
                now = clock()
                is_alert = now - self.recent.slow_at < ALERT_NS
                baseline = (
                    now > no_baseline_until
                    and credit_ns > MAX_CREDIT_NS / 2
                    and (not is_alert or self._rng.random() * BASELINE_EVERY < 1)
                )
                is_slow = self.sample(now, baseline=baseline)
                spent = self._spend()
                is_alert = is_alert or is_slow
                allowed = min(self._share_of(now), SLOW_SHARE) if is_alert else 0.0
                share = max(allowed, IDLE_SHARE)
                extra_ns = min(spent, first_ns) if is_alert and not (is_slow or baseline) else 0.0
                first_ns -= extra_ns
                credit_ns = min(credit_ns + (now - sampled_at) * share - (spent - extra_ns), MAX_CREDIT_NS)
                sampled_at = now
                seconds = max(self._seconds(is_slow=is_slow, is_alert=is_alert), -credit_ns / share / 1e9)
                # Half of the share is for slow requests. The next one may begin long before the next baseline.
                if baseline:
                    no_baseline_until = now + 2 * spent / share
                elif not is_slow and (is_alert or credit_ns < MAX_CREDIT_NS / 2):
                    seconds = max(seconds, extra_ns / SLOW_SHARE / 1e9, 2 * (spent - extra_ns) / share / 1e9)
        except Exception:
            self._failed, self._enabled = True, False
            state.register = None
            self._clear()
            log_failure("profiling slow requests")

    def rest(self, seconds: float) -> None:
        """Wait for the next sampling of slow requests, and sample locks meanwhile."""
        until = clock() + int(seconds * 1e9)
        while True:
            now = clock()
            if now >= self._locks_due and self._enabled:
                self.sample_locks(now)
                share = min(self._share_of(now), LOCK_SHARE) if now < self._locks_until else IDLE_SHARE
                # Not in step with a model that always takes as long.
                self._locks_due = now + int(max(LOCK_NS, self._spend() / share) * self._rng.uniform(0.5, 1.5))
            if now >= until:
                return
            due = self._locks_due if now < self._locks_until else until
            self._sleep(max(0, min(until, due) - now) / 1e9)

    def _share_of(self, now: int) -> float:
        """Return what the sampling of slow requests or of locks may use: half for each while both are frequent."""
        return max(self._share / 2, MIN_SHARE) if now < self._locks_until else self._share

    def _spend(self) -> int:
        """Return the CPU time of this thread since the last call, with that of waking up."""
        spent = time.thread_time_ns() - self._spent_before
        self._spent_before += spent
        self.cpu_ns += spent
        return spent

    def _seconds(self, *, is_slow: bool, is_alert: bool) -> float:
        if is_slow:
            return SLOW_SECONDS
        shortest = self.recent.shortest
        if not is_alert or shortest is None:
            return IDLE_SECONDS
        return min(max(SLOW_SECONDS, shortest / PASSES_AHEAD / 1e9), IDLE_SECONDS)

    def _clear(self) -> None:
        for held in (self._running, self._open, self._threads, self._samples):
            held.clear()
        self._locks_until = 0

    def sample(self, now: int, *, baseline: bool = True) -> bool:
        """Sample the slow requests at the time *now* of `clock`; return whether any is slow."""
        shortest = self.recent.shortest
        if not baseline and (shortest is None or not self._has_request_from_before(now - shortest)):
            return False
        began = held_since = clock()
        self._register()
        held_since = self._pause(held_since)
        requests = [request for request in self._open.values() if request.marks[START] > 0 and not request.is_batch]
        slow_before = now - (shortest or 0)
        slow = [request for request in requests if request.marks[START] < slow_before and self._is_slow(request, now)]
        chosen = self._rng.sample(slow, min(len(slow), STACKS_AT_ONCE))
        if requests and (baseline if not slow else self._rng.random() * BASELINE_EVERY < 1):
            chosen = list({*chosen, self._rng.choice(requests)})
        while chosen:
            held_since = self._pause(held_since)
            with no_collection():
                self._sample_stacks(chosen, held_since, now - began)
        return bool(slow)

    def _pause(self, held_since: int) -> int:
        if clock() - held_since < PAUSE_AFTER_NS:
            return held_since
        self._sleep(PAUSE_SECONDS)
        return clock()

    def _sample_stacks(self, chosen: list[_Request], held_since: int, offset: int) -> None:
        frames = current_frames()
        jobs = {id(marks): thread for thread, marks in list(recorder.working.items()) if thread in frames}
        now = clock()
        try:
            while chosen:
                request = chosen.pop()
                stack = self._stack(request, frames, jobs)
                if stack and request.marks[STATE] == OPEN:
                    self.samples_of(request.marks).add(now + offset, stack)
                if clock() - held_since >= PAUSE_AFTER_NS:
                    return
        finally:
            # The frame of this call is one of them: a cycle that would keep the variables of all threads.
            frames.clear()
            self._tasks.forget()

    def sample_locks(self, now: int) -> None:
        gap = min(now - self._locks_at, MAX_GAP_NS)
        for marks in self._requests_at_locks():
            waits = self.samples_of(marks).waits
            if not waits or waits[-1][1] != self._locks_at:
                waits.append([now - gap // 2, now, gap])
            waits[-1][1:] = now, gap
            self._locks_until = now + LOCKED_NS
        self._locks_at = now

    def _requests_at_locks(self) -> list[Marks]:
        working = recorder.working.copy()
        threads = {thread: marks for thread, marks in {**self._threads, **working}.items() if marks[STATE] == OPEN}
        if not threads:
            return []
        with no_collection():
            frames = current_frames()
            tops = {thread: frames[thread] for thread in threads if thread in frames}
            waiting = [thread for thread, top in tops.items() if is_lock_wait(top.f_code, top.f_lasti)]
            # They would keep the variables of all threads, and that of this call would be a cycle.
            frames.clear()
            del tops
        # A request whose other job in a pool works does not wait.
        busy = {id(marks) for thread, marks in working.items() if thread not in waiting}
        requests = {id(threads[thread]): threads[thread] for thread in waiting if id(threads[thread]) not in busy}
        if any(map(is_shared, requests.values())):
            self._register()
            workers = [(request.marks, self._worker(request.marks)) for request in self._open.values()]
            requests |= {
                id(marks): marks for marks, worker in workers if worker is not None and id(worker.marks) in requests
            }
        return [marks for marks in requests.values() if not is_shared(marks)]

    def lock_waits(self, marks: Marks, intervals: Collection[Interval], start: int, end: int) -> list[tuple[int, int]]:
        """Return when a finished request waited for locks that no instrumentor can time, in the time of no other stage."""
        samples = self._samples.get(id(marks))
        if samples is None or samples.marks is not marks or not samples.waits:
            return []
        parts = segments(intervals, start, end)
        waits: list[tuple[int, int]] = []
        for since, last, gap in samples.waits.copy():
            # What the lock protects begins at once.
            after = [t0 for stage, t0, _ in overlapping(parts, last, last + 2 * gap) if stage not in _UNEXPLAINED]
            until = next((t0 for t0 in after if t0 >= last), last + gap // 2)
            around = overlapping(parts, since, until)
            waits += [(max(t0, since), min(t1, until)) for stage, t0, t1 in around if stage in _UNEXPLAINED]
        return waits

    def take(
        self, marks: Marks, stage_times: Mapping[str, int], intervals: Collection[Interval], start: int, end: int
    ) -> dict[str, int]:
        """Remove the samples of a finished request, and return its time by key of `code_stack.stack_key`.

        The keys of a stage add up to its time in *stage_times*; a stage without samples has no key. [nanoseconds]
        """
        samples = self._samples.get(id(marks))
        if samples is None or samples.marks is not marks:
            return {}
        self._samples.pop(id(marks), None)
        parts = segments(intervals, start, end)
        starts = [first for _, first, _ in parts]
        by_stage: dict[str, Counter[Stack]] = {}
        for now, stack in samples.stacks:
            position = bisect_right(starts, now) - 1
            if position >= 0 and now < parts[position][2]:
                by_stage.setdefault(parts[position][0], Counter())[stack] += 1
        time_by_key: dict[str, int] = {}
        for stage, stacks in by_stage.items():
            for stack, spent in _divide(stage_times.get(stage, 0), stacks):
                key = self._stacks.key(stage, stack)
                time_by_key[key] = time_by_key.get(key, 0) + spent
        return {key: spent for key, spent in time_by_key.items() if spent}

    def samples_of(self, marks: Marks) -> _Samples:
        samples = self._samples.get(id(marks))
        if samples is None or samples.marks is not marks:
            # The oldest one belongs to a request that was dropped, or never ended.
            while len(self._samples) >= MAX_SAMPLED:
                self._samples.pop(next(iter(self._samples)), None)
            samples = self._samples[id(marks)] = _Samples(marks)
        return samples

    def _has_request_from_before(self, then: int) -> bool:
        running = self._running
        # In the order of their start.
        while running and running[0][0][STATE] != OPEN:
            running.popleft()
        if running and running[0][0][START] < then:
            return True
        has_one = any(request.marks[START] < then and request.marks[STATE] == OPEN for request in self._open.values())
        for thread, marks in list(self._threads.items()):
            if marks[STATE] != OPEN:
                # A server may have a thread for each request.
                self._threads.pop(thread, None)
            elif marks[START] < then:
                has_one = True
        return has_one

    def _register(self) -> None:
        oldest = self._running.popleft
        # Most requests that began since the last pass have ended.
        still_open = [
            execution for execution in [oldest() for _ in range(len(self._running))] if execution[0][STATE] == OPEN
        ]
        for execution in [*still_open, *self._threads_at_work()]:
            marks, route = execution[0], execution[3]
            request = self._open.get(id(marks))
            if request is None or request.marks is not marks:
                request = self._open[id(marks)] = _Request(marks)
            request.executions = [*request.executions[-3:], execution]
            request.route = route or request.route
        for key in [key for key, request in self._open.items() if request.marks[STATE] != OPEN]:
            del self._open[key]
        while len(self._open) > MAX_RUNNING:
            del self._open[next(iter(self._open))]

    def _threads_at_work(self) -> list[Execution]:
        executions: list[Execution] = []
        for thread, marks in list(self._threads.items()):
            if marks[STATE] != OPEN:
                self._threads.pop(thread, None)
                continue
            request = self._open.get(id(marks))
            request_executions = request.executions if request is not None and request.marks is marks else ()
            if not any(execution[1] == thread and execution[2] is None for execution in request_executions):
                executions.append((marks, thread, None, ""))
        return executions

    def _is_slow(self, request: _Request, now: int) -> bool:
        threshold = self.recent.threshold(request.route)
        return threshold is not None and now - request.marks[START] > threshold

    def _stack(self, request: _Request, frames: Mapping[int, FrameType], jobs: Mapping[int, int]) -> Stack:
        marks = request.marks
        if id(marks) in jobs:
            thread = jobs[id(marks)]
            stack = self._stacks.resolve(self._tasks.of_thread(marks, frames[thread]))
            return stack if recorder.working.get(thread) is marks else ()
        worker = self._worker(marks)
        return self._stack(worker, frames, jobs) if worker is not None else self._own_stack(request, frames)

    def _worker(self, marks: Marks) -> _Request | None:
        for late in marks[1::3] if "@late" in marks[::3] else ():
            for run in late.running() if type(late) is Tickets else ():
                worker = self._open.get(id(run))
                if worker is not None and worker.marks is run:
                    return worker
        return None

    def _own_stack(self, request: _Request, frames: Mapping[int, FrameType]) -> Stack:
        tasks = [execution[2] for execution in request.executions]
        for _, thread, task, _ in reversed(request.executions):
            top = frames.get(thread)
            if task is None:
                if top is not None and self._threads.get(thread) is request.marks:
                    return self._stacks.resolve(self._tasks.of_thread(request.marks, top))
            elif hasattr(task, "get_coro"):
                if not task.done():
                    return self._stacks.resolve(self._tasks.frames(task, request.marks, top, tasks))
            elif not task.dead:
                return self._stacks.resolve(_greenlet_frames(task, thread))
        return ()


def _divide(total: int, stacks: Counter[Stack]) -> Iterator[tuple[Stack, int]]:
    samples, before, counted = stacks.total(), 0, 0
    for stack, count in stacks.items():
        counted += count
        until = total * counted // samples
        yield stack, until - before
        before = until


def _greenlet_frames(greenlet: Any, thread: int) -> list[FrameType]:
    suspended = greenlet.gr_frame
    if suspended is not None:
        return thread_frames(suspended)
    top = current_frames().get(thread)
    frames = [] if top is None else thread_frames(top)
    return frames if greenlet.gr_frame is None and not greenlet.dead else []


def _registrar(running: deque[Execution], threads: dict[int, Marks]) -> Callable[[Marks, str], None]:
    """Return the function that registers a request where it runs now: in a task or greenlet, or by its thread."""
    get_ident = unpatched("_thread", "get_ident")
    append, loop_now, current_task = running.append, asyncio._get_running_loop, asyncio.current_task  # noqa: SLF001
    monkey: Any = sys.modules.get("gevent.monkey")
    if monkey is not None and monkey.is_module_patched("threading"):
        getcurrent: Callable[[], Any] = import_module("greenlet").getcurrent

        def register_greenlet(marks: Marks, route: str) -> None:
            append((marks, get_ident(), getcurrent(), route))

        return register_greenlet

    def register(marks: Marks, route: str) -> None:
        loop = loop_now()
        if loop is None:
            # One request at a time. No object of ours outlives the request, which would cause garbage collections.
            threads[get_ident()] = marks
        else:
            append((marks, get_ident(), current_task(loop), route))

    return register
