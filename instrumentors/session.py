"""Run of a command in its own process session: start, CPU time, and termination of all its processes.

`Sink` is the collector of such a command: it discards the exports, so that they do not count as those of the real service.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple, Self

from ..core import names
from ..core.errors import StagelensError

# Polling interval of the server for its shutdown. [seconds]
_SERVE_POLL_SECONDS = 0.1
# Time to exit after SIGTERM, which includes a last export. [seconds]
END_SECONDS = 15.0
POLL_SECONDS = 0.02
# Lines of the output that an error message shows.
_SHOWN_LINES = 12
_PROC = Path("/proc")


class Sink:
    """Collector that only counts exports; a context manager that stops it."""

    def __init__(self) -> None:
        self.exports = 0
        sink = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 10.0  # for each read [s]

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                sink.exports += names.BATCH_HEADER in self.headers
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the base class
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(_SERVE_POLL_SECONDS,), daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class Process(NamedTuple):
    pid: int
    parent: int
    session: int
    cpu_ticks: int


class Session:
    def __init__(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `__exit__`
        try:
            self._process = subprocess.Popen(  # noqa: S603 - the user's own command
                command,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                start_new_session=True,
            )
        except OSError as error:
            self._output.close()
            msg = f"{command[0]} cannot be started ({error.strerror})"
            raise StagelensError(msg) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self._output.close()

    @property
    def code(self) -> int | None:
        return self._process.poll()

    def wait(self) -> float:
        _, status, used = os.wait4(self._process.pid, 0)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        if self._process.returncode:
            raise StagelensError(self.failure())
        return used.ru_utime + used.ru_stime

    def failure(self) -> str:
        self._output.seek(0)
        lines = self._output.read().decode(errors="replace").splitlines()[-_SHOWN_LINES:]
        what = "the command does not respond" if self.code is None else f"the command failed with exit code {self.code}"
        return "\n    ".join((what, *lines))

    def cpu_seconds(self) -> float | None:
        """Return the CPU time of all processes of the command so far, in seconds; None if unknown."""
        ticks = [process.cpu_ticks for process in self.processes()]
        return sum(ticks) / os.sysconf("SC_CLK_TCK") if ticks else None

    def processes(self) -> list[Process]:
        everything, ours = list(processes()), {self._process.pid}
        before = 0
        while len(ours) > before:
            before = len(ours)
            ours |= {other.pid for other in everything if other.session == self._process.pid or other.parent in ours}
        return [process for process in everything if process.pid in ours]

    def _end(self) -> None:
        # Processes that leave the session can be found only while their parents run.
        identities = {(process.pid, process.session) for process in self.processes()}
        deadline = time.monotonic() + END_SECONDS
        # The signal goes to the process group, as for Ctrl-C: a shell would not forward it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        while self._left(identities) and time.monotonic() < deadline:
            self._process.poll()
            pause()
        for pid in self._left(identities):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.code is None:
            self._process.kill()
        self._process.wait()

    def _left(self, identities: set[tuple[int, int]]) -> list[int]:
        return [
            process.pid
            for process in processes()
            if process.session == self._process.pid or (process.pid, process.session) in identities
        ]


def processes() -> Iterator[Process]:
    for path in _PROC.glob("[0-9]*/stat"):
        try:
            # The name in parentheses may contain any character.
            words = path.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        # A zombie has exited and does not count.
        if words[0] != "Z":
            yield Process(int(path.parent.name), int(words[1]), int(words[3]), sum(map(int, words[11:15])))


def pause() -> None:
    time.sleep(POLL_SECONDS)
