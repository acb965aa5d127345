"""The servers of HTTP and gRPC in one event loop and its thread, and the socket of the first."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from ssl import SSLContext

import uvicorn
from starlette.applications import Starlette

from ..core.errors import StagelensError
from .connections import Connection
from .grpc_server import GrpcServer

_log = logging.getLogger(__name__)

_BACKLOG = 512
_DRAIN_SECONDS = 15
# Exporters post every 1, 5, 10 or 60 s: a connection that ends just then would cost them an export.
_KEEP_ALIVE_SECONDS = 3


class Servers(uvicorn.Server):
    """The servers of HTTP and gRPC, which begin and end together.

    Args:
        application: What answers HTTP.
        tls: To speak TLS with; None speaks plain text.
        grpc: The server of gRPC, None for none.

    Attributes:
        ready: Set once they accept.
        grpc_port: The port of gRPC from then on.
    """

    def __init__(self, application: Starlette, tls: SSLContext | None, grpc: GrpcServer | None) -> None:
        super().__init__(
            uvicorn.Config(
                application,
                http=Connection,
                log_config=None,
                access_log=False,
                lifespan="off",
                ws="none",
                proxy_headers=False,  # who calls is who has connected
                server_header=False,
                backlog=_BACKLOG,
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=_DRAIN_SECONDS,
            )
        )
        self._tls, self._grpc = tls, grpc
        self.grpc_port: int | None = None
        self.ready = threading.Event()
        self._failure: BaseException | None = None

    def begin(self, listening: socket.socket) -> None:
        """Accept in a thread, and return once requests are answered.

        Args:
            listening: Where HTTP comes in; it is closed at the end.

        Raises:
            StagelensError: An address cannot be listened on, or the thread has ended.
        """
        self._thread = threading.Thread(
            target=self._in_thread, args=(listening,), name="stagelens-collector", daemon=True
        )
        self._thread.start()
        while not self.ready.wait(0.05):
            if not self._thread.is_alive():
                if isinstance(self._failure, StagelensError):
                    raise self._failure
                msg = "the collector's server ended while it started; the log says why"
                raise StagelensError(msg)

    def end(self) -> None:
        """Accept no more, and return once what was accepted is answered."""
        self.should_exit = True
        self._thread.join()

    def _in_thread(self, listening: socket.socket) -> None:
        with listening:
            try:
                self.run([listening])
            except BaseException as error:  # noqa: BLE001 - SystemExit too, which is how uvicorn gives up
                self._failure = error
                if not isinstance(error, StagelensError):
                    _log.exception("the collector's server ended")

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept."""
        if self._grpc is not None:
            self.grpc_port = await self._grpc.start()
        self.config.ssl = self._tls
        await super().startup(sockets)
        self.ready.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more, and answer what was accepted."""
        async with asyncio.TaskGroup() as both:
            both.create_task(super().shutdown(sockets))
            if self._grpc is not None:
                both.create_task(self._grpc.stop(_DRAIN_SECONDS))


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on *host* and *port*.

    Raises:
        StagelensError: It cannot; what to do about it.
    """
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
