"""The dashboard as a running part: waitress in a background thread."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from waitress.server import create_server

from ..collector.store import Store
from ..core.errors import StagelensError
from .app import build
from .config import DashboardConfig
from .source import AlertsSource, Source

__all__ = ["Dashboard", "DashboardConfig"]

_log = logging.getLogger(__name__)

# A browser opens six connections and fetches the scripts all at once.
_THREADS = 8
_STOP_SECONDS = 10.0


class Dashboard:
    """Serves the pages in background threads.

    Args:
        config: Where to listen and who may read.
        store: The data; it stays open when the dashboard stops.
        alerts: What answers for objectives and incidents, such as `Alerts(...).reader`; None shows none.
        clock: Unix seconds.
    """

    def __init__(
        self,
        config: DashboardConfig,
        store: Store,
        alerts: AlertsSource | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.config = config
        self.app = build(Source(store, alerts, clock, tracer=config.tracer, config=config), config)
        self._server: Any = None
        self._watched: dict[int, Any] = {}
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> tuple[str, int]:
        """The host and port it listens on; before `start`, those it was told to."""
        if self._server is None:
            return self.config.host, self.config.port
        return self.config.host, int(self._server.effective_port)

    def start(self) -> None:
        """Listen, and return once connections are accepted.

        Raises:
            StagelensError: The port is taken or the address is not of this machine.
        """
        # A proxy's headers are left to `identity`, which knows whose to believe.
        self._server = create_server(
            self.app.server,
            map=self._watched,
            sockets=[self._bound()],
            threads=_THREADS,
            ident="stagelens",
            clear_untrusted_proxy_headers=False,
        )
        # It warns whenever a request waits for a thread, which on a first visit is usual.
        logging.getLogger("waitress.queue").setLevel(logging.ERROR)
        self._thread = threading.Thread(target=self._run, name="stagelens-dashboard", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Close the port, let the requests under way finish, and return."""
        server, thread = self._server, self._thread
        if server is None or thread is None:
            return
        server.task_dispatcher.shutdown(timeout=_STOP_SECONDS)
        # waitress's loop ends when it has nothing left to watch; only its own thread may close what it watches.
        server.trigger.pull_trigger(self._close_all)
        thread.join(_STOP_SECONDS)
        self._server = self._thread = None

    def _bound(self) -> socket.socket:
        host, port = self.config.host, self.config.port
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            return socket.create_server((host, port), family=family)
        except OSError as error:
            msg = (
                f"the dashboard cannot listen on {host}:{port}: {error.strerror or error}.\n"
                "    Stop what listens there, or choose another port with STAGELENS_DASHBOARD_PORT (0 takes a free one)."
            )
            raise StagelensError(msg) from error

    def _run(self) -> None:
        self._server.run()

    def _close_all(self) -> None:
        for each in list(self._watched.values()):
            each.close()
