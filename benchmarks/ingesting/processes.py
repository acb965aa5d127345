"""Servers under measurement: on a core of their own, with all their processes, and killed as one."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

SERVER_CORE, LOAD_CORE = 1, 0
_START_SECONDS = 300
# A server rests when it takes less than so much of its core.
_REST_SHARE, _REST_SECONDS, _MAX_REST_SECONDS = 0.1, 1.0, 900


class Process:
    """A server of a process group of its own.

    Args:
        command: What to run.
        env: Beside this process's environment.
        folder: Where it runs, and where its log is.
        port: What it listens on once it is ready.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str], folder: Path, port: int) -> None:
        self._log = folder / "server.log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                ["taskset", "--cpu-list", str(SERVER_CORE), *command],
                env={**os.environ, **env},
                cwd=folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._wait(port)

    def _wait(self, port: int) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                return
            if self._process.poll() is not None or time.monotonic() > deadline:
                msg = f"the server did not start; the end of its log:\n{self._log.read_text()[-2000:]}"
                raise RuntimeError(msg)
            time.sleep(0.1)

    @property
    def pid(self) -> int:
        """The first of its processes."""
        return self._process.pid

    def peak_bytes(self) -> int:
        """Return the most memory its processes have held, each at its own time."""
        return sum(map(_peak_bytes, family(self.pid)))

    def kill(self) -> None:
        """End all of it at once, as a machine that fails does to it."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """Have it end."""
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)


def family(process: int) -> list[int]:
    """Return *process* and what it has started, and so on."""
    found = [process]
    for each in found:
        with suppress(OSError):
            for task in Path(f"/proc/{each}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
    return found


def _peak_bytes(process: int) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    return 0


def _cpu_seconds(process: int) -> float:
    """Return what *process* has taken, with its threads that have ended; 0 once it is gone itself."""
    with suppress(OSError):
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


class Meter:
    """The CPU time of *processes* and of all they start, also of those that have ended since it last looked.

    Args:
        roots: The first ones.
    """

    def __init__(self, *roots: int) -> None:
        self._roots = roots
        self._seen: dict[int, float] = {}

    def seconds(self) -> float:
        """Return what they have taken so far."""
        for root in self._roots:
            for process in family(root):
                self._seen[process] = max(self._seen.get(process, 0.0), _cpu_seconds(process))
        return sum(self._seen.values())

    def wait_for_rest(self) -> float:
        """Wait until next to nothing is taken any more; return what had been by then."""
        deadline = time.monotonic() + _MAX_REST_SECONDS
        taken, quiet = self.seconds(), 0
        while quiet < 3 and time.monotonic() < deadline:
            time.sleep(_REST_SECONDS)
            now = self.seconds()
            quiet = quiet + 1 if now - taken < _REST_SHARE * _REST_SECONDS else 0
            taken = now
        return taken


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]
