"""TLS connections that count towards the connection limits from the start of their handshake.

A TLS server of asyncio reports a connection only after the handshake, and allows a minute for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass
from ssl import SSLContext

from .connection_limits import ConnectionLimits, LimitedConnection

_log = logging.getLogger(__name__)

MAX_HANDSHAKE_SECONDS = 10.0
# Pause after a connection could not be accepted, for example without a free file descriptor. [seconds]
_ACCEPT_PAUSE_SECONDS = 1.0


@dataclass(eq=False)
class Handshake:
    socket: socket.socket

    def give_way(self) -> None:
        """Close the connection without a response, which cannot be sent before the handshake is complete."""
        # Not closed here: the event loop still uses the socket.
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)


async def accept_tls(
    listening: socket.socket,
    tls: SSLContext,
    limits: ConnectionLimits,
    protocol: Callable[[LimitedConnection], asyncio.Protocol],
) -> None:
    """Accept connections until cancelled; *protocol* is called after each handshake."""
    loop, tasks = asyncio.get_running_loop(), set[asyncio.Task[None]]()
    listening.setblocking(False)
    while True:
        try:
            accepted, address = await loop.sock_accept(listening)
        except OSError as error:
            _log.warning("the %s cannot accept a connection: %s", limits.name, error.strerror or error)
            await asyncio.sleep(_ACCEPT_PAUSE_SECONDS)
            continue
        handshake = Handshake(accepted)
        if limits.enter(handshake, address[0]) == "out":
            accepted.close()
            continue
        task = loop.create_task(_run_handshake(handshake, tls, limits, protocol))
        tasks.add(task)
        task.add_done_callback(tasks.discard)


async def _run_handshake(
    handshake: Handshake,
    tls: SSLContext,
    limits: ConnectionLimits,
    protocol: Callable[[LimitedConnection], asyncio.Protocol],
) -> None:
    try:
        # Raised for a timeout, a protocol error or a rejected certificate; the event loop has closed the socket then.
        with contextlib.suppress(OSError):
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: protocol(handshake), handshake.socket, ssl=tls, ssl_handshake_timeout=MAX_HANDSHAKE_SECONDS
            )
    finally:
        limits.leave(handshake)
