"""Reads every target at its own pace, in one thread with an event loop; what it counts is committed with what was read.

    take (is it ours to read? what was read last?) -> fetch -> read -> between -> points + reading, one transaction

A target that is slow, huge or garbage takes a bounded time and nothing from the others. One that fails keeps its last good
reading: the next one that succeeds counts for the whole time since.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ...core.errors import StagelensError
from ...store import Batch, Store
from ...store.scrapes import LostError
from ..task_supervisor import Tending
from . import exposition, reading, saved, triton_statistics
from .catalog import detect, engines
from .config import Target
from .deltas import Difference, between
from .exposition import ExpositionError, Samples
from .fetch import TIMEOUT_SECONDS, Answer, FetchError, fetch
from .intervals import points
from .reading import Counted, Reading, Stream
from .rules import Engine
from .state import States
from .triton_statistics import StatisticsError

_log = logging.getLogger(__name__)

# A target is given up after so many readings were missed, and a while for what was under way.
_MISSED = 3
_LOOK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class _Hold:
    """A target that is ours to read until then, in Unix seconds, and what was read last."""

    until: float
    base: Reading | None


class Scraper:
    """Reads targets.

    Args:
        store: Where what they count goes.
        targets: What to read; asked again and again, so that it may change.
        env: Where tokens are that the targets name.
        clock: The time. [Unix seconds]

    Attributes:
        states: How each target is.
        thread: The thread.
    """

    def __init__(
        self,
        store: Store,
        targets: Callable[[], Sequence[Target]],
        env: Mapping[str, str],
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store, self._env, self._clock = store, env, clock
        self._holder = secrets.token_hex(8)
        self._holds: dict[str, _Hold] = {}
        self.states = States()
        self._tending = Tending(
            "stagelens-scraper",
            wanted=lambda: {target.url: target for target in targets()},
            tend=self._repeat,
            forget=self.states.forget,
            look_seconds=_LOOK_SECONDS,
            # Reading text is Python and shares one lock: another thread would only take it from those who serve.
            threads=1,
        )
        self.thread = self._tending.thread
        self._in_thread = self._tending.in_thread

    def start(self) -> None:
        """Begin to read."""
        self._tending.start()

    def stop(self) -> None:
        """End, and leave the targets to other collectors; without `start` it does nothing."""
        if not self._tending.stop():
            return
        try:
            self._store.release_targets(self._holder)
        except StagelensError:
            _log.warning("the targets could not be handed back; other collectors read them in a while")

    async def _repeat(self, target: Target) -> None:
        due = time.monotonic()
        while True:
            await self.scrape(target)
            # One that takes longer than it has is read less often, not twice at once.
            due = max(due + target.every, time.monotonic())
            await asyncio.sleep(due - time.monotonic())

    async def scrape(self, target: Target) -> None:
        """Read *target* once, now; whatever goes wrong is in its state."""
        began = time.monotonic()
        try:
            hold = await self._in_thread(self._hold, target)
            if hold is None:
                self.states.elsewhere(target)
                return
            at = self._clock()
            answer = await fetch(target.url, target, self._env)
            told, trouble = await self._statistics(target)
            difference, engine = await self._in_thread(self._count, target, hold.base, at, answer, told)
        except LostError:
            self._holds.pop(target.url, None)
            self.states.elsewhere(target)
        except StagelensError as error:
            self.states.failed(target, str(error))
        except Exception as error:  # noqa: BLE001 - one target's trouble is nobody else's
            _log.exception("%s could not be read", target.url)
            self.states.failed(target, f"{type(error).__name__}: {error}")
        else:
            self.states.read(target, engine, difference, at, time.monotonic() - began)
            if trouble:
                self.states.failed(target, trouble)

    def _hold(self, target: Target) -> _Hold | None:
        """Return our hold of *target*, taken or renewed where it ends soon; None if another collector has it."""
        now = self._clock()
        hold = self._holds.get(target.url)
        if hold is None or hold.until < now + 2 * TIMEOUT_SECONDS:
            last = self._store.take_target(target.url, self._holder, now, _seconds(target))
            hold = None if last is None else _Hold(now + _seconds(target), saved.load(last))
        self._holds.pop(target.url, None)
        if hold is not None:
            self._holds[target.url] = hold
        return hold

    async def _statistics(self, target: Target) -> tuple[Mapping[Stream, Counted] | None, str]:
        """Return Triton's statistics, if they are asked for and told, and what was wrong."""
        if target.statistics_url is None:
            return None, ""
        try:
            answer = await fetch(target.statistics_url, target, self._env)
            return await self._in_thread(triton_statistics.read, answer.text), ""
        except (FetchError, StatisticsError) as error:
            return None, f"{target.statistics_url}: {error}"

    def _count(
        self, target: Target, base: Reading | None, at: float, answer: Answer, told: Mapping[Stream, Counted] | None
    ) -> tuple[Difference, Engine]:
        """Count what *target* has added, and keep what was read, in one transaction."""
        samples, engine = _understood(target, answer)
        now = _reading(target, engine, samples, at, told)
        difference = between(base, now)
        middle = int((at + base.at) / 2) if base else int(at)
        batch = Batch(
            f"scrape:{target.url}:{secrets.token_hex(8)}",
            list(points(difference.added, target, engine, middle)),
        )
        until = self._clock() + _seconds(target)
        # Whatever happens to the transaction, what the database has is asked for again unless it was committed.
        self._holds.pop(target.url, None)
        self._store.write_reading(target.url, self._holder, until, saved.dump(difference.base), batch)
        self._holds[target.url] = _Hold(until, difference.base)
        return difference, engine


def _seconds(target: Target) -> float:
    """Return how long *target* is held without being read."""
    return _MISSED * target.every + 4 * TIMEOUT_SECONDS


def _understood(target: Target, answer: Answer) -> tuple[Samples, Engine]:
    """Return the samples of *answer*, and whose they are.

    Raises:
        ExpositionError: They are nobody's, or it cannot be said whose.
    """
    asked = [target.engine] if target.engine else list(engines().values())
    wanted = {name for engine in asked for name in engine.wanted()}
    samples = exposition.parse(answer.text, answer.media_type, wanted)
    if target.engine:
        return samples, target.engine
    found = detect(samples)
    if len(found) > 1:
        known = " or ".join(f"`engine: {engine.key}`" for engine in found)
        msg = f"it has metrics of {' and '.join(engine.label for engine in found)}; write {known}"
        raise ExpositionError(msg)
    if not found:
        msg = "it has no metrics of a known engine yet; write `engine:`, or `rules:` for metrics of your own"
        raise ExpositionError(msg)
    return samples, found[0]


def _reading(
    target: Target, engine: Engine, samples: Samples, at: float, told: Mapping[Stream, Counted] | None
) -> Reading:
    rules = hashlib.blake2b(repr((engine, target.statistics_url)).encode(), digest_size=8).hexdigest()
    found = reading.read(samples, engine, at, rules)
    if target.statistics_url is None:
        return found
    if told is None:
        return found.with_streams({}, beyond=1)
    return found.with_streams(told)
