"""A server that sends its response byte by byte: each read succeeds in time, the response never ends."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Generator

# As long as nobody hangs up; then the test that waited for it fails by what it says.
_LONG_SECONDS = 60.0
_STEP_SECONDS = 0.01


@contextlib.contextmanager
def trickling(beginning: bytes, more: bytes = b"x", *, listens_first: bool = True) -> Generator[int]:
    """Send *beginning* and then *more* repeatedly on one connection; yield the port."""
    listening, over = socket.create_server(("127.0.0.1", 0)), threading.Event()

    def respond() -> None:
        with contextlib.suppress(OSError):
            calling, _ = listening.accept()
            with calling:
                if listens_first:
                    calling.recv(65536)
                calling.sendall(beginning)
                for _ in range(int(_LONG_SECONDS / _STEP_SECONDS)):
                    calling.sendall(more)
                    if over.wait(_STEP_SECONDS):
                        break

    thread = threading.Thread(target=respond, daemon=True)
    thread.start()
    yield listening.getsockname()[1]
    over.set()
    listening.close()
    thread.join()
