"""The processes that are measured: a service under `stagelens run`, and what it asks."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from pathlib import Path

from .stacks import Stack

BENCHMARKS = Path(__file__).parent.parent
# A series keeps so many traces an interval at most: all, at the pace of these services, and whatever that costs.
KEEP = {
    "STAGELENS_KEEP_SLOW": "100",
    "STAGELENS_EXPORT_INTERVAL": "250ms",
    "STAGELENS_OVERHEAD_BUDGET": "none",
    "STAGELENS_TRUSTED_PROXIES": "*",
}
START_SECONDS = 120.0
STOP_SECONDS = 30.0


def free_port() -> int:
    """Return one that is free now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextlib.contextmanager
def running(command: list[str], port: int, variables: Mapping[str, str]) -> Generator[None]:
    """Run *command* while inside, from when it listens on *port*; it is asked to end, and so is all that it has started.

    Raises:
        RuntimeError: It did not start; with what it has printed.
    """
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "STAGELENS_"))}
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command, cwd=BENCHMARKS, env={**clean, **variables}, stdout=log, stderr=log, start_new_session=True
        )
        try:
            _await(process, port)
            yield
        except RuntimeError:
            log.seek(0)
            print(log.read().decode(errors="replace"), file=sys.stderr)
            raise
        finally:
            _stop(process)


def service(
    stack: Stack, name: str, port: int, collector: str, variables: Mapping[str, str]
) -> contextlib.AbstractContextManager[None]:
    """Run the service of *stack*, called *name*, under `stagelens run`, reporting to *collector*."""
    ours = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector, "OTEL_SERVICE_NAME": name, **KEEP, **variables}
    return running(under_stagelens(stack.command, port, stack.stages), port, ours)


def under_stagelens(command: Sequence[str], port: int, stages: Iterable[str] = ()) -> list[str]:
    """Return the command that starts Python with *command* under `stagelens run`; `{port}` in it becomes *port*."""
    options = [word for stage in stages for word in ("--stage", stage)]
    words = [word.format(port=port) for word in command]
    return [sys.executable, "-m", "stagelens", "run", *options, "--", sys.executable, *words]


def _await(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1):
                return
        except OSError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                msg = "the service did not start; what it printed follows"
                raise RuntimeError(msg) from error
            time.sleep(0.05)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
