"""HTTP server in a thread with its own event loop and connection limits."""

from __future__ import annotations

import asyncio
import functools
import logging
import socket
import threading
from ssl import SSLContext

import uvicorn
from starlette.types import ASGIApp

from ...core.addresses import host_and_port
from ...core.errors import StagelensError
from .bodies import with_complete_bodies
from .connection_limits import ConnectionLimits
from .connections import LimitedConnections
from .tls_listener import accept_tls

_log = logging.getLogger(__name__)

_BACKLOG = 512
DRAIN_SECONDS = 15
# Longer than the keep-alive of proxies: closing a connection while a proxy sends a request would be an error for a reader.
_KEEP_ALIVE_SECONDS = 75


class HttpServer(uvicorn.Server):
    """Uvicorn server that runs in a thread; *ready*: event that is set once the server accepts connections, or has failed.

    *max_body_bytes* is the limit of a request body; None if *application* limits the bodies with a `BodyReader`.
    """

    def __init__(
        self,
        application: ASGIApp,
        limits: ConnectionLimits,
        *,
        tls: SSLContext | None = None,
        max_body_bytes: int | None,
        keep_alive_seconds: int = _KEEP_ALIVE_SECONDS,
    ) -> None:
        if max_body_bytes is not None:
            application = with_complete_bodies(application, max_body_bytes)
        self._connections = LimitedConnections(limits)
        super().__init__(
            uvicorn.Config(
                self._connections.application(application),
                http=self._connections.protocol,  # type: ignore[arg-type] - it is only called
                log_config=None,
                access_log=False,
                lifespan="auto",
                ws="none",
                proxy_headers=False,  # the caller is the address of the connection
                server_header=False,
                backlog=_BACKLOG,
                timeout_keep_alive=keep_alive_seconds,
                timeout_graceful_shutdown=DRAIN_SECONDS,
            )
        )
        self.limits, self._tls = limits, tls
        self._accepting: list[asyncio.Task[None]] = []
        self.ready = threading.Event()
        self._failure: BaseException | None = None

    def begin(self, listening: socket.socket) -> None:
        name = self.limits.name
        self._thread = threading.Thread(
            target=self._in_thread, args=(listening,), name=f"stagelens-{name}", daemon=True
        )
        self._thread.start()
        self.ready.wait()
        if not self.started:
            msg = f"the {name}'s server stopped during startup; see the log"
            raise self._failure if isinstance(self._failure, StagelensError) else StagelensError(msg)

    def end(self) -> None:
        self.should_exit = True
        self._thread.join()

    def _in_thread(self, listening: socket.socket) -> None:
        with listening:
            try:
                self.run([listening])
            except BaseException as error:  # noqa: BLE001 - SystemExit too, which uvicorn raises when it cannot start
                self._failure = error
                if not isinstance(error, StagelensError):
                    _log.exception("the %s's server stopped", self.limits.name)
            finally:
                self.ready.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._tls is None:
            await super().startup(sockets)
        else:
            await super().startup([])
            options = {"config": self.config, "server_state": self.server_state, "app_state": self.lifespan.state}
            protocol = functools.partial(self._connections.protocol, **options)
            self._accepting = [
                asyncio.create_task(accept_tls(listening, self._tls, self.limits, protocol))
                for listening in sockets or ()
            ]
        self.ready.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for accepting in self._accepting:
            accepting.cancel()
        # The event loop must not watch a socket that is closed below.
        await asyncio.gather(*self._accepting, return_exceptions=True)
        await super().shutdown(sockets)


def open_listener(host: str, port: int, who: str, fix: str) -> socket.socket:
    try:
        candidates = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        # A name such as localhost may resolve to IPv4 and IPv6; most other programs try IPv4.
        family, *_, address = min(candidates, key=lambda candidate: candidate[0] != socket.AF_INET)
        return socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    except OSError as error:
        msg = f"the {who} cannot listen on {host_and_port(host, port)} ({error.strerror or error}).\n    {fix}"
        raise StagelensError(msg) from error
