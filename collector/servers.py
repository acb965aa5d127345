"""The collector's servers of HTTP and gRPC in one event loop and its thread."""

from __future__ import annotations

import asyncio
import socket
from ssl import SSLContext

from starlette.applications import Starlette

from .server.connections import ConnectionLimits
from .server.grpc_server import GrpcServer
from .server.http_app import PROBES
from .server.http_server import HttpServer

_DRAIN_SECONDS = 15
# Exporters post every 1, 5, 10 or 60 s: a connection that ends just then would cost them an export.
_KEEP_ALIVE_SECONDS = 3


class Servers(HttpServer):
    """The servers of HTTP and gRPC, which begin and end together.

    Args:
        application: What answers HTTP.
        tls: To speak TLS with; None speaks plain text.
        grpc: The server of gRPC, None for none.

    Attributes:
        grpc_port: The port of gRPC once they accept.
    """

    def __init__(self, application: Starlette, tls: SSLContext | None, grpc: GrpcServer | None) -> None:
        # With those of gRPC below the usual limit of 1024 open files of a process, which the database needs some of.
        super().__init__(
            application,
            ConnectionLimits("collector", PROBES),
            tls=tls,
            keep_alive_seconds=_KEEP_ALIVE_SECONDS,
            drain_seconds=_DRAIN_SECONDS,
        )
        self._grpc = grpc
        self.grpc_port: int | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept."""
        if self._grpc is not None:
            self.grpc_port = await self._grpc.start()
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more, and answer what was accepted."""
        async with asyncio.TaskGroup() as both:
            both.create_task(super().shutdown(sockets))
            if self._grpc is not None:
                both.create_task(self._grpc.stop(_DRAIN_SECONDS))
