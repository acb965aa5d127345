"""Delivery to the collector: OTLP/HTTP with the standard library, and retries.

A batch that is not acknowledged is sent again, byte for byte, under the same name, so that the collector counts it once.

Source: OpenTelemetry Protocol 1.x, "OTLP/HTTP Response" and "Failures": 429, 502, 503 and 504 are retried with exponential
backoff and jitter or after `Retry-After`; every other status is permanent.
"""

from __future__ import annotations

import encodings.idna
import logging
import math
import os
import random
import ssl
import threading
import time
from collections.abc import Callable, Mapping

from ...core import names
from ...core.backoff import backoff_seconds
from ...core.proxies import proxy_of, through_proxy
from ...core.version import __version__
from ..config import ClientTlsFiles
from ..recorder import park_if_inherited
from .http_post import HttpResponse, explain, origin, post
from .outbox import ExportBatch, Outbox
from .responses import ADDRESS_FIX, explanation, printable_text, redirect, refused_part, retry_after, web_page

logger = logging.getLogger("stagelens")

# Otherwise the first connection would import the module, and a concurrent fork would leave a half-imported module in the child.
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
# Without this pause a collector that accepts only some batches would fill the log of the host.
QUIET_SECONDS = 300.0
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
        # Times of the logged warnings, by kind. [seconds of `time.monotonic`]
        self._logged: dict[str, float] = {}
        self._thread: threading.Thread | None = None
        self.cpu_ns = 0
        self._wake = threading.Event()
        # Delay before the next attempt, None without a failure. [seconds]
        self.retry_in_seconds: float | None = None
        # Number of consecutive failures, and of all failures.
        self._failures = self._attempts_failed = 0
        self._attempt = threading.Condition()
        self._leaving = False

    def offer(self, batch: ExportBatch) -> None:
        for evicted in self._outbox.put(batch):
            self._drop(evicted, "buffer_full")
            dropped = "the oldest requests are not counted" if evicted.requests else "retained traces are dropped"
            self._warn(dropped, f"the buffer for the collector (STAGELENS_BUFFER_SIZE) is full: {dropped}")

    def wake(self) -> None:
        try:
            self._start()
        except RuntimeError as error:
            if "shutdown" not in str(error):
                raise
            # Python 3.12 and later start no thread at exit: `drain` sends then.
            return
        with self._attempt:
            if self.retry_in_seconds is None:
                self._wake.set()

    def drain(self, timeout_seconds: float) -> bool:
        """Send all batches now, also after a failure; wait until all are sent, an attempt fails or the time is over."""
        self._leaving = True
        with self._attempt:
            failed = self._attempts_failed
        try:
            self._start()
        except RuntimeError:
            # Python 3.12 and later start no thread at exit: this thread sends the remaining batches.
            self._timeout_seconds = min(self._timeout_seconds, timeout_seconds)
            self._send_waiting()
        else:
            self._wake.set()
            with self._attempt:
                self._attempt.wait_for(lambda: self._outbox.empty or self._attempts_failed != failed, timeout_seconds)
        self._leaving = False
        # An earlier warning announced a later delivery, which may not happen any more.
        if "unreachable" in self._logged and (left := self._outbox.requests):
            self._warn("left", f"requests that are still not delivered: {left}; they are lost if the process ends now")
        return self._outbox.empty

    def _start(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="stagelens-export", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            self._wake.wait(self.retry_in_seconds)
            park_if_inherited(self._pid)
            self._wake.clear()
            self._send_waiting()
            self._note_cpu()

    def _note_cpu(self) -> None:
        # A greenlet of the main thread, which has the CPU time of the service. In a forked process, `threading` may still have
        # the id of that of the parent.
        if threading.get_native_id() not in {threading.main_thread().native_id, os.getpid()}:
            self.cpu_ns = max(self.cpu_ns, time.thread_time_ns())

    def _send_waiting(self) -> None:
        self.retry_in_seconds = None
        while self.retry_in_seconds is None and (batch := self._outbox.take()) is not None:
            self._send(batch)
            park_if_inherited(self._pid)

    def _send(self, batch: ExportBatch) -> None:
        try:
            response = self._post(batch)
            if response.status in RETRY_STATUSES:
                reason = f"HTTP {response.status} {explanation(response.body)}"
                # A collector responded with an explanation, so no fix is suggested.
                self._failed(batch, reason, retry_after(response.headers.get("Retry-After"), time.time()), fix="")
            else:
                self._settle(batch, response)
        except Exception as error:
            # Unreachable, not HTTP, or unexpected: the thread must continue and the batch must not be lost.
            self._context = None  # reload the files: certificates are short-lived
            reason, address = explain(error, batch.url)
            fix = _TLS_FIX if isinstance(error, ssl.SSLError) else getattr(error, "fix", _UNREACHABLE_FIX)
            self._failed(
                batch, reason, None, f"Set OTEL_EXPORTER_OTLP_ENDPOINT to {origin(address)}" if address else fix
            )

    def _post(self, batch: ExportBatch) -> HttpResponse:
        return post(
            batch.url,
            batch.body,
            self._headers | {names.BATCH_HEADER: batch.name},
            self._timeout_seconds,
            self._trusting,
            proxy=proxy_of(batch.url),
        )

    def _trusting(self) -> ssl.SSLContext:
        if self._context is None:
            self._context = self._trust.context()
        return self._context

    def _failed(self, batch: ExportBatch, reason: str, retry_after_seconds: float | None, fix: str) -> None:
        self._outbox.give_back(batch)
        # Jitter spreads the retries of many processes. It also limits Retry-After from below: with clock skew its date may be past.
        delay = backoff_seconds(self._failures + 1, BACKOFF_BASE_SECONDS, BACKOFF_CAP_SECONDS, self._rng)
        delay = max(delay, retry_after_seconds or 0.0)
        if not self._leaving:
            through = "" if reason.startswith("the proxy") else through_proxy(batch.url)
            self._warn(
                "unreachable",
                f"{origin(batch.url)}{through} does not accept data ({printable_text(reason)}); data is buffered and sent later. {fix}".rstrip(),
            )
        with self._attempt:
            # A wake-up during the attempt must not shorten the delay.
            self._wake.clear()
            self.retry_in_seconds = delay
            self._failures += 1
            self._attempts_failed += 1
            self._attempt.notify_all()

    def _settle(self, batch: ExportBatch, response: HttpResponse) -> None:
        if response.status in OK_STATUSES:
            self._over("denied")
            refused = refused_part(response.body)
            if page := web_page(response.body):
                self._warn(
                    "page",
                    f"{origin(batch.url)}{through_proxy(batch.url)} responded with {page}: if it is no collector, all data is lost. {ADDRESS_FIX}",
                )
            elif refused:
                self._warn(
                    "partial", f"{origin(batch.url)}{through_proxy(batch.url)} rejected a part of the data: {refused}"
                )
        else:
            self._drop(batch, "rejected")
            denied = response.status in DENIED_STATUSES
            self._warn(
                "denied" if denied else f"status {response.status}",
                f"{origin(batch.url)}{through_proxy(batch.url)} {_DENIED if denied else 'rejected a batch, which is dropped'}: "
                f"HTTP {response.status} {redirect(batch.url, response) or explanation(response.body)}",
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
        # One warning per kind: telemetry must not flood the log of a service.
        if kind not in self._logged:
            self._logged[kind] = time.monotonic()
            logger.warning("stagelens: %s", message)

    def _over(self, *kinds: str) -> None:
        for kind in kinds:
            if time.monotonic() - self._logged.get(kind, math.inf) >= QUIET_SECONDS:
                del self._logged[kind]
