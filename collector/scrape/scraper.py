"""Scraper: reads every target at its own interval, in one thread with an event loop, and commits points together with the snapshot.

    hold target, load its snapshot -> fetch -> read_snapshot -> difference_between -> points and snapshot in one transaction

After a failure the last valid snapshot of the target is preserved, so the next success counts the whole interval.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from ...core.errors import StagelensError
from ...store import Batch, Store
from ...store.collectors import TargetLostError
from .config import Engine, ScrapeTarget, detect, engines
from .exposition import ExpositionError, Samples, parse_exposition
from .fetch import TIMEOUT_SECONDS, FetchError, TargetResponse, fetch
from .points import points_of, replica_points_of
from .snapshot import (
    Difference,
    Snapshot,
    Streams,
    difference_between,
    dump_snapshot,
    load_snapshot,
    read_snapshot,
)
from .target_states import TargetStates
from .triton_statistics import StatisticsError, read_triton_statistics

_log = logging.getLogger(__name__)

T = TypeVar("T")

# Time before the end of a lease at which it is renewed; a lease exceeds the missed scrapes by this time. [seconds]
_RENEWAL_SECONDS, _LEASE_MARGIN_SECONDS = 2 * TIMEOUT_SECONDS, 4 * TIMEOUT_SECONDS
# Number of missed scrapes after which another collector acquires the target.
_MISSED = 3
_CHECK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class _Hold:
    """Lease of a target that ends at *until*, in Unix seconds, with the last snapshot."""

    until: float
    base: Snapshot | None


class Scraper:
    def __init__(
        self,
        store: Store,
        targets: Callable[[], Sequence[ScrapeTarget]],
        env: Mapping[str, str],
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store, self._targets, self._env, self._clock = store, targets, env, clock
        self._holder = secrets.token_hex(8)
        self._holds: dict[str, _Hold] = {}
        self.states = TargetStates()
        self._tasks: dict[str, tuple[ScrapeTarget, asyncio.Task[None]]] = {}
        self._stopping = threading.Event()
        # Parsing is Python code and holds the interpreter lock: more threads would slow down the servers.
        self._parser = ThreadPoolExecutor(1, "stagelens-scraper")
        self.thread = threading.Thread(target=self._run, name="stagelens-scraper", daemon=True)

    def start(self) -> None:
        self.thread.start()

    def stop(self) -> None:
        """Stop scraping and release the targets for other collectors; does nothing without `start`."""
        if self.thread.ident is None:
            return
        self._stopping.set()
        self.thread.join()
        self._parser.shutdown()
        try:
            self._store.release_targets(self._holder)
        except StagelensError:
            _log.warning("the targets could not be released; other collectors take over later")

    def _run(self) -> None:
        try:
            asyncio.run(self._watch())
        except Exception:  # noqa: BLE001 - the end of the thread must be logged
            _log.exception("the thread %s stopped with an unexpected error; restart the collector", self.thread.name)

    async def _watch(self) -> None:
        while not self._stopping.is_set():
            targets = {target.url: target for target in self._targets()}
            for url in [url for url, (target, _) in self._tasks.items() if targets.get(url) != target]:
                await _cancel(self._tasks.pop(url)[1])
                if url not in targets:
                    self.states.forget(url)
            for url in targets.keys() - self._tasks.keys():
                self._tasks[url] = targets[url], asyncio.create_task(self._repeat(targets[url]))
            await asyncio.to_thread(self._stopping.wait, _CHECK_SECONDS)
        for _, task in self._tasks.values():
            await _cancel(task)

    async def _in_thread(self, function: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._parser, function, *arguments)

    async def _repeat(self, target: ScrapeTarget) -> None:
        due = time.monotonic()
        while True:
            await self.scrape(target)
            # A target slower than its interval is scraped less often, not concurrently.
            due = max(due + target.every.total_seconds(), time.monotonic())
            await asyncio.sleep(due - time.monotonic())

    async def scrape(self, target: ScrapeTarget) -> None:
        """Scrape *target* once; errors are recorded in the state of the target."""
        began = time.monotonic()
        try:
            hold = await self._in_thread(self._hold, target)
            if hold is None:
                self.states.elsewhere(target)
                return
            at = self._clock()
            response = await fetch(target.url, target, self._env)
            streams, trouble = await self._statistics(target)
            difference, engine = await self._in_thread(self._count, target, hold.base, at, response, streams)
        except TargetLostError:
            self._holds.pop(target.url, None)
            self.states.elsewhere(target)
        except StagelensError as error:
            self.states.failed(target, str(error))
        except Exception as error:  # noqa: BLE001 - one target must not affect others
            _log.exception("%s could not be read", target.url)
            self.states.failed(target, f"{type(error).__name__}: {error}")
        else:
            self.states.read(target, engine, difference, time.monotonic() - began)
            if trouble:
                self.states.failed(target, trouble)

    def _hold(self, target: ScrapeTarget) -> _Hold | None:
        """Return the lease of *target*, acquired or renewed if needed; None if another collector has it."""
        now = self._clock()
        hold = self._holds.get(target.url)
        if hold is None or hold.until < now + _RENEWAL_SECONDS:
            last = self._store.take_target(target.url, self._holder, now, _seconds(target))
            hold = None if last is None else _Hold(now + _seconds(target), load_snapshot(last))
        self._holds.pop(target.url, None)
        if hold is not None:
            self._holds[target.url] = hold
        return hold

    async def _statistics(self, target: ScrapeTarget) -> tuple[Streams | None, str]:
        """Return the Triton statistics of *target* (None if missing), and an error message, "" for none."""
        if target.statistics_url is None:
            return None, ""
        try:
            response = await fetch(target.statistics_url, target, self._env)
            return await self._in_thread(read_triton_statistics, response.text), ""
        except (FetchError, StatisticsError) as error:
            return None, f"{target.statistics_url}: {error}"

    def _count(
        self,
        target: ScrapeTarget,
        base: Snapshot | None,
        at: float,
        response: TargetResponse,
        streams: Streams | None,
    ) -> tuple[Difference, Engine]:
        samples, engine = _understood(target, response)
        now = _snapshot(target, engine, samples, at, streams)
        difference = difference_between(base, now)
        middle = int((at + base.at) / 2) if base else int(at)
        batch = Batch(
            f"scrape:{target.url}:{secrets.token_hex(8)}",
            [
                *points_of(difference.added, target, engine, middle),
                *replica_points_of(difference.added, target, engine, middle),
            ],
        )
        until = self._clock() + _seconds(target)
        # If the commit fails, the next scrape loads the lease and snapshot from the database again.
        self._holds.pop(target.url, None)
        self._store.write_reading(target.url, self._holder, until, dump_snapshot(difference.base), batch)
        self._holds[target.url] = _Hold(until, difference.base)
        return difference, engine


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _seconds(target: ScrapeTarget) -> float:
    return _MISSED * target.every.total_seconds() + _LEASE_MARGIN_SECONDS


def _understood(target: ScrapeTarget, response: TargetResponse) -> tuple[Samples, Engine]:
    """Return the samples of *response*, and the engine of the target; ExpositionError for none or several engines."""
    asked = [target.engine_rules] if target.engine_rules else list(engines().values())
    wanted = {name for engine in asked for name in engine.wanted()}
    samples = parse_exposition(response.text, response.media_type, wanted)
    if target.engine_rules:
        return samples, target.engine_rules
    detected = detect(samples)
    if len(detected) > 1:
        choices = " or ".join(f"`engine: {key}`" for key in detected)
        msg = f"it has metrics of {' and '.join(engine.name for engine in detected.values())}; write {choices}"
        raise ExpositionError(msg)
    if not detected:
        msg = "it has no metrics of a known engine yet; write `engine:`, or `rules:` for custom metrics"
        raise ExpositionError(msg)
    return samples, next(iter(detected.values()))


def _snapshot(
    target: ScrapeTarget,
    engine: Engine,
    samples: Samples,
    at: float,
    streams: Streams | None,
) -> Snapshot:
    rules = hashlib.blake2b(repr((engine, target.statistics_url)).encode(), digest_size=8).hexdigest()
    snapshot = read_snapshot(samples, engine, at, rules)
    if target.statistics_url is None:
        return snapshot
    if streams is None:
        return snapshot.with_streams({}, beyond=1)
    return snapshot.with_streams(streams)
