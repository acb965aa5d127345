"""Requests of the queueing model, simulated one by one.

Source: D. V. Lindley, The theory of queues with a single server, Math. Proc. Cambridge Phil. Soc. 48 (1952), 277-289.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stagelens.analysis.attributes import AttributeCounts
from stagelens.analysis.regression.statistic import BUCKETS_A_DOUBLING, MinuteHistograms, StageSeconds
from stagelens.analysis.replicas import ReplicaCounts, ReplicaTable
from stagelens.core.attributes import ATTRIBUTE_SCALE
from stagelens.core.hardware import place
from stagelens.core.histogram import SCALE

from .service import BATCH_SHARES, BATCHES, INPUT_SHARES, INPUTS, Bools, Conditions, Floats, Ints, Service, Shape

Singles = NDArray[np.float32]
MINUTE = 60
# Latency buckets: 58 µs to 49 s.
LOW, HIGH = -450, 180
# Step of the time in each stage, and about how many requests are simulated at once. [minutes, count]
STEP, CHUNK = 10, 1_000_000

# Slowdown of CPU stages after the start of a process, and how fast it decays. [ratio, seconds, minutes]
COLD, WARM_SECONDS, WARM_MINUTES = 0.6, 40.0, 5
# Mean time in which a free worker takes a request.
HANDOVER_SECONDS = 0.0002
# Latency buckets of replicas.
COARSE, COARSE_LOW = (HIGH - LOW) >> (SCALE - ATTRIBUTE_SCALE), LOW >> (SCALE - ATTRIBUTE_SCALE)


@dataclass(frozen=True, slots=True)
class Change:
    """Change of a new version.

    Args:
        stage: Stage that changes; `queue` if workers lose capacity.
        kind: `scale`: all requests take 1 + *size* times as long in the stage. `add`: they take longer by *size* times its
            usual time. `tail`: one request in twelve takes 1 + 4 *size* times as long. `capacity`: requests occupy a worker
            1 + *size* times as long, although no stage is longer.
        size: Size. [ratio, >= 0]
    """

    stage: str
    kind: str
    size: float


@dataclass(frozen=True, slots=True)
class Traffic:
    """Counted requests of a period, in steps of one minute: in all, by replica of the service and of others, by input size."""

    minutes: MinuteHistograms
    spent: StageSeconds
    replicas: ReplicaTable
    others: tuple[ReplicaTable, ...]
    inputs: AttributeCounts


class _Counts:
    def __init__(self, service: Service, start: int, minutes: int, *, only_total: bool) -> None:
        self.service, self.start, self.minutes, self.only_total = service, start, minutes, only_total
        n, stages = len(service.hosts), service.stages
        rows = 1 if only_total else minutes
        self._total = np.zeros((rows, HIGH - LOW), np.int32)
        self._own = np.zeros((len(stages), rows, HIGH - LOW), np.int32)
        self._spent = np.zeros((len(stages), -(-rows // STEP), HIGH - LOW))
        self._replicas = np.zeros((n, rows, COARSE), np.int32)
        self._stage_seconds = np.zeros((n, len(stages), rows))
        self._inputs = np.zeros((len(INPUTS) * len(BATCHES), rows, COARSE), np.int32)

    def add(self, taken: list[NDArray[np.float32]], minute: Ints, replica: Ints, kind: Ints) -> None:
        if self.only_total:
            self._total[0] += np.bincount(bucket(np.sum(taken, axis=0)), minlength=HIGH - LOW)
            return
        first, last = int(minute.min(initial=0)), int(minute.max(initial=-1)) + 1
        first -= first % STEP
        rows = slice(first, last)
        local = minute - first
        count(taken, local, self._total[rows], self._own[:, rows])
        add_up(taken, local // STEP, self._spent[:, first // STEP : -(-last // STEP)])
        coarse = bucket(np.sum(taken, axis=0)) + LOW >> SCALE - ATTRIBUTE_SCALE
        for counts, group in ((self._replicas, replica), (self._inputs, kind)):
            shape = (len(counts), last - first, COARSE)
            place = (group * shape[1] + local) * COARSE + coarse - COARSE_LOW
            counts[:, rows] += np.bincount(place, minlength=math.prod(shape)).reshape(shape)
        place = replica * (last - first) + local
        size = len(self._replicas) * (last - first)
        for number, seconds in enumerate(taken):
            self._stage_seconds[:, number, rows] += np.bincount(place, seconds, size).reshape(-1, last - first)

    def traffic(self, others: tuple[ReplicaTable, ...]) -> Traffic:
        minutes, spent = trimmed(self.start, self._total, self._own, self._spent, self.service.stages)
        small = replace(minutes, total=_small(minutes.total), own=_small(minutes.own))
        return Traffic(
            small, replace(spent, seconds=spent.seconds.astype(np.float32)), self.replicas(), others, self._by_input()
        )

    def replicas(self) -> ReplicaTable:
        names = self.service.stages
        found = [
            ReplicaCounts(
                place("process", f"node-{host}", f"{'-'.join(map(str, self.service.key))}-{number}", ""),
                _small(counts),
                {name: (1e6 * spent).astype(np.int64) for name, spent in zip(names, seconds, strict=True)},
            )
            for number, (host, counts, seconds) in enumerate(
                zip(self.service.hosts, self._replicas, self._stage_seconds, strict=True)
            )
        ]
        return ReplicaTable(ATTRIBUTE_SCALE, self._index(), self._starts(), found)

    def _by_input(self) -> AttributeCounts:
        kinds = self._inputs.reshape(len(INPUTS), len(BATCHES), -1, COARSE)
        requests = {
            "request_size": {f"{size:g}": _small(each) for size, each in zip(INPUTS, kinds.sum(axis=1), strict=True)},
            "batch_size": {f"{size:g}": _small(each) for size, each in zip(BATCHES, kinds.sum(axis=0), strict=True)},
        }
        return AttributeCounts(ATTRIBUTE_SCALE, self._index(), self._starts(), requests)

    def _index(self) -> Ints:
        return np.arange(COARSE_LOW, COARSE_LOW + COARSE)

    def _starts(self) -> Ints:
        return (self.start + np.arange(len(self._total))) * MINUTE


def _small(counts: NDArray[Any]) -> NDArray[Any]:
    return counts.astype(np.uint16 if counts.max(initial=0) < 2**16 else np.uint32)


def simulate(
    service: Service,
    conditions: Conditions,
    start: int,
    seed: int,
    change: Change | None = None,
    *,
    only_total: bool = False,
) -> list[_Counts]:
    """Return the requests of the minutes of *conditions*; with canaries, those of the other replicas first."""
    rng = np.random.default_rng((*service.key, 103, start, seed))
    minutes = len(conditions.rate)
    arrivals = rng.poisson(conditions.rate * MINUTE)
    versions = [_Counts(service, start, minutes, only_total=only_total) for _ in range(2 if service.canaries else 1)]
    run = _Run(service, rng, change, start)
    ends = np.cumsum(arrivals)
    first = 0
    while first < minutes:
        # Whole steps, so that each is counted at once.
        last = int(np.searchsorted(ends, ends[first] + CHUNK)) // STEP * STEP
        last = minutes if ends[-1] <= ends[first] + CHUNK else max(last, first + STEP)
        part = slice(first, last)
        taken, minute, replica, kind = run.serve(conditions.at(part), arrivals[part], start + first)
        is_canary = replica >= len(service.hosts) - service.canaries
        for counts, chosen in zip(versions, (~is_canary, is_canary), strict=False):
            counts.add([each[chosen] for each in taken], minute[chosen] + first, replica[chosen], kind[chosen])
        first = last
    return versions


class _Run:
    """Workers of a service and their backlog, from one chunk of minutes to the next."""

    def __init__(self, service: Service, rng: np.random.Generator, change: Change | None, start: int) -> None:
        self._service, self._rng, self._change = service, rng, change
        # Random numbers of their own, so that runs with and without a change have the same requests.
        self._hit = np.random.default_rng((*service.key, 104, start))
        self._free = np.zeros(len(service.hosts) * service.workers)
        self._served = 0
        powers = np.array([[(size, batch) for batch in BATCHES] for size in INPUTS]).reshape(-1, 2)
        usual = np.outer(INPUT_SHARES, BATCH_SHARES).ravel()
        factors = {
            name: powers[:, 0] ** shape.size * powers[:, 1] ** shape.batch for name, shape in service.shapes.items()
        }
        self._work = {name: (each / (each @ usual)).astype(np.float32) for name, each in factors.items()}

    def serve(
        self, conditions: Conditions, arrivals: Ints, start: int
    ) -> tuple[list[NDArray[np.float32]], Ints, Ints, Ints]:
        """Return the seconds in each stage, the minute, the replica and the kind of input of each request."""
        rng, service, n = self._rng, self._service, int(arrivals.sum())
        minute = np.repeat(np.arange(len(arrivals)), arrivals)
        at = np.sort((start + minute + rng.random(n)) * MINUTE)
        kind = self._inputs(conditions.large, minute)
        replica, lane = self._assign(conditions, minute)
        cpu = (conditions.host.astype(np.float32)[service.hosts] * service.speed[:, None].astype(np.float32))[
            replica, minute
        ]
        started = conditions.started[replica, minute]
        young = np.flatnonzero(start + minute - started < WARM_MINUTES)
        cpu[young] *= 1 + COLD * np.exp((started[young] * MINUTE - at[young]) / WARM_SECONDS)
        new = conditions.new[replica, minute]
        jitter = rng.standard_gamma(16, n, np.float32) / np.float32(16)
        held, taken = np.zeros(n), list[NDArray[np.float32]]()
        garbage = rng.random(n, np.float32) < service.collected[0]
        pauses = service.collected[1] / 4 * rng.standard_gamma(4, int(garbage.sum()), np.float32)
        for number, (name, shape) in enumerate(service.shapes.items()):
            seconds = self._draw(name, shape, kind, jitter)
            seconds *= conditions.stage[number].astype(np.float32)[minute]
            if shape.cpu:
                seconds *= cpu
            if number == 0:
                seconds[garbage] += pauses
            self._apply(name, shape, seconds, new)
            held += seconds if shape.held else 0
            taken.append(seconds)
        if self._change is not None and self._change.kind == "capacity":
            held *= np.where(new, 1 + self._change.size, 1)
        starts = _starts(conditions.started, start)
        queue, load = self._wait(at, held, lane, starts)
        queue += HANDOVER_SECONDS * rng.standard_exponential(n)
        self._served += n
        return [*taken, queue.astype(np.float32), load], minute, replica, kind

    def _inputs(self, large: Floats, minute: Ints) -> Ints:
        """Return the kind of each request: its size times the number of batch sizes, plus its batch size."""
        found: list[Ints] = []
        for shares in (INPUT_SHARES, BATCH_SHARES):
            more = np.minimum(np.array(shares[1:])[:, None] * large, 0.3)
            limits = np.cumsum(more[::-1], axis=0).astype(np.float32)
            u = self._rng.random(len(minute), np.float32)
            found.append(np.stack([u < limit[minute] for limit in limits]).sum(axis=0, dtype=np.int64))
        return found[0] * len(BATCHES) + found[1]

    def _assign(self, conditions: Conditions, minute: Ints) -> tuple[Ints, Ints]:
        service, n = self._service, len(minute)
        live = conditions.live
        order, alive = np.argsort(~live, axis=0, kind="stable"), np.maximum(live.sum(axis=0), 1)
        turn = self._rng.integers(0, 2**40, n) if service.is_random else self._served + np.arange(n)
        replica = order[turn % alive[minute], minute]
        lane = replica * service.workers + turn // alive[minute] % service.workers
        return replica, lane

    def _draw(self, name: str, shape: Shape, kind: Ints, jitter: NDArray[np.float32]) -> NDArray[np.float32]:
        rng, n = self._rng, len(kind)
        seconds = rng.standard_gamma(shape.noise, n, np.float32)
        seconds *= np.float32(shape.ms / 1000 / shape.noise)
        if shape.size or shape.batch:
            seconds *= self._work[name][kind] * jitter
        if shape.hits:
            seconds *= np.where(rng.random(n, np.float32) < shape.hits, np.float32(0.1), np.float32(1))
        if shape.retries:
            seconds[rng.random(n, np.float32) < shape.retries] *= 4
        return seconds

    def _apply(self, name: str, shape: Shape, seconds: NDArray[np.float32], new: Bools) -> None:
        change = self._change
        if change is None or change.stage != name:
            return
        if change.kind == "scale":
            seconds[new] *= 1 + change.size
        elif change.kind == "add":
            seconds[new] += change.size * shape.ms / 1000
        else:
            seconds[new & (self._hit.random(len(seconds)) < 1 / 12)] *= 1 + 4 * change.size

    def _wait(
        self, at: Floats, held: Floats, lane: Ints, starts: list[tuple[int, float]]
    ) -> tuple[Floats, NDArray[np.float32]]:
        """Return how long each request waits for its worker, and loads; *starts* are those of replicas."""
        workers = self._service.workers
        order = np.argsort(lane.astype(np.int16), kind="stable")
        ends = np.cumsum(np.bincount(lane, minlength=len(self._free)))
        queue, load = np.zeros(len(at)), np.zeros(len(at), np.float32)
        for number, end in enumerate(ends.tolist()):
            mine = order[int(ends[number - 1]) if number else 0 : end]
            if not len(mine):
                continue
            arrived = at[mine]
            for replica, moment_ in starts:
                if replica == number // workers and (first := int(np.searchsorted(arrived, moment_))) < len(mine):
                    load[mine[first]] = self._service.cold * self._rng.uniform(0.7, 1.3)
            queue[mine], self._free[number] = wait(arrived, held[mine] + load[mine], self._free[number])
        return queue, load


def wait(arrived: Floats, held: Floats, free: float) -> tuple[Floats, float]:
    """Return how long each request waits for a worker, and when the worker is free again."""
    sums = np.cumsum(held)
    before = sums - held
    # A request starts when it arrives or when the one before is completed, whichever is later: at max(slack) + before.
    slack = np.maximum.accumulate(np.maximum(arrived - before, free))
    return np.maximum(slack + before - arrived, 0), float(slack[-1] + sums[-1])


def _starts(started: Ints, start: int) -> list[tuple[int, float]]:
    """Return the replicas that start in these minutes, and the seconds of each start."""
    return [
        (replica, float(value * MINUTE))
        for replica, values in enumerate(started)
        for value in np.unique(values).tolist()
        if start <= value < start + len(values)
    ]


def trimmed(
    start: int, total: NDArray[Any], own: NDArray[Any], spent: Floats, stages: tuple[str, ...]
) -> tuple[MinuteHistograms, StageSeconds]:
    """Return counts of all buckets from `LOW` on as the statistics read them, without the empty outer buckets."""
    used = np.flatnonzero(total.any(axis=0) | own.any(axis=(0, 1)))
    low, high = (int(used[0]), int(used[-1]) + 1) if len(used) else (0, 1)
    index = np.arange(LOW + low, LOW + high)
    by_step = np.add.reduceat(total, np.arange(0, len(total), STEP), dtype=np.int32)[:, low:high]
    return (
        MinuteHistograms(start, index, total[:, low:high], stages, own[:, :, low:high]),
        StageSeconds(start, STEP, index, by_step, stages, spent[:, :, low:high]),
    )


def count(taken: list[Singles], minute: Ints, total: NDArray[np.int32], own: NDArray[np.int32]) -> None:
    """Add the requests to *total* of shape (minutes, k), and their times *taken* in the stages to *own* of shape (stages, minutes, k)."""
    place = minute * total.shape[1]
    total += np.bincount(place + bucket(np.sum(taken, axis=0)), minlength=total.size).reshape(total.shape)
    for number, seconds in enumerate(taken):
        had = slice(None) if seconds.all() else seconds > 0
        its = place[had] + bucket(seconds[had])
        own[number] += np.bincount(its, minlength=total.size).reshape(total.shape)


def add_up(taken: list[Singles], step: Ints, spent: NDArray[np.float64]) -> None:
    """Add the seconds of each stage to *spent*, of shape (stages, steps, k), by end-to-end latency."""
    place = step * spent.shape[2] + bucket(np.sum(taken, axis=0))
    size = spent.shape[1] * spent.shape[2]
    for number, seconds in enumerate(taken):
        spent[number] += np.bincount(place, seconds, size).reshape(spent.shape[1:])


def bucket(seconds: Singles) -> Ints:
    index = np.ceil(np.log2(seconds) * np.float32(BUCKETS_A_DOUBLING)).astype(np.int64) - 1
    return np.clip(index, LOW, HIGH - 1) - LOW
