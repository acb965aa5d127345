"""Connections that are to speak TLS, until they do: they take places like those that wait for a request, and have as long.

Asyncio's servers give a handshake a minute and tell nobody of a connection before its end: those that open many and say nothing
would be counted by nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass
from ssl import SSLContext

from .connection_limits import ConnectionLimits, Waiter
from .connections import MAX_HEAD_SECONDS, Connection

_log = logging.getLogger(__name__)

# How long nobody is let in where no connection can be accepted: until files are closed, or memory is free. [seconds]
_PAUSE_SECONDS = 1.0


@dataclass(eq=False)
class Handshake:
    """A connection before its TLS has begun.

    Args:
        socket: Of it.
    """

    socket: socket.socket

    def give_way(self) -> None:
        """End: before TLS has begun there is no saying why."""
        # It is closed by what reads it.
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)


async def accept(
    listening: socket.socket, tls: SSLContext, limits: ConnectionLimits, connection: Callable[[Waiter], Connection]
) -> None:
    """Accept connections until cancelled.

    Args:
        listening: Where they come in.
        tls: What to speak TLS with.
        limits: Of all connections of the server.
        connection: Makes what goes on where the handshake ends, whose place it takes.
    """
    loop, going_on = asyncio.get_running_loop(), set[asyncio.Task[None]]()
    listening.setblocking(False)
    while True:
        try:
            accepted, address = await loop.sock_accept(listening)
        except OSError as error:
            _log.warning("the %s cannot accept a connection: %s", limits.name, error.strerror or error)
            await asyncio.sleep(_PAUSE_SECONDS)
            continue
        handshake = Handshake(accepted)
        if limits.enter(handshake, address[0]) == "out":
            accepted.close()
            continue
        task = loop.create_task(_shake_hands(handshake, tls, limits, connection))
        going_on.add(task)
        task.add_done_callback(going_on.discard)


async def _shake_hands(
    handshake: Handshake, tls: SSLContext, limits: ConnectionLimits, connection: Callable[[Waiter], Connection]
) -> None:
    try:
        # Who says nothing, no TLS, or shows no certificate that is believed, has been disconnected when it raises.
        with contextlib.suppress(OSError):
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection(handshake), handshake.socket, ssl=tls, ssl_handshake_timeout=MAX_HEAD_SECONDS
            )
    finally:
        limits.leave(handshake)
