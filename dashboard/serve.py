"""The dashboard as a running part: a server in a background thread."""

from __future__ import annotations

import time
from collections.abc import Callable

from ..collector.server.connections import ConnectionLimits
from ..collector.server.http_server import HttpServer, open_listener
from ..store import Store
from . import wsgi_front
from .app import build
from .config import DashboardConfig
from .source import AlertsSource, Source
from .wsgi_front import Front

__all__ = ["Dashboard", "DashboardConfig"]

_PORT_FIX = "Stop what listens there, or choose another port with STAGELENS_DASHBOARD_PORT (0 takes a free one)."
_DRAIN_SECONDS = 10
# Longer than proxies in front keep a connection: one that ended just when they send would be an error to a reader.
_KEEP_ALIVE_SECONDS = 75
_MAX_CONNECTIONS = 300
# A browser has six at a time; as many readers as ten may come from one address.
_MAX_OF_ONE_ADDRESS = 64


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
        self._server: HttpServer | None = None
        self._address = (config.host, config.port)

    @property
    def address(self) -> tuple[str, int]:
        """The host and port it listens on; before `start`, those it was told to."""
        return self._address

    def start(self) -> None:
        """Listen, and return once connections are accepted.

        Raises:
            StagelensError: The port is taken or the address is not of this machine.
        """
        config = self.config
        listening = open_listener(config.host, config.port, "dashboard", _PORT_FIX)
        # All readers may come through one proxy.
        is_direct = not (config.behind_proxy or config.trusted_proxies)
        limits = ConnectionLimits(
            "dashboard",
            wsgi_front.PATHS,
            most=_MAX_CONNECTIONS,
            most_of_one=_MAX_OF_ONE_ADDRESS if is_direct else _MAX_CONNECTIONS,
        )
        self._address = (config.host, int(listening.getsockname()[1]))
        # A proxy's headers are left to `identity`, which knows whose to believe.
        self._server = HttpServer(
            Front(self.app.server), limits, keep_alive_seconds=_KEEP_ALIVE_SECONDS, drain_seconds=_DRAIN_SECONDS
        )
        self._server.begin(listening)

    def stop(self) -> None:
        """Close the port, let the requests under way finish, and return."""
        if self._server is None:
            return
        self._server.end()
        self._server = None
