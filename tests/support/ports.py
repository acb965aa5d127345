"""Ports for servers that must be told one before they start."""

from __future__ import annotations

import socket


def free_port() -> int:
    """Return a port of the loopback at which nobody listens, and which nobody else is given while this process lives.

    It stays bound: connections are refused, `bind` to port 0 passes it over, and a server that sets `SO_REUSEADDR`, as
    they all do, may have it. A port that was let go could be another process's before the server has it.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    port: int = held.getsockname()[1]
    # Open to the end of this process.
    held.detach()
    return port
