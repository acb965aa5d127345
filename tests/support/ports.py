"""Ports for servers that need a port before their start."""

from __future__ import annotations

import socket


def free_port() -> int:
    """Return an unused port of the loopback interface that is reserved while this process runs.

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
