"""Average stages of a Triton server, from the difference of two readings of its statistics.

The average over all calls of all clients that the server finished between two readings is used for the calls in
that time, and is marked as averaged: each call of this process gets the same relative share of its duration, so that a
long call gets more than a short one and all together add up to the numbers of the server. Nothing here runs on the thread of a
request. A model is read at most once a second, in about a second at most, on a connection of our own. After failures
the pause doubles, and a slow server is read for at most a tenth of the time, because requests wait for it meanwhile.

The client itself is not used for that: the HTTP client belongs to one thread, the asynchronous ones to one event loop.
Its TLS settings are used, but headers of the user are not sent: if a server requires them, its statistics stay unread.

Source: https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_statistics.md
"""

from __future__ import annotations

import json
import logging
import os
import ssl
import sys
from collections import deque
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from ...export.http_post import limit_connection
from ...records import Marks, clock

TIMEOUT_SECONDS = 1.0
MAX_SERVERS = 16
# A model's statistics are about 1 kB, more with many versions and batch sizes.
MAX_BODY_BYTES = 4 * 2**20
OK = 200
SECOND_NS = 10**9
READ_EVERY_NS = SECOND_NS
# Limit of the pause after failures: 2 s, 4 s, ...
MAX_PAUSE_NS = 64 * SECOND_NS
# A reading takes about a millisecond; a slower one than this is followed by a pause of so many times its duration.
SLOW_NS = SECOND_NS // 20
PAUSE_AFTER_SLOW = 9
# Limit of recorded calls per model: those of a few seconds in a busy service.
MAX_CALLS = 4096
# A quarter of a minute in a busy service; in an idle one there is a reading between any two calls.
MAX_READINGS = 16
MAX_MODELS = 64
# Idle time after which a model may be removed for another one.
IDLE_NS = 60 * SECOND_NS
# Tolerance of floating-point rounding. [nanoseconds]
_DUST = 1e-3


@dataclass(frozen=True, slots=True)
class Server:
    protocol: str
    url: str
    arguments: Mapping[str, Any] = field(compare=False, repr=False)


class Totals(NamedTuple):
    calls: int
    whole: int
    h2d: int
    forward: int
    d2h: int

    def since(self, earlier: Totals) -> Totals:
        return Totals(*(now - before for now, before in zip(self, earlier, strict=True)))


def fetch_totals(server: Server, model: str, version: str) -> Totals:
    """Return the totals of *model*; of all versions if *version* is "".

    Raises:
        Exception: The server cannot be reached, denies the access, or does not know the model.
    """
    statistics = (_http if server.protocol == "http" else _grpc)(server, model, version)
    return Totals(*(sum(column) for column in zip(*statistics, strict=True)))


def _http(server: Server, model: str, version: str) -> list[Totals]:
    address = urlsplit("//" + server.url)
    path = f"{address.path.rstrip('/')}/v2/models/{quote(model)}"
    path += f"/versions/{quote(version)}/stats" if version else "/stats"
    connection = _connection(server.arguments, address.hostname or "", address.port)
    try:
        limit_connection(connection, TIMEOUT_SECONDS, max_bytes=2 * MAX_BODY_BYTES)
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read(MAX_BODY_BYTES)
    finally:
        connection.close()
    if response.status != OK:
        raise HTTPException(response.status)
    return [
        Totals(
            int(counted["success"]["count"]),
            *(int(counted[phase]["ns"]) for phase in ("success", "compute_input", "compute_infer", "compute_output")),
        )
        for counted in (model_stat["inference_stats"] for model_stat in json.loads(body)["model_stats"])
    ]


def _connection(arguments: Mapping[str, Any], host: str, port: int | None) -> HTTPConnection:
    if not arguments.get("ssl"):
        return HTTPConnection(host, port)
    context = arguments.get("ssl_context")
    if not isinstance(context, ssl.SSLContext):
        context = ssl.create_default_context(cafile=(arguments.get("ssl_options") or {}).get("ca_certs"))
        if arguments.get("insecure"):
            context.check_hostname = False
    return HTTPSConnection(host, port, context=context)


def _grpc(server: Server, model: str, version: str) -> list[Totals]:
    from tritonclient.grpc import service_pb2, service_pb2_grpc  # noqa: PLC0415 - already loaded by the client

    with _untraced():
        stub = service_pb2_grpc.GRPCInferenceServiceStub(_channel(server, os.getpid()))
        messages: Any = service_pb2  # its attributes are created on import
        request = messages.ModelStatisticsRequest(name=model, version=version)
        response = stub.ModelStatistics(request, timeout=TIMEOUT_SECONDS)
    return [
        Totals(
            counted.success.count,
            counted.success.ns,
            counted.compute_input.ns,
            counted.compute_infer.ns,
            counted.compute_output.ns,
        )
        for counted in (model_stat.inference_stats for model_stat in response.model_stats)
    ]


# A gRPC channel does not survive a fork: every process has its own.
@lru_cache(maxsize=MAX_SERVERS)
def _channel(server: Server, _process: int) -> Any:
    import grpc  # noqa: PLC0415 - as above

    arguments = server.arguments
    credentials = arguments.get("creds")
    if not credentials and arguments.get("ssl"):
        files = (arguments.get(name) for name in ("root_certificates", "private_key", "certificate_chain"))
        credentials = grpc.ssl_channel_credentials(
            *(None if file is None else Path(file).read_bytes() for file in files)
        )
    options = arguments.get("channel_args")
    if credentials:
        return grpc.secure_channel(server.url, credentials, options=options)
    return grpc.insecure_channel(server.url, options=options)


def close_channels() -> None:
    _channel.cache_clear()


@contextmanager
def _untraced() -> Generator[None]:
    """Suppress an OpenTelemetry instrumentation of gRPC, which would report our calls as the user's."""
    context = sys.modules.get("opentelemetry.context")
    if context is None:
        yield
        return
    token = context.attach(context.set_value(context._SUPPRESS_INSTRUMENTATION_KEY, True))  # noqa: SLF001 - the key that OpenTelemetry instrumentations read
    try:
        yield
    finally:
        context.detach(token)


_logger = logging.getLogger("stagelens")


class CallWindow(NamedTuple):
    counted: Totals  # Totals that the server counted
    # Mean duration of this process's calls that ended between the two readings; 0 for none. [nanoseconds]
    call_ns: float


class TotalsReading(NamedTuple):
    at: int
    totals: Totals


class ServerStatistics:
    """Reader of the statistics of one server; pauses after failures and slow responses."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._failures = 0
        self._paused_until = 0

    @property
    def failing(self) -> bool:
        return self._failures > 0

    def read(self, model: str, version: str, now: int) -> Totals | None:
        """Return the totals of a model, or None if the server does not report them; never raises."""
        if now < self._paused_until:
            return None
        try:
            totals = fetch_totals(self._server, model, version)
        except Exception as error:
            self._failed(error)
            return None
        self._failures = 0
        done = clock()
        if done - now > SLOW_NS:
            self._paused_until = done + PAUSE_AFTER_SLOW * (done - now)
        return totals

    def _failed(self, error: Exception) -> None:
        if not self._failures:
            _logger.warning(
                "stagelens: the Triton server at %s does not report statistics (%s): its calls count as network only",
                self._server.url,
                type(error).__name__,
            )
        self._failures += 1
        self._paused_until = clock() + min(SECOND_NS << min(self._failures, 10), MAX_PAUSE_NS)


class ModelReadings:
    def __init__(self, source: ServerStatistics, name: str, version: str) -> None:
        self._source = source
        self._name = name
        self._version = version
        self._readings: deque[TotalsReading] = deque(maxlen=MAX_READINGS)
        self._calls: deque[tuple[int, int]] = deque(maxlen=MAX_CALLS)
        self._next = 0
        self.used = 0

    def read(self, now: int) -> None:
        """Read the totals, unless the last reading was less than a second ago; never raises."""
        self.used = now
        if now < self._next:
            return
        self._next = now + READ_EVERY_NS
        totals = self._source.read(self._name, self._version, now)
        if totals is None:
            return
        if self._readings and any(added < 0 for added in totals.since(self._readings[-1].totals)):
            # The server or the model was restarted, so earlier readings are no longer comparable.
            self._readings.clear()
        self._readings.append(TotalsReading(now, totals))

    def called(self, t0: int, t1: int) -> None:
        self._calls.append((t0, t1))

    def is_settled(self, t0: int, t1: int) -> bool:
        unseen_before = bool(self._readings) and self._readings[0].at >= t1
        return self._source.failing or unseen_before or self.window(t0, t1) is not None

    def window(self, t0: int, t1: int) -> CallWindow | None:
        """Return the window of readings around a call from *t0* to *t1*, or None if it is not known yet."""
        before = [reading for reading in self._readings if reading.at <= t0][-1:]
        before = before or [reading for reading in self._readings if reading.at < t1][:1]
        for after in self._readings if before else ():
            counted = after.totals.since(before[0].totals)
            # The server counts a call shortly after its response.
            if after.at >= t1 and counted.calls > 0:
                return self._between(before[0], after)
        return None

    def lately(self) -> CallWindow | None:
        if len(self._readings) < 2:  # noqa: PLR2004 - two readings
            return None
        window = self._between(self._readings[-2], self._readings[-1])
        return window if window.counted.calls > 0 else None

    def _between(self, before: TotalsReading, after: TotalsReading) -> CallWindow:
        took = [t1 - t0 for t0, t1 in self._calls if before.at < t1 <= after.at]
        return CallWindow(after.totals.since(before.totals), sum(took) / len(took) if took else 0.0)


class Averaged:
    """Averaged server stages of one call, as a `records.Late`."""

    __slots__ = ("_call", "_is_noted", "_model", "_server", "_version")

    def __init__(self, server: Server, model: str, version: str, t0: int, t1: int) -> None:
        self._server = server
        self._model = model
        self._version = version
        self._call = t0, t1
        self._is_noted = False

    def ready(self) -> bool:
        """Read the statistics if it is time, and return whether they cover this call.

        The first call always returns False, so that all calls that ended at the same time are recorded before the averaging.
        """
        model = known.model(self._server, self._model, self._version)
        if model is None:
            return True
        model.read(clock())
        if not self._is_noted:
            self._is_noted = True
            model.called(*self._call)
            return False
        return model.is_settled(*self._call)

    def marks(self) -> Marks:
        model = known.model(self._server, self._model, self._version)
        if model is None:
            return []
        window = model.window(*self._call) or model.lately()
        return [] if window is None else spread(window, *self._call)


class KnownModels:
    def __init__(self) -> None:
        self._sources: dict[Server, ServerStatistics] = {}
        self._models: dict[tuple[Server, str, str], ModelReadings] = {}

    def model(self, server: Server, name: str, version: str) -> ModelReadings | None:
        model = self._models.get((server, name, version))
        if model is None and self._has_capacity():
            source = self._sources.setdefault(server, ServerStatistics(server))
            model = self._models[server, name, version] = ModelReadings(source, name, version)
        return model

    def _has_capacity(self) -> bool:
        if len(self._models) < MAX_MODELS:
            return True
        idle_since = clock() - IDLE_NS
        self._models = {key: model for key, model in self._models.items() if model.used > idle_since}
        servers = {server for server, _, _ in self._models}
        self._sources = {server: source for server, source in self._sources.items() if server in servers}
        return len(self._models) < MAX_MODELS


known = KnownModels()


def spread(window: CallWindow, t0: int, t1: int) -> Marks:
    """Return the server stages in the middle of a call from *t0* to *t1*, with half of the network time on each side.

    `queue` is the total server time minus the computing time, because the waits of the steps of an ensemble are not
    counted separately. Steps that ran in parallel are scaled to their total duration.

    >>> spread(CallWindow(Totals(calls=2, whole=12, h2d=2, forward=8, d2h=0), call_ns=10), 100, 110)
    ['queue@averaged', 102, 103, 'h2d@averaged', 103, 104, 'forward@averaged', 104, 108]
    """
    counted = window.counted
    parts = {"h2d": counted.h2d, "forward": counted.forward, "d2h": counted.d2h}
    computed = sum(parts.values())
    parts = {"queue": max(0, counted.whole - computed), **parts}
    share = counted.whole / counted.calls / (window.call_ns or t1 - t0 or 1)
    together = min(share, 1.0) * (t1 - t0)
    scale = together / max(counted.whole, computed, 1)
    lengths = {f"{stage}@averaged": int(spent * scale + _DUST) for stage, spent in parts.items()}
    at = t0 + (t1 - t0 - sum(lengths.values())) // 2
    marks: Marks = []
    for stage, length in lengths.items():
        if length > 0:
            marks.extend((stage, at, at + length))
            at += length
    return marks
