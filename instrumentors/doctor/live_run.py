"""Live run of a command (`--run`): runs it for a while and observes which of its processes are instrumented."""

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
from .inspection import DoctorFinding

INSIDE = Path(__file__).parent / "inside"
# Folder into which `inside/sitecustomize.py` writes; not a setting.
VARIABLE = "STAGELENS_DOCTOR"
_PYTHON_PROGRAM = re.compile(r"(python|pypy)[0-9.]*t?")
_SHOWN_CHARS = 60
# Time that an interpreter needs to load its sitecustomize on a busy machine.
BEGIN_SECONDS = 2.0


class LiveRun(NamedTuple):
    seconds: float
    processes: int
    libraries: Mapping[str, int]
    missed: Sequence[str]
    failure: str


def run_and_watch(command: Sequence[str], env: Mapping[str, str], seconds: float) -> LiveRun:
    """Run *command* for at most *seconds* in *env*, then terminate it with all processes that it has started."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stagelens-doctor-")))
        sink = stack.enter_context(Sink())
        session = stack.enter_context(Session(command, _live_run_environment(env, folder, sink.endpoint)))
        started, since, python = time.monotonic(), dict[int, float](), dict[int, str]()
        while session.code is None and time.monotonic() < started + seconds:
            for process in session.processes():
                if line := _python_command_line(process.pid):
                    first = since.setdefault(process.pid, time.monotonic())
                    # A process that has just started may not be instrumented yet.
                    python |= {process.pid: line} if time.monotonic() - first > BEGIN_SECONDS else {}
            pause()
        took = time.monotonic() - started
        seen = {int(path.name): path.read_text().splitlines() for path in folder.iterdir()}
        failure = session.failure() if session.code else ""
    titles = {library.trigger: library.load().title for library in LIBRARIES}
    imported = [{titles[line.split()[1]] for line in lines if line.startswith("library ")} for lines in seen.values()]
    shown = sorted({title for titles_of_process in imported for title in titles_of_process})
    return LiveRun(
        took,
        len(seen),
        {title: sum(title in titles_of_process for titles_of_process in imported) for title in shown},
        [line for pid, line in python.items() if pid not in seen],
        failure,
    )


def live_findings(watched: LiveRun) -> Iterator[DoctorFinding]:
    if watched.failure:
        first, *rest = watched.failure.splitlines()
        yield DoctorFinding(f"After {watched.seconds:.1f} s {first}: {' '.join(''.join(rest[-1:]).split())}")
    for line in dict.fromkeys(watched.missed):
        yield DoctorFinding(
            f"`{line}` ran without Stagelens: it was started with another PYTHONPATH, or with -I, -E or -S.",
            f"PYTHONPATH={AUTOLOAD}:$PYTHONPATH    # where it is started",
        )


def _live_run_environment(env: Mapping[str, str], folder: Path, endpoint: str) -> dict[str, str]:
    inherited = {name: value for name, value in env.items() if not name.startswith("OTEL_EXPORTER_OTLP_")}
    return {
        **inherited,
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        # Our sitecustomize is the first on the path, and runs the next one.
        "PYTHONPATH": env["PYTHONPATH"].replace(str(AUTOLOAD), os.pathsep.join((str(AUTOLOAD), str(INSIDE))), 1),
        VARIABLE: str(folder),
    }


def _python_command_line(pid: int) -> str:
    try:
        if not _PYTHON_PROGRAM.fullmatch(Path(f"/proc/{pid}/exe").readlink().name):
            return ""
        program, *rest = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").rstrip("\0").split("\0")
        return " ".join((Path(program).name, *rest))[:_SHOWN_CHARS]
    except OSError:
        return ""
