"""Inspection of a command: its interpreter and environment, its sources, and optionally a live run.

- Interpreter: `inspect_interpreter` starts it, as the command would, with `probe.py`, which prints facts about it.
- Sources: the command's own modules, parsed and never executed: a script or `module:app` in its arguments, and their local
  imports. Conclusions from them are guesses: a name may be something else when the program runs.
- Live run (`--run`): `run_and_watch` runs the command for a while and observes which of its processes are instrumented.
"""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from ..bootstrap import LIBRARIES
from ..run import AUTOLOAD
from ..session import Session, Sink, pause
from . import probe
from .target import CommandTarget

# Oldest tested versions, as in requires-python and dependencies of pyproject.toml.
OLDEST_PYTHON = (3, 11)
OLDEST_OPENTELEMETRY = (1, 30)


class DoctorFinding(NamedTuple):
    text: str
    fix: str = ""
    hurts: bool = True


@dataclass(frozen=True, slots=True)
class Interpreter:
    """Facts about the interpreter of the command, from a test start in the command's environment."""

    executable: str
    version: Sequence[int]
    implementation: str
    gil: bool
    ignores_environment: bool
    no_site: bool
    no_user_site: bool
    sitecustomize: str
    stagelens: Mapping[str, Any]
    thread_error: str
    distributions: Mapping[str, str]
    places: Mapping[str, str]
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Inspection:
    command: Sequence[str]
    target: CommandTarget
    environment: Mapping[str, str]
    interpreter: Interpreter | None = None
    silence: str = ""
    sources: Sources = field(default_factory=lambda: Sources({}))
    saved_here: bool = False
    alone: bool = False

    def installed(self, distribution: str) -> str:
        return self.interpreter.distributions.get(distribution, "") if self.interpreter else ""

    def option(self, *names: str) -> str | None:
        """Return the value of the first of the options *names*, "" for an option without value; None if absent."""
        words = self.target.words
        for place, word in enumerate(words):
            name, sign, value = word.partition("=")
            if name in names:
                following = words[place + 1] if place + 1 < len(words) else ""
                return value if sign else "" if following.startswith("-") else following
            # `-w4` means `-w 4`.
            if word[:2] in names and not word.startswith("--"):
                return word[2:]
        return None


Check: TypeAlias = Callable[[Inspection], Iterator[DoctorFinding]]


# A start takes about a second on a busy machine, and longer with thousands of packages on a network disk.
RESPONSE_TIMEOUT_SECONDS = 60.0
# Settings that keep wrappers of the interpreter from sending data or changing an environment.
QUIET = {
    "DD_INSTRUMENTATION_TELEMETRY_ENABLED": "false",
    "DD_TRACE_ENABLED": "false",
    "NEW_RELIC_MONITOR_MODE": "false",
    "OTEL_LOGS_EXPORTER": "none",
    "OTEL_METRICS_EXPORTER": "none",
    "OTEL_TRACES_EXPORTER": "none",
    "PIXI_FROZEN": "true",
    "PIXI_NO_INSTALL": "true",
    "UV_NO_SYNC": "1",
}


def inspect_interpreter(target: CommandTarget, env: Mapping[str, str]) -> tuple[Interpreter | None, str]:
    """Start the interpreter of *target* in *env* and return its facts; None and the reason if it does not respond."""
    command = [*target.prefix, target.interpreter, *target.flags, "-c", Path(probe.__file__).read_text()]
    try:
        output, problems = _interpreter_output(command, {**env, **QUIET})
    except OSError as error:
        return None, f"{error.filename or command[0]}: {error.strerror}"
    except subprocess.TimeoutExpired:
        return None, f"it did not respond within {RESPONSE_TIMEOUT_SECONDS:g} s"
    reports = [line.removeprefix(probe.MARK) for line in output.splitlines() if line.startswith(probe.MARK)]
    if not reports:
        return None, problems.strip().splitlines()[-1] if problems.strip() else "it printed no output"
    facts: dict[str, Any] = json.loads(reports[-1])
    facts["environment"] = {
        **{name: value for name, value in facts["environment"].items() if name not in QUIET},
        **{name: env[name] for name in QUIET if name in env},
    }
    return Interpreter(**facts), ""


def _interpreter_output(command: list[str], env: Mapping[str, str]) -> tuple[str, str]:
    # A session of its own: no input from the terminal, and all processes can be terminated together.
    process = subprocess.Popen(  # noqa: S603 - the user's own command
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        return process.communicate(timeout=RESPONSE_TIMEOUT_SECONDS)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


# Far more files than a service has; limits the time of the inspection.
MAX_FILES = 200
MAX_BYTES = 1024**2
_MODULE = re.compile(r"([A-Za-z_][\w.]*)(:[\w.]+)?(\(.*\))?")
# Options with the folder in which a server finds the application.
_FOLDERS = ("--app-dir", "--chdir", "--pythonpath", "--working-dir")


@dataclass(frozen=True, slots=True)
class Sources:
    trees: Mapping[Path, ast.Module]

    def imported(self) -> set[str]:
        return {name.partition(".")[0] for tree in self.trees.values() for _, name in imported_names(tree)}

    def calls(self) -> Iterator[tuple[str, str, ast.Call]]:
        for path, tree in self.trees.items():
            for node in ast.walk(tree):
                if isinstance(node, ast.Call):
                    yield f"{path}:{node.lineno}", dotted_name(node.func), node

    def defines(self, module: str, path: str) -> bool | None:
        """Return whether *module* defines a function or method *path*; None if the module was not parsed."""
        endings = (Path(*module.split(".")).with_suffix(".py"), Path(*module.split("."), "__init__.py"))
        file = next((file for file in self.trees for ending in endings if str(file).endswith(str(ending))), None)
        if file is None:
            return None
        bodies, tops = [self.trees[file].body], path.split(".")
        for name in tops:
            found = [node for body in bodies for node in body if getattr(node, "name", None) == name]
            bodies = [getattr(node, "body", []) for node in found]
        # A name that is imported into the module or assigned in it is also defined.
        names = {
            alias.asname or alias.name
            for node in ast.walk(self.trees[file])
            if isinstance(node, (ast.Import, ast.ImportFrom))
            for alias in node.names
        }
        names |= {
            node.id
            for node in ast.walk(self.trees[file])
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
        return bool(bodies) or tops[0] in names or "*" in names


def read_sources(program: str, words: Sequence[str], folder: Path) -> Sources:
    """Return the parsed local modules of *program* with the arguments *words*, started in *folder*."""
    folders = [folder, *(folder / value for value in _option_folders(words))]
    waiting = deque(path for word in (program, *words) for path in _named_modules(word, folders))
    trees: dict[Path, ast.Module] = {}
    while waiting and len(trees) < MAX_FILES:
        path = waiting.popleft()
        if path in trees or (tree := _parse_file(path)) is None:
            continue
        trees[path] = tree
        beside = [*folders, path.parent, folder / path.parent]
        waiting.extend(found for _, name in imported_names(tree) for found in _module_files(name, beside))
    return Sources(trees)


def imported_names(tree: ast.Module) -> Iterator[tuple[ast.stmt, str]]:
    """Yield each import of *tree* and the name it imports; of `from a import b` both `a` and `a.b`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            yield from (
                (node, name)
                for name in (module, *(f"{module}.{alias.name}".strip(".") for alias in node.names))
                if name
            )


def dotted_name(node: ast.expr) -> str:
    """Return the dotted name of an expression such as `a.b.c`; calls in between are reduced to their names."""
    if isinstance(node, ast.Attribute):
        return f"{dotted_name(node.value)}.{node.attr}"
    if isinstance(node, ast.Call):
        return dotted_name(node.func)
    return node.id if isinstance(node, ast.Name) else ""


def _option_folders(words: Sequence[str]) -> Iterator[str]:
    for place, word in enumerate(words):
        name, sign, value = word.partition("=")
        if name in _FOLDERS:
            yield value if sign else "".join(words[place + 1 : place + 2])


def _named_modules(word: str, folders: Sequence[Path]) -> Iterator[Path]:
    if word.endswith(".py"):
        yield from (_shortest_path(path) for path in [folder / word for folder in folders] if _is_file(path))
    elif found := _MODULE.fullmatch(word):
        yield from _module_files(found[1], folders)


def _module_files(name: str, folders: Sequence[Path]) -> Iterator[Path]:
    parts = name.split(".")
    for folder in folders:
        for path in (folder.joinpath(*parts).with_suffix(".py"), folder.joinpath(*parts, "__init__.py")):
            # Installed packages in a folder below this one are not local modules.
            if _is_file(path) and "site-packages" not in path.parts:
                yield _shortest_path(path)
                return


def _is_file(path: Path) -> bool:
    # `Path.is_file` raises if a name is too long for a file.
    return os.path.isfile(path)  # noqa: PTH113


def _shortest_path(path: Path) -> Path:
    resolved, here = path.resolve(), Path.cwd()
    return resolved.relative_to(here) if resolved.is_relative_to(here) else resolved


def _parse_file(path: Path) -> ast.Module | None:
    try:
        return ast.parse(path.read_bytes()[:MAX_BYTES])
    except (OSError, SyntaxError, ValueError):
        return None


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
        while not session.is_over and time.monotonic() < started + seconds:
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
    found = sorted({title for each in imported for title in each})
    return LiveRun(
        took,
        len(seen),
        {title: sum(title in each for each in imported) for title in found},
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
