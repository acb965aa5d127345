"""TLS handshakes that count towards the connection limits and have a deadline.

An asyncio server reports a connection only after its handshake, for which it allows a minute: connections without a handshake
would escape the limits.
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

# Pause after a connection could not be accepted, for example without a free file descriptor. [seconds]
_PAUSE_SECONDS = 1.0


@dataclass(eq=False)
class Handshake:
    """A connection during its TLS handshake.

    Args:
        socket: Its socket.
    """

    socket: socket.socket

    def give_way(self) -> None:
        """Close it, without a response: none can be sent before the handshake is done."""
        # Not closed here: the event loop still uses the socket.
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)


async def accept(
    listening: socket.socket, tls: SSLContext, limits: ConnectionLimits, connection: Callable[[Waiter], Connection]
) -> None:
    """Accept connections until cancelled.

    Args:
        listening: The listening socket.
        tls: The TLS context.
        limits: The connection limits of the server.
        connection: Makes the connection that follows a handshake.
    """
    loop, tasks = asyncio.get_running_loop(), set[asyncio.Task[None]]()
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
        tasks.add(task)
        task.add_done_callback(tasks.discard)


async def _shake_hands(
    handshake: Handshake, tls: SSLContext, limits: ConnectionLimits, connection: Callable[[Waiter], Connection]
) -> None:
    try:
        # Raised for a timeout, a protocol error or a rejected certificate; the event loop has closed the socket then.
        with contextlib.suppress(OSError):
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection(handshake), handshake.socket, ssl=tls, ssl_handshake_timeout=MAX_HEAD_SECONDS
            )
    finally:
        limits.leave(handshake)
