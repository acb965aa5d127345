"""TCP ports on which this process, or a child, listens for requests, whatever has opened them."""

from __future__ import annotations

import _socket
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

# Modules that open ports in a process that is no server: notebooks, and the workers of clusters.
_OPEN_PORTS: Final = ("distributed", "ipykernel", "mpi4py", "pyspark", "ray")
# Ports of metrics, which are no service.
exporter_ports: Final = set[int]()


def open_ports() -> Iterator[int]:
    """Yield the TCP ports on which this process listens for requests, none on Windows."""
    # With a default timeout, the object that asks a socket of the host would change its mode.
    if not may_serve() or _socket.getdefaulttimeout() is not None:
        return
    with suppress(Exception):
        for name in os.listdir("/dev/fd"):  # noqa: PTH208 - importing pathlib would cost the host time
            with suppress(Exception):
                port = _listening_port(int(name))
                if port and port not in exporter_ports:
                    yield port


def may_serve() -> bool:
    torch = sys.modules.get("torch.distributed")
    return not any(name in sys.modules for name in _OPEN_PORTS) and not (torch is not None and torch.is_initialized())


def _listening_port(file: int) -> int:
    if not stat.S_ISSOCK(os.fstat(file).st_mode):
        return 0
    socket = _socket.socket(fileno=file)
    try:
        if socket.family in {_socket.AF_INET, _socket.AF_INET6} and socket.getsockopt(
            _socket.SOL_SOCKET, _socket.SO_ACCEPTCONN
        ):
            return int(socket.getsockname()[1])
    finally:
        # It belongs to the host.
        socket.detach()
    return 0


def is_listening(pid: int) -> bool:
    with suppress(OSError):
        files = [f"/proc/{pid}/fd/{file}" for file in os.listdir(f"/proc/{pid}/fd")]  # noqa: PTH208 - as below
        sockets = {os.readlink(file) for file in files}  # noqa: PTH115
        for name in ("tcp", "tcp6"):
            with open(f"/proc/{pid}/net/{name}") as table:  # noqa: PTH123
                rows = map(str.split, table)
                if any(row[3] == "0A" and f"socket:[{row[9]}]" in sockets for row in rows):
                    return True
    return False
