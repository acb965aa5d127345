"""The collector as a whole: a server, a writer and a maintenance thread around one store."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import uvicorn

from ..core.errors import StagelensError
from .config import CollectorConfig
from .health import Health
from .http import Intake
from .maintenance import Maintenance
from .selfmetrics import SelfMetrics
from .store import Store
from .writer import Writer

__all__ = ["Collector", "CollectorConfig"]

_log = logging.getLogger(__name__)

# Reading is Python and shares one lock: more threads would only interleave; a second keeps small bodies going beside a large one.
_DECODERS = 2
_BACKLOG = 512
# Below the usual limit of 1024 open files of a process, which the database needs some of.
_MAX_CONNECTIONS = 800
_MAINTENANCE_SECONDS = 10.0
_DRAIN_SECONDS = 15


class Collector:
    """Serves OTLP/HTTP in background threads.

    Args:
        config: Where to listen and what to accept.
        store: Where to write; it stays open when the collector stops.
        maintenance_seconds: The time between two runs of roll-ups and retention.
        clock: Unix seconds, to judge the times of points by.
    """

    def __init__(
        self,
        config: CollectorConfig,
        store: Store,
        *,
        maintenance_seconds: float = _MAINTENANCE_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._config = config
        self.health = Health()
        self.metrics = SelfMetrics(self.health)
        self._writer = Writer(
            store,
            max_batches=config.queue_batches,
            max_bytes=config.queue_bytes,
            health=self.health,
            metrics=self.metrics,
        )
        self._maintenance = Maintenance(
            store, interval_seconds=maintenance_seconds, health=self.health, metrics=self.metrics
        )
        self._decoders = ThreadPoolExecutor(_DECODERS, "stagelens-decoder")
        intake = Intake(
            config,
            writer=self._writer,
            decoders=self._decoders,
            health=self.health,
            metrics=self.metrics,
            add_event=store.add_event,
            clock=clock,
        )
        self._server = _Server(
            uvicorn.Config(
                intake.application(),
                log_config=None,
                access_log=False,
                lifespan="off",
                ws="none",
                server_header=False,
                backlog=_BACKLOG,
                limit_concurrency=_MAX_CONNECTIONS,
                timeout_graceful_shutdown=_DRAIN_SECONDS,
            )
        )
        self._thread: threading.Thread | None = None
        self._socket: socket.socket | None = None

    @property
    def address(self) -> tuple[str, int]:
        """The host and the port it listens on.

        Raises:
            StagelensError: It was not started.
        """
        if self._socket is None:
            msg = "the collector has no address before it is started"
            raise StagelensError(msg)
        return self._address

    def start(self) -> None:
        """Listen, and return once requests are answered.

        Raises:
            StagelensError: The address cannot be listened on.
        """
        self._socket = _listen(self._config.host, self._config.port)
        host, port, *_ = self._socket.getsockname()
        self._address: tuple[str, int] = (host, port)
        self._writer.start()
        self._maintenance.start()
        self._thread = threading.Thread(
            target=self._serve, args=(self._socket,), name="stagelens-collector", daemon=True
        )
        self._thread.start()
        while not self._server.ready.wait(0.05):
            if not self._thread.is_alive():
                self.stop()
                msg = "the collector's server ended while it started; the log says why"
                raise StagelensError(msg)
        _log.info("collecting OTLP/HTTP on http://%s:%d", host, port)

    def _serve(self, listening: socket.socket) -> None:
        with listening:
            try:
                self._server.run([listening])
            except BaseException:  # noqa: BLE001 - SystemExit too, which is how the server gives up; start() reports it
                _log.exception("the collector's server ended")

    def stop(self) -> None:
        """Accept no more, answer what was accepted, commit and maintain; a second call does nothing."""
        if self._thread is None:
            return
        self._server.should_exit = True
        self._writer.hurry()
        self._thread.join()
        self._thread = None
        self._decoders.shutdown()
        self._writer.stop()
        self._maintenance.stop()
        self._maintenance.run_once()


class _Server(uvicorn.Server):
    """A server that says when it accepts."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    except OSError as error:
        msg = (
            f"the collector cannot listen on {host}:{port} ({error.strerror or error}).\n"
            "    Stop what uses that address, or choose another with STAGELENS_COLLECTOR_HOST and STAGELENS_COLLECTOR_PORT\n"
            "    (agents find it by OTEL_EXPORTER_OTLP_ENDPOINT)."
        )
        raise StagelensError(msg) from error
