"""`stagelens doctor --run`: runs the command for a while and observes which of its processes are instrumented."""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from ..bootstrap import LIBRARIES
from ..run import AUTOLOAD
from ..session import Session, Sink, pause
from .environment import Finding

INSIDE = Path(__file__).parent / "inside"
# Where `inside` writes; not a setting.
VARIABLE = "STAGELENS_DOCTOR"
_PYTHON = re.compile(r"(python|pypy)[0-9.]*t?")
_SHOWN_CHARS = 60
# Until an interpreter has loaded its sitecustomize, on a busy machine.
BEGIN_SECONDS = 2.0


class LiveRun(NamedTuple):
    """Observations of a command while it ran.

    Args:
        seconds: How long it ran. [seconds]
        processes: How many processes of Python it had that we were in.
        libraries: What they have imported that we time, by title, and in how many of them.
        missed: The command lines of processes of Python that we were not in.
        failure: What the command has written, where it ended by itself with an error; "" else.
    """

    seconds: float
    processes: int
    libraries: Mapping[str, int]
    missed: Sequence[str]
    failure: str


def run_and_watch(command: Sequence[str], env: Mapping[str, str], seconds: float) -> LiveRun:
    """Run *command* in *env*, which is that of `stagelens run`, for *seconds* at most; it ends with all it has started.

    Raises:
        StagelensError: It cannot be started.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stagelens-doctor-")))
        sink = stack.enter_context(Sink())
        session = stack.enter_context(Session(command, _inside(env, folder, sink.endpoint)))
        begun, since, python = time.monotonic(), dict[int, float](), dict[int, str]()
        while not session.is_over and time.monotonic() < begun + seconds:
            for process in session.processes():
                if line := _python(process.pid):
                    first = since.setdefault(process.pid, time.monotonic())
                    # Of one that has only begun it is not known yet.
                    python |= {process.pid: line} if time.monotonic() - first > BEGIN_SECONDS else {}
            pause()
        took = time.monotonic() - begun
        seen = {int(path.name): path.read_text().splitlines() for path in folder.iterdir()}
        failure = session.failure() if session.code else ""
    titles = {library.module: library.load().title for library in LIBRARIES}
    imported = [{titles[line.split()[1]] for line in lines if line.startswith("library ")} for lines in seen.values()]
    found = sorted({title for each in imported for title in each})
    return LiveRun(
        took,
        len(seen),
        {title: sum(title in each for each in imported) for title in found},
        [line for pid, line in python.items() if pid not in seen],
        failure,
    )


def live_findings(watched: LiveRun) -> Iterator[Finding]:
    """Yield the problems that were observed while the command ran."""
    if watched.failure:
        first, *rest = watched.failure.splitlines()
        yield Finding(f"After {watched.seconds:.1f} s {first}: {' '.join(''.join(rest[-1:]).split())}")
    for line in dict.fromkeys(watched.missed):
        yield Finding(
            f"`{line}` ran without us: it was started with another PYTHONPATH, or with -I, -E or -S.",
            f"PYTHONPATH={AUTOLOAD}:$PYTHONPATH    # where it is started",
        )


def _inside(env: Mapping[str, str], folder: Path, endpoint: str) -> dict[str, str]:
    kept = {name: value for name, value in env.items() if not name.startswith("OTEL_EXPORTER_OTLP_")}
    return {
        **kept,
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        # Ours is the first there, and runs the next one it finds.
        "PYTHONPATH": env["PYTHONPATH"].replace(str(AUTOLOAD), os.pathsep.join((str(AUTOLOAD), str(INSIDE))), 1),
        VARIABLE: str(folder),
    }


def _python(pid: int) -> str:
    """Return the command line of *pid* where it is a process of Python, "" else."""
    try:
        if not _PYTHON.fullmatch(Path(f"/proc/{pid}/exe").readlink().name):
            return ""
        program, *rest = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").rstrip("\0").split("\0")
        return " ".join((Path(program).name, *rest))[:_SHOWN_CHARS]
    except OSError:
        return ""
