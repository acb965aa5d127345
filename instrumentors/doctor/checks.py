"""Checks of the start: whether the interpreter loads Stagelens, and what the machine or container allows."""

from __future__ import annotations

import ast
import os
import re
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ...core.settings.values import format_size
from ...core.version import __version__
from .. import run
from ..config import AgentConfig
from .inspection import OLDEST_OPENTELEMETRY, OLDEST_PYTHON, DoctorFinding, Inspection, Interpreter

CGROUP = Path("/sys/fs/cgroup")
# Device file that the NVIDIA driver creates and its container runtime exposes.
DRIVER = Path("/dev/nvidiactl")
# Memory of the agent in a process, apart from its buffer.
OURS_BYTES = 4 * 1024**2
BY_HAND = "import stagelens; stagelens.instrument()    # the first line of the program"


def check_threads(inspection: Inspection) -> Iterator[DoctorFinding]:
    if inspection.interpreter and inspection.interpreter.thread_error:
        yield DoctorFinding(
            f"No thread can be started ({inspection.interpreter.thread_error}): nothing would be sent.",
            "ulimit -u, pids.max of the container; with Docker before 20.10.10: --security-opt seccomp=unconfined",
        )


def check_temporary_files(inspection: Inspection) -> Iterator[DoctorFinding]:
    """Check that a temporary file can be created, which a run saved by `stagelens run` needs."""
    if not inspection.saved_here:
        return
    try:
        tempfile.TemporaryFile().close()
    except OSError as error:
        yield DoctorFinding(
            f"The run cannot be saved: {error.strerror or error}.", "TMPDIR=/a/folder/that/can/be/written"
        )


def check_memory(inspection: Inspection) -> Iterator[DoctorFinding]:
    free = memory_left(CGROUP)
    buffer = AgentConfig.from_env(
        {name: value for name, value in inspection.environment.items() if "BUFFER" in name}
    ).buffer_bytes
    if free is not None and free < OURS_BYTES + buffer:
        yield DoctorFinding(
            f"The container has {format_size(max(free, 0))} of memory left; each process may need {format_size(OURS_BYTES + buffer)} while "
            "no collector responds.",
            "STAGELENS_BUFFER_SIZE=1MiB, or a higher memory limit",
        )


def check_gpus(inspection: Inspection) -> Iterator[DoctorFinding]:
    if DRIVER.exists() and inspection.interpreter and not inspection.installed("nvidia-ml-py"):
        yield DoctorFinding(
            "There is a GPU, but nvidia-ml-py is missing: its utilization will not be reported.",
            "pip install 'stagelens[gpu]'",
            hurts=False,
        )


def memory_left(cgroup: Path) -> int | None:
    """Return the free memory of the container of *cgroup* in bytes; None without a limit."""
    try:
        limit, used = (cgroup / "memory.max").read_text().strip(), (cgroup / "memory.current").read_text()
        reclaimable = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    # The page cache is reclaimable.
    return None if limit == "max" else int(limit) - int(used) + int(reclaimable.get("file", 0))


def check_program(inspection: Inspection) -> Iterator[DoctorFinding]:
    target = inspection.target
    if target.problem:
        text, _, fix = target.problem.partition("\n")
        yield DoctorFinding(text, fix.strip(), hurts=target.is_certain)
    elif inspection.silence:
        yield DoctorFinding(f"{target.interpreter} cannot be queried: {inspection.silence}")


def check_versions(inspection: Inspection) -> Iterator[DoctorFinding]:
    interpreter = inspection.interpreter
    if interpreter is None:
        return
    oldest = ".".join(map(str, OLDEST_PYTHON))
    if tuple(interpreter.version[:2]) < OLDEST_PYTHON:
        version = ".".join(map(str, interpreter.version))
        yield DoctorFinding(
            f"{interpreter.executable} is Python {version}; Stagelens needs {oldest}, so the program is not timed.",
            f"send its OpenTelemetry spans to the collector instead, or use Python {oldest}",
        )
    for name in ("opentelemetry-api", "opentelemetry-sdk"):
        if (version := inspection.installed(name)) and _version_numbers(version) < OLDEST_OPENTELEMETRY:
            wanted = f"{name}>={'.'.join(map(str, OLDEST_OPENTELEMETRY))}"
            yield DoctorFinding(
                f"{name} {version} is too old, so the program is not timed.",
                f"{interpreter.executable} -m pip install {shlex.quote(wanted)}",
            )
    if interpreter.implementation != "cpython" or not interpreter.gil:
        kind = interpreter.implementation if interpreter.implementation != "cpython" else "free-threaded Python"
        yield DoctorFinding(f"Stagelens was never tested with {kind}.", hurts=False)


def check_autoload(inspection: Inspection) -> Iterator[DoctorFinding]:
    """Check that Stagelens is loaded before the program, from a test run of the interpreter."""
    interpreter = inspection.interpreter
    if interpreter is None or tuple(interpreter.version[:2]) < OLDEST_PYTHON:
        return
    ours, error = interpreter.stagelens, str(interpreter.stagelens.get("error", ""))
    # Reasons: -E, -I, -S, a replaced environment, another sitecustomize.
    reason, fix = _reason_not_loaded(inspection, interpreter)
    if not ours["loaded"] and reason:
        yield DoctorFinding(f"{reason}: nothing is timed.", fix)
    elif error:
        user = (
            "; packages in the user site directory are ignored (PYTHONNOUSERSITE or -s)"
            if interpreter.no_user_site
            else ""
        )
        yield DoctorFinding(
            f"{interpreter.executable} cannot load stagelens ({error}){user}: nothing is timed.",
            f"{interpreter.executable} -m pip install {shlex.quote(run.SOURCE)}",
        )
    elif not ours["loaded"]:
        yield DoctorFinding(
            f"another sitecustomize ({interpreter.sitecustomize or 'unknown'}) runs instead of that of Stagelens: nothing is timed.",
            BY_HAND,
        )
    elif ours["version"] != __version__:
        yield DoctorFinding(
            f"The program would load stagelens {ours['version']} from {ours['file']}, not this version {__version__}.",
            hurts=False,
        )


def check_stages(inspection: Inspection) -> Iterator[DoctorFinding]:
    """Check that the functions of `--stage` exist."""
    named = run.functions.parse(inspection.environment.get(run.functions.VARIABLE, ""))
    for stage, module, path in named:
        source = _source_of(module, inspection.environment.get("PYTHONPATH", ""))
        if source is not None and not _defines(source, path):
            yield DoctorFinding(
                f"--stage {stage}={module}:{path} does not exist in {module}: the stage stays empty.",
                f"--stage {stage}={module}:FUNCTION, or :CLASS.METHOD, with a name that {module} defines",
            )


def _source_of(module: str, search_path: str) -> ast.Module | None:
    for folder in ("", *search_path.split(os.pathsep)):
        base = Path(folder, *module.split("."))
        for file in (base.with_suffix(".py"), base / "__init__.py"):
            try:
                return ast.parse(file.read_bytes())
            except (OSError, SyntaxError, ValueError):
                continue
    return None


def _defines(module: ast.Module, path: str) -> bool:
    """Return whether *module* defines, imports or assigns the function or method *path*."""
    bodies, names = [module.body], path.split(".")
    for name in names:
        bodies = [getattr(node, "body", []) for body in bodies for node in body if getattr(node, "name", "") == name]
    nodes = list(ast.walk(module))
    other = {
        alias.asname or alias.name
        for node in nodes
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    other |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return bool(bodies) or names[0] in other or "*" in other


def check_uwsgi(inspection: Inspection) -> Iterator[DoctorFinding]:
    options = {word.partition("=")[0] for word in inspection.target.words}
    if inspection.target.name == "uwsgi" and options.isdisjoint({"--enable-threads", "--threads", "--ini"}):
        yield DoctorFinding("uWSGI runs no threads by default, so nothing is sent.", "uwsgi --enable-threads …")


def _reason_not_loaded(inspection: Inspection, interpreter: Interpreter) -> tuple[str, str]:
    if interpreter.ignores_environment:
        flags = " ".join(flag for flag in inspection.target.flags if set("IE") & set(flag)) or "-I or -E"
        return f"{flags} makes Python ignore PYTHONPATH, which loads Stagelens", f"remove {flags}, or {BY_HAND}"
    if interpreter.no_site:
        return "-S makes Python skip sitecustomize, which loads Stagelens", f"remove -S, or {BY_HAND}"
    if str(run.AUTOLOAD) not in interpreter.environment.get("PYTHONPATH", "").split(os.pathsep):
        before, program = shlex.join(inspection.target.prefix), shlex.join(inspection.target.inner)
        return "PYTHONPATH, which loads Stagelens, is overwritten", f"{before} stagelens run -- {program}".strip()
    return "", ""


def _version_numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])
