"""Servers under measurement: each a process group, whose CPU time and memory are read from /proc."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

BENCHMARKS = Path(__file__).parent
_START_SECONDS, _STOP_SECONDS = 300, 30
# A server rests when it takes less than so much of its core.
_REST_SHARE, _REST_SECONDS, _MAX_REST_SECONDS = 0.1, 1.0, 900


class Process:
    """A server without our settings but *env*, with its log in *folder*, on *core* if one is given."""

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        folder: Path,
        *,
        core: int | None = None,
        cwd: Path | None = None,
    ) -> None:
        self._log = folder / "server.log"
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "STAGELENS_"))}
        pinned = [] if core is None else ["taskset", "--cpu-list", str(core)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*pinned, *command],
                env={**clean, **env},
                cwd=cwd or folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_for(self, port: int) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                return
            if self._process.poll() is not None or time.monotonic() > deadline:
                msg = f"the server did not start; the end of its log:\n{self._log.read_text()[-2000:]}"
                raise RuntimeError(msg)
            time.sleep(0.05)

    @property
    def pid(self) -> int:
        return self._process.pid

    def memory_bytes(self, field: str) -> int:
        """Return VmRSS, or VmHWM for the peak, of all its processes, each at its own time."""
        return sum(_memory_bytes(process, field) for process in family(self.pid))

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> int:
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_SECONDS)
        self.kill()
        return self._process.returncode


@contextmanager
def running(command: Sequence[str], port: int, env: Mapping[str, str]) -> Generator[None]:
    with TemporaryDirectory() as folder:
        process = Process(command, env, Path(folder), cwd=BENCHMARKS)
        try:
            process.wait_for(port)
            yield
        finally:
            process.stop()


def under_stagelens(command: Sequence[str], stages: Iterable[str] = ()) -> list[str]:
    """Return the command that starts Python with *command* under `stagelens run`."""
    options = [word for stage in stages for word in ("--stage", stage)]
    return [sys.executable, "-m", "stagelens", "run", *options, "--", sys.executable, *command]


def family(process: int) -> list[int]:
    """Return *process* and what it has started, and so on."""
    found = [process]
    for parent in found:
        with suppress(OSError):
            for task in Path(f"/proc/{parent}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
    return found


def _memory_bytes(process: int, field: str) -> int:
    with suppress(OSError):
        match = re.search(rf"{field}:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
        return 1024 * int(match[1]) if match else 0
    return 0


def cpu_seconds(process: int) -> float:
    """Return the CPU time of the threads of *process*; 0 once it is gone."""
    nanoseconds = 0
    for thread in Path(f"/proc/{process}/task").glob("*/schedstat"):
        with suppress(OSError):
            nanoseconds += int(thread.read_text().split()[0])
    return nanoseconds / 1e9


def _cpu_seconds_of_all_threads(process: int) -> float:
    """Return the CPU time of *process*, with threads that ended, in steps of 10 ms; 0 once it is gone."""
    with suppress(OSError):
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


class Meter:
    """CPU time of processes and of all that they start, also of those that have ended since the last reading."""

    def __init__(self, *roots: int) -> None:
        self._roots = roots
        self._seen: dict[int, float] = {}

    def seconds(self) -> float:
        for root in self._roots:
            for process in family(root):
                self._seen[process] = max(self._seen.get(process, 0.0), _cpu_seconds_of_all_threads(process))
        return sum(self._seen.values())

    def wait_for_rest(self) -> float:
        """Wait until nearly no CPU time is used any more, and return what was used until then."""
        deadline = time.monotonic() + _MAX_REST_SECONDS
        used, quiet = self.seconds(), 0
        while quiet < 3 and time.monotonic() < deadline:
            time.sleep(_REST_SECONDS)
            now = self.seconds()
            quiet = quiet + 1 if now - used < _REST_SHARE * _REST_SECONDS else 0
            used = now
        return used


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]
