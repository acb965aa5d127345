"""Checks of the start of the command: whether its interpreter loads Stagelens, and what the machine or container allows."""

from __future__ import annotations

import os
import re
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ... import __version__
from ...core.settings.values import format_size
from .. import run
from ..config import AgentConfig
from .environment import OLDEST_OPENTELEMETRY, OLDEST_PYTHON, Finding, Inspection, Interpreter

CGROUP = Path("/sys/fs/cgroup")
# What NVIDIA's driver makes, and its container runtime hands on.
DRIVER = Path("/dev/nvidiactl")
# What a process grew by beside its buffer (README, "What it costs").
OURS_BYTES = 4 * 1024**2


def check_threads(inspection: Inspection) -> Iterator[Finding]:
    """Check that a thread can be started, which the agent needs."""
    if inspection.interpreter and inspection.interpreter.thread_error:
        yield Finding(
            f"No thread can be started ({inspection.interpreter.thread_error}): nothing would be sent.",
            "ulimit -u, pids.max of the container; with Docker before 20.10.10: --security-opt seccomp=unconfined",
        )


def check_temporary_files(inspection: Inspection) -> Iterator[Finding]:
    """Check that a temporary file can be created, which a run saved by `stagelens run` needs."""
    if not inspection.kept_here:
        return
    try:
        tempfile.TemporaryFile().close()
    except OSError as error:
        yield Finding(f"The run cannot be kept: {error.strerror or error}.", "TMPDIR=/a/folder/that/can/be/written")


def check_memory(inspection: Inspection) -> Iterator[Finding]:
    """Check that the container has enough memory for the outbox."""
    free = memory_left(CGROUP)
    buffer = AgentConfig.from_env(
        {name: value for name, value in inspection.environment.items() if "BUFFER" in name}
    ).buffer_bytes
    if free is not None and free < OURS_BYTES + buffer:
        yield Finding(
            f"The container has {format_size(max(free, 0))} of memory left; each process may take {format_size(OURS_BYTES + buffer)} "
            "where no collector answers.",
            "STAGELENS_BUFFER_SIZE=1MiB, or a higher limit of memory",
        )


def check_gpus(inspection: Inspection) -> Iterator[Finding]:
    """Check that present GPUs can be read."""
    if DRIVER.exists() and inspection.interpreter and not inspection.installed("nvidia-ml-py"):
        yield Finding(
            "There is a GPU, and nothing to read it with: how busy it is will not be told.",
            "pip install 'stagelens[gpu]'",
            hurts=False,
        )


def memory_left(cgroup: Path) -> int | None:
    """Return how many bytes of memory the container that *cgroup* is of has left; None where it has no limit."""
    try:
        limit, used = (cgroup / "memory.max").read_text().strip(), (cgroup / "memory.current").read_text()
        reclaimable = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    # The page cache goes when it must.
    return None if limit == "max" else int(limit) - int(used) + int(reclaimable.get("file", 0))


BY_HAND = "import stagelens; stagelens.instrument()    # the first line of the program"


def check_program(inspection: Inspection) -> Iterator[Finding]:
    """Check that the program is known and can be started."""
    target = inspection.target
    if target.lost:
        text, _, fix = target.lost.partition("\n")
        outside = f"stagelens doctor, and stagelens run, inside of what {target.name} starts"
        known = "It cannot be started" if fix else "It is not known what runs"
        yield Finding(f"{known}: {text}", fix.strip() or (outside if "somewhere" in text else ""))
    elif inspection.silence:
        yield Finding(f"{target.interpreter} cannot be asked: {inspection.silence}")


def check_versions(inspection: Inspection) -> Iterator[Finding]:
    """Check the versions of Python and of OpenTelemetry."""
    found = inspection.interpreter
    if found is None:
        return
    oldest = ".".join(map(str, OLDEST_PYTHON))
    if tuple(found.version[:2]) < OLDEST_PYTHON:
        version = ".".join(map(str, found.version))
        yield Finding(
            f"{found.executable} is Python {version}; Stagelens needs {oldest}, and the program runs untimed.",
            f"send its OpenTelemetry spans to the collector instead, or use Python {oldest}",
        )
    for name in ("opentelemetry-api", "opentelemetry-sdk"):
        if (version := inspection.installed(name)) and _numbers(version) < OLDEST_OPENTELEMETRY:
            wanted = f"{name}>={'.'.join(map(str, OLDEST_OPENTELEMETRY))}"
            yield Finding(
                f"{name} {version} is too old, and the program runs untimed.",
                f"{found.executable} -m pip install {shlex.quote(wanted)}",
            )
    if found.implementation != "cpython" or not found.gil:
        kind = found.implementation if found.implementation != "cpython" else "Python without its lock"
        yield Finding(f"Stagelens was never tested with {kind}.", hurts=False)


def check_autoload(inspection: Inspection) -> Iterator[Finding]:
    """Check that Stagelens is loaded before the program, by a real test."""
    found = inspection.interpreter
    if found is None or tuple(found.version[:2]) < OLDEST_PYTHON:
        return
    ours, error = found.stagelens, str(found.stagelens.get("error", ""))
    # Of -E, -I, -S, an environment that is replaced, another sitecustomize.
    reason, fix = _kept_out(inspection, found)
    if not ours["loaded"] and reason:
        yield Finding(f"{reason}: nothing is timed.", fix)
    elif error:
        user = (
            "; what is installed for the user only is left out (PYTHONNOUSERSITE or -s)" if found.no_user_site else ""
        )
        yield Finding(
            f"{found.executable} cannot load stagelens ({error}){user}: nothing is timed.",
            f"{found.executable} -m pip install stagelens",
        )
    elif not ours["loaded"]:
        yield Finding(
            f"{found.sitecustomize or 'something'} runs as sitecustomize in place of ours: nothing is timed.", BY_HAND
        )
    elif ours["version"] != __version__:
        yield Finding(
            f"The program would load stagelens {ours['version']} from {ours['file']}; this is {__version__}.",
            hurts=False,
        )


def check_stages(inspection: Inspection) -> Iterator[Finding]:
    """Check that the functions of `--stage` exist."""
    named = run.functions.parse(inspection.environment.get(run.functions.VARIABLE, ""))
    for stage, module, path in named:
        if inspection.sources.defines(module, path) is False:
            yield Finding(
                f"--stage {stage}={module}:{path} names nothing in {module}: the stage stays empty.",
                f"--stage {stage}={module}:FUNCTION, or :CLASS.METHOD, as {module} has it",
            )


def check_uwsgi(inspection: Inspection) -> Iterator[Finding]:
    """Check that uWSGI enables threads, which the agent needs."""
    threads = ("--enable-threads", "--threads")
    if inspection.target.name == "uwsgi" and inspection.option(*threads) is None and not inspection.option("--ini"):
        yield Finding("uWSGI runs no threads by itself, and so nothing is sent.", "uwsgi --enable-threads …")


def _kept_out(inspection: Inspection, found: Interpreter) -> tuple[str, str]:
    if found.ignores_environment:
        flags = " ".join(flag for flag in inspection.target.flags if set("IE") & set(flag)) or "-I or -E"
        return f"{flags} has Python ignore PYTHONPATH, by which Stagelens comes in", f"leave {flags} out, or {BY_HAND}"
    if found.no_site:
        return "-S has Python load no sitecustomize, by which Stagelens comes in", f"leave -S out, or {BY_HAND}"
    if str(run.AUTOLOAD) not in found.environment.get("PYTHONPATH", "").split(os.pathsep):
        outer, inner = shlex.join(inspection.target.outer), shlex.join(inspection.target.inner)
        return "PYTHONPATH, by which Stagelens comes in, is replaced", f"{outer} stagelens run -- {inner}".strip()
    return "", ""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])
