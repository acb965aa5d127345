"""Delivery to the collector: OTLP/HTTP with the standard library, a bounded outbox, and retries.

Each batch has a name. A batch that is not acknowledged returns to the outbox and is sent again, byte for byte, under the same
name, so that the collector counts it once. If the outbox is full, traces are evicted before metrics, and old batches before
new ones. Nothing here runs on the thread of a request.

Source: OpenTelemetry Protocol 1.x, "OTLP/HTTP Response" and "Failures": 429, 502, 503 and 504 are retried with exponential
backoff and jitter or after `Retry-After`; every other status is permanent.
"""

from __future__ import annotations

import email.utils
import encodings.idna
import logging
import math
import os
import random
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from ... import __version__
from ...core import names
from ..config import ClientTlsFiles
from ..recorder import park_if_inherited
from .http_post import HttpResponse, post
from .otlp import parse_fields


@dataclass(frozen=True, slots=True)
class ExportBatch:
    """One export; its bytes are the same at every attempt.

    Args:
        name: The value of the batch header.
        url: Where it goes.
        body: Gzipped protobuf.
        requests: How many requests are uncounted if it is never delivered.
    """

    name: str
    url: str
    body: bytes
    requests: int


class Outbox:
    """Batches that wait for delivery, oldest first; at most *limit_bytes* with those in flight."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._waiting: deque[ExportBatch] = deque()
        self._size_bytes = 0
        self._requests = 0

    def put(self, batch: ExportBatch) -> list[ExportBatch]:
        """Add *batch*; return the evicted batches, or *batch* itself if it alone is too large.

        Counts outlast what only shows examples of them: traces go first, and the oldest first among their like.
        """
        if len(batch.body) > self._limit_bytes:
            return [batch]
        with self._lock:
            evicted: list[ExportBatch] = []
            self._waiting.append(batch)
            self._size_bytes += len(batch.body)
            self._requests += batch.requests
            while self._size_bytes > self._limit_bytes and self._waiting:
                victim = next((each for each in self._waiting if not each.requests), self._waiting[0])
                self._waiting.remove(victim)
                self._size_bytes -= len(victim.body)
                self._requests -= victim.requests
                evicted.append(victim)
            return evicted

    def take(self) -> ExportBatch | None:
        """Return the oldest batch, which is under way until `done` or `give_back`."""
        with self._lock:
            return self._waiting.popleft() if self._waiting else None

    def done(self, batch: ExportBatch) -> None:
        """Forget *batch*."""
        with self._lock:
            self._size_bytes -= len(batch.body)
            self._requests -= batch.requests

    def give_back(self, batch: ExportBatch) -> None:
        """Put *batch* back to the front: it was not delivered."""
        with self._lock:
            self._waiting.appendleft(batch)

    @property
    def empty(self) -> bool:
        """Whether nothing waits or is under way."""
        return self._size_bytes == 0

    @property
    def requests(self) -> int:
        """Number of requests that are lost if no waiting batch is ever delivered."""
        with self._lock:
            return self._requests


logger = logging.getLogger("stagelens")

# The first connection would import it, and a fork just then would leave the child with half a module.
_PRELOADED = (encodings.idna,)

OK_STATUSES = range(200, 300)
RETRY_STATUSES = frozenset({429, 502, 503, 504})
DENIED_STATUSES = frozenset({401, 403})
OWN_HEADERS = {
    "Content-Type": "application/x-protobuf",
    "Content-Encoding": "gzip",
    "User-Agent": f"stagelens/{__version__}",
}
BACKOFF_BASE_SECONDS, BACKOFF_CAP_SECONDS = 1.0, 30.0
# A server that asks for more is misconfigured; by then the outbox has long dropped what it could not hold.
MAX_RETRY_AFTER_SECONDS = 600.0
# A collector that takes some batches and not others would fill the host's log, a line for each.
QUIET_SECONDS = 300.0
MAX_SHOWN_CHARS = 300

_UNREACHABLE_FIX = "Start a collector there with `stagelens up`, or set OTEL_EXPORTER_OTLP_ENDPOINT"
_TLS_FIX = (
    "Compare OTEL_EXPORTER_OTLP_CERTIFICATE (CA to trust) and OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and "
    "OTEL_EXPORTER_OTLP_CLIENT_KEY (client certificate) with the settings of the collector"
)
_DENIED = (
    "authentication failed (401/403); data is dropped until it succeeds; set OTEL_EXPORTER_OTLP_HEADERS to "
    "authorization=Bearer%20<token>, or OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and OTEL_EXPORTER_OTLP_CLIENT_KEY"
)


class Exporter:
    """Sends batches, one after the other.

    Args:
        headers: Sent with every post.
        trust: Files for TLS.
        timeout_seconds: How long one post may take. [seconds]
        buffer_bytes: How much may wait. [bytes]
        lost: Told how many requests are uncounted for good, and why.
        rng: Spreads the retries of many processes.
    """

    def __init__(
        self,
        *,
        headers: Mapping[str, str],
        trust: ClientTlsFiles,
        timeout_seconds: float,
        buffer_bytes: int,
        lost: Callable[[str, int], None],
        rng: random.Random,
    ) -> None:
        self._headers = {key: value for key, value in headers.items() if key.title() not in OWN_HEADERS} | OWN_HEADERS
        self._trust = trust
        self._timeout_seconds = timeout_seconds
        self._lost = lost
        self._rng = rng
        self._pid = os.getpid()
        self._outbox = Outbox(buffer_bytes)
        self._context: ssl.SSLContext | None = None
        # What the host was told, and when that was, by `time.monotonic`.
        self._logged: dict[str, float] = {}
        self._thread: threading.Thread | None = None
        self._cpu_ns = 0
        self._wake = threading.Event()
        # How long the thread waits before the next attempt, None while nothing has failed. [seconds]
        self._delay: float | None = None
        # In a row, and ever.
        self._failures = self._attempts_failed = 0
        self._attempt = threading.Condition()
        self._leaving = False

    def offer(self, batch: ExportBatch) -> None:
        """Queue *batch* for delivery; `Outbox.put` describes a full queue."""
        for evicted in self._outbox.put(batch):
            self._drop(evicted, "buffer_full")
            dropped = "the oldest requests are not counted" if evicted.requests else "retained traces are dropped"
            self._warn(dropped, f"the buffer for the collector (STAGELENS_BUFFER_SIZE) is full: {dropped}")

    def wake(self) -> None:
        """Wake the sending thread, unless it waits after a failure; start it if it does not run."""
        self._start()
        with self._attempt:
            if self._delay is None:
                self._wake.set()

    @property
    def retry_in_seconds(self) -> float | None:
        """How long the thread waits after a failure, None while nothing has failed."""
        return self._delay

    def drain(self, timeout_seconds: float) -> bool:
        """Have everything sent now, also after a failure; wait until it is, or an attempt fails, or the time is over.

        Args:
            timeout_seconds: How long to wait at most. [seconds]

        Returns:
            Whether nothing is left.
        """
        self._leaving = True
        with self._attempt:
            failed = self._attempts_failed
        try:
            self._start()
        except RuntimeError:
            # Python 3.12 and later start no thread at exit: what is left is sent by this one.
            self._timeout_seconds = min(self._timeout_seconds, timeout_seconds)
            self._send_waiting()
        else:
            self._wake.set()
            with self._attempt:
                self._attempt.wait_for(lambda: self._outbox.empty or self._attempts_failed != failed, timeout_seconds)
        self._leaving = False
        # Who was told that they are sent later must hear that there may be no later.
        if "unreachable" in self._logged and (left := self._outbox.requests):
            self._warn("left", f"requests that are still not delivered: {left}; they are lost if the process ends now")
        return self._outbox.empty

    def _start(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="stagelens-export", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            self._wake.wait(self._delay)
            park_if_inherited(self._pid)
            self._wake.clear()
            self._send_waiting()
            self._note_cpu()

    def cpu_ns(self) -> int:
        """Return the CPU time of the sending thread; 0 where greenlets of the host's share it, in nanoseconds."""
        return self._cpu_ns

    def _note_cpu(self) -> None:
        if threading.get_native_id() != threading.main_thread().native_id:
            self._cpu_ns = max(self._cpu_ns, time.thread_time_ns())

    def _send_waiting(self) -> None:
        """Send until nothing waits or an attempt fails."""
        self._delay = None
        while self._delay is None and (batch := self._outbox.take()) is not None:
            self._send(batch)
            park_if_inherited(self._pid)

    def _send(self, batch: ExportBatch) -> None:
        """Make one attempt with *batch*; where it fails, set how long to wait before the next one."""
        try:
            answer = self._post(batch)
            if answer.status in RETRY_STATUSES:
                reason = f"HTTP {answer.status} {explanation(answer.body)}"
                # Somebody is there, and says what is wrong.
                self._failed(batch, reason, _retry_after(answer.headers.get("Retry-After"), time.time()), fix="")
            else:
                self._settle(batch, answer)
        except Exception as error:
            # Unreachable, not HTTP, not what this code foresaw: the thread must live and the batch must not be lost.
            self._context = None  # its files may be new by the next attempt: certificates are short-lived
            fix = _TLS_FIX if isinstance(error, ssl.SSLError) else _UNREACHABLE_FIX
            self._failed(batch, f"{error}" or type(error).__name__, None, fix)

    def _post(self, batch: ExportBatch) -> HttpResponse:
        return post(
            batch.url,
            batch.body,
            self._headers | {names.BATCH_HEADER: batch.name},
            self._timeout_seconds,
            self._trusting,
        )

    def _trusting(self) -> ssl.SSLContext:
        if self._context is None:
            self._context = self._trust.context()
        return self._context

    def _failed(self, batch: ExportBatch, reason: str, retry_after_seconds: float | None, fix: str) -> None:
        self._outbox.give_back(batch)
        # Jitter spreads the retries of many processes. The floor applies to any Retry-After: with clock skew its date may be in the past.
        limit = min(BACKOFF_CAP_SECONDS, BACKOFF_BASE_SECONDS * 2 ** min(self._failures, 30))
        delay = max(self._rng.uniform(limit / 2, limit), retry_after_seconds or 0.0)
        if not self._leaving:
            self._warn(
                "unreachable",
                f"{origin(batch.url)} does not accept data ({_printable_text(reason)}); data is buffered and sent later. {fix}".rstrip(),
            )
        with self._attempt:
            # Whoever woke the thread during the attempt must not cut the wait short.
            self._wake.clear()
            self._delay = delay
            self._failures += 1
            self._attempts_failed += 1
            self._attempt.notify_all()

    def _settle(self, batch: ExportBatch, answer: HttpResponse) -> None:
        if answer.status in OK_STATUSES:
            self._over("denied")
            refused = _refused(answer.body)
            if refused:
                self._warn("partial", f"{origin(batch.url)} refused a part of the data: {refused}")
        else:
            self._drop(batch, "rejected")
            denied = answer.status in DENIED_STATUSES
            self._warn(
                "denied" if denied else f"status {answer.status}",
                f"{origin(batch.url)} {_DENIED if denied else 'refused a batch for good'}: "
                f"HTTP {answer.status} {explanation(answer.body)}",
            )
        self._over("unreachable", "left")
        with self._attempt:
            self._failures = 0
            self._outbox.done(batch)
            self._attempt.notify_all()

    def _drop(self, batch: ExportBatch, reason: str) -> None:
        if batch.requests:
            self._lost(reason, batch.requests)

    def _warn(self, kind: str, message: str) -> None:
        # Once for each kind: a service must not drown in what its telemetry has to say.
        if kind not in self._logged:
            self._logged[kind] = time.monotonic()
            logger.warning("stagelens: %s", message)

    def _over(self, *kinds: str) -> None:
        """Allow a new warning of *kinds* after the quiet time, because their cause has ended."""
        for kind in kinds:
            if time.monotonic() - self._logged.get(kind, math.inf) >= QUIET_SECONDS:
                del self._logged[kind]


def origin(url: str) -> str:
    """Return where *url* leads to, without user, password and query, which may be secrets."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "")


def _retry_after(text: str | None, now: float) -> float | None:
    """Read `Retry-After`, seconds or a date, as seconds from *now*; None where it is missing or makes no sense."""
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(text).timestamp() - now
        except ValueError:
            return None
    return min(max(seconds, 0.0), MAX_RETRY_AFTER_SECONDS) if seconds == seconds else None  # noqa: PLR0124 - not NaN


def _refused(body: bytes) -> str:
    """Return the text of an OTLP partial success, "" for none."""
    partial = _fields(body).get(1)
    said = _fields(partial) if isinstance(partial, bytes) else {}
    count, message = said.get(1, 0), said.get(2)
    return _printable_text(f"{count} rejected: {_text(message)}") if count or message else ""


def explanation(body: bytes) -> str:
    """Return the explanation in an error body: the message of a `google.rpc.Status`, or the text itself."""
    # No text is taken for a status: it has no control characters, and the message's field begins with one.
    return _printable_text(_text(_fields(body).get(2, body[:MAX_SHOWN_CHARS])))


def _fields(message: bytes) -> dict[int, int | bytes]:
    try:
        return parse_fields(message)
    except ValueError:
        return {}


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else ""


def _printable_text(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text).strip()[:MAX_SHOWN_CHARS]
