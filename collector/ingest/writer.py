"""Writer thread: batches wait in a bounded queue, share a transaction, and are acknowledged after its commit.

A transaction waits a moment for exports that are being decoded: under load it costs as much as tens of exports.

A batch whose commit fails stays in the queue while its sender receives a request to retry. The batch is committed when the store
works again, and the retry is then a duplicate. A retry of a batch that still waits joins it and completes with the same commit.

    submit -> queue -> Store.write (one transaction, many batches) -> futures of the senders
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Generator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field

from ...core.errors import StagelensError, StoreError
from ...store import Batch, Store
from ..self_metrics import SelfMetrics

_log = logging.getLogger(__name__)

WRITER_PART = "committing to the store"
# For the sender of a batch that was not committed in time.
QUEUED = "the batch stays queued and is stored later; it counts once, also if it is sent again"
# Limits of a transaction: large enough to share its fsync, short enough not to block other writers.
MAX_ROWS_A_COMMIT = 20_000
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 5.0
# Longest wait of a batch for exports that are being decoded. Without load nothing waits.
_GATHER_SECONDS = 0.05


class FullError(StagelensError):
    """The queue of the writer, or another bounded buffer, is full."""


class UncommittedError(StagelensError):
    """The batch is not in the store; the sender should send it again."""


class UnwritableError(StagelensError):
    """The store can never write the batch, so that a retry is useless."""


@dataclass(slots=True)
class _Waiting:
    batch: Batch
    size_bytes: int
    senders: list[Future[bool]] = field(default_factory=list[Future[bool]])

    @property
    def rows(self) -> int:
        return 1 + len(self.batch.points) + len(self.batch.traces)


class Writer:
    def __init__(self, store: Store, *, max_batches: int, max_bytes: int, metrics: SelfMetrics) -> None:
        self._store, self._metrics = store, metrics
        self._max_batches, self._max_bytes = max_batches, max_bytes
        self._changed = threading.Condition()
        self._queue: dict[str, _Waiting] = {}  # by batch id, in order of arrival
        self._bytes = 0
        self._decoding = 0
        self._pause_seconds = 0.0
        self._hurried = self._stopping = False
        self._thread = threading.Thread(target=self._run, name="stagelens-writer", daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._metrics.health.watch(self._thread)

    def drain_now(self) -> None:
        with self._changed:
            self._hurried = True
            self._changed.notify_all()

    def stop(self) -> None:
        with self._changed:
            self._hurried = self._stopping = True
            self._changed.notify_all()
        self._thread.join()

    @contextmanager
    def decoding(self) -> Generator[None]:
        """Announce a batch that is submitted after the block unless it is invalid; the next transaction waits for it."""
        with self._changed:
            self._decoding += 1
        try:
            yield
        finally:
            # Without a notification: the writer continues when the batch is submitted, or after the longest wait.
            with self._changed:
                self._decoding -= 1

    def submit(self, batch: Batch, size_bytes: int) -> Future[bool]:
        """Queue *batch* with an inflated size of *size_bytes*.

        Returns:
            A future that completes with the commit: True for a new batch, False for a duplicate. The future fails with
            `UncommittedError` if the batch was not written, and with `UnwritableError` if the batch can never be written.

        Raises:
            FullError: The queue is full.
            UncommittedError: The writer is stopping.
        """
        sender: Future[bool] = Future()
        sender.set_running_or_notify_cancel()  # other senders may wait for the same batch, so it cannot be cancelled
        with self._changed:
            if self._stopping:
                msg = "the collector is shutting down"
                raise UncommittedError(msg)
            waiting = self._queue.get(batch.id)
            if waiting is None:
                waiting = self._enqueue(batch, size_bytes)
            waiting.senders.append(sender)
        return sender

    def _enqueue(self, batch: Batch, size_bytes: int) -> _Waiting:
        if len(self._queue) >= self._max_batches or (self._queue and self._bytes + size_bytes > self._max_bytes):
            msg = f"the queue is full ({len(self._queue)} batches, {self._bytes} bytes wait to be committed)"
            raise FullError(msg)
        waiting = self._queue[batch.id] = _Waiting(batch, size_bytes)
        self._bytes += size_bytes
        self._gauge()
        self._changed.notify_all()
        return waiting

    def _run(self) -> None:
        try:
            while group := self._next_group():
                self._write(group)
        except Exception:  # noqa: BLE001 - logged and reported as unhealthy
            _log.exception("collector: the writer stopped with an internal error")
            self._metrics.health.failed(
                WRITER_PART, "the writer stopped with an internal error; see the log and restart the collector"
            )

    def _write(self, group: list[_Waiting]) -> bool:
        """Commit *group*; return False if the store failed, so that all batches wait for the next attempt."""
        started = time.perf_counter()
        try:
            counted = self._store.write([waiting.batch for waiting in group])
        except StoreError as error:
            self._failed(error)
            return False
        except Exception as error:  # noqa: BLE001 - one unwritable batch must not block the others
            if len(group) > 1:
                return all(self._write([waiting]) for waiting in group)
            self._drop(group[0], error)
        else:
            self._committed(group, counted, time.perf_counter() - started)
        return True

    def _next_group(self) -> list[_Waiting]:
        """Wait for batches and return those of the next transaction; an empty list stops the thread."""
        with self._changed:
            self._pause()
            self._changed.wait_for(lambda: self._queue or self._stopping)
            self._changed.wait_for(lambda: not self._decoding or self._stopping or self._is_enough(), _GATHER_SECONDS)
            group: list[_Waiting] = []
            rows = 0
            for waiting in self._queue.values():
                rows += waiting.rows
                if group and rows > MAX_ROWS_A_COMMIT:
                    break
                group.append(waiting)
            return group

    def _is_enough(self) -> bool:
        return sum(waiting.rows for waiting in self._queue.values()) >= MAX_ROWS_A_COMMIT

    def _pause(self) -> None:
        if not self._pause_seconds:
            return
        hurried = self._hurried
        seconds = _FIRST_PAUSE_SECONDS if hurried else self._pause_seconds
        self._changed.wait_for(lambda: self._stopping or self._hurried != hurried, seconds)

    def _committed(self, group: list[_Waiting], counted: list[bool], seconds: float) -> None:
        self._metrics.health.succeeded(WRITER_PART)
        self._metrics.committed([waiting.batch for waiting in group], counted, seconds)
        with self._changed:
            self._pause_seconds = 0.0
            senders = [(waiting.senders, new) for waiting, new in zip(group, counted, strict=True)]
            self._forget(group)
        for waiting_senders, new in senders:
            for position, sender in enumerate(waiting_senders):
                sender.set_result(new and position == 0)

    def _failed(self, error: StoreError) -> None:
        self._metrics.health.failed(WRITER_PART, str(error))
        with self._changed:
            self._pause_seconds = min(max(self._pause_seconds * 2, _FIRST_PAUSE_SECONDS), _LONGEST_PAUSE_SECONDS)
            # No sender waits longer than one attempt, whether its batch is in this group or behind it.
            senders = [sender for waiting in self._queue.values() for sender in waiting.senders]
            for waiting in self._queue.values():
                waiting.senders = []
            advice = QUEUED
            if self._stopping:
                advice = "send it again"
                _log.error(
                    "collector: %d batches were not committed before shutdown; their senders got an error",
                    len(self._queue),
                )
                self._forget(list(self._queue.values()))
        for sender in senders:
            sender.set_exception(UncommittedError(f"{error}; {advice}"))

    def _drop(self, waiting: _Waiting, error: Exception) -> None:
        _log.error("batch %s cannot be written and was dropped", waiting.batch.id, exc_info=error)
        self._metrics.unwritable()
        with self._changed:
            self._forget([waiting])
        for sender in waiting.senders:
            sender.set_exception(UnwritableError(f"{type(error).__name__}: {error}"))

    def _forget(self, group: list[_Waiting]) -> None:
        for waiting in group:
            del self._queue[waiting.batch.id]
            self._bytes -= waiting.size_bytes
        self._gauge()

    def _gauge(self) -> None:
        self._metrics.queue(len(self._queue), self._bytes)
