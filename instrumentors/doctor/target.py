"""Target of a command line: the Python program that it starts, directly or through wrappers."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from .. import run

# Programs that only start the command after them, possibly with another interpreter: number of their own words before it.
WRAPPERS: dict[str, int] = {
    **dict.fromkeys(("ddtrace-run", "dumb-init", "elasticapm-run", "env", "nice", "nohup", "numactl"), 0),
    **dict.fromkeys(("ionice", "opentelemetry-instrument", "setsid", "stdbuf", "time", "tini"), 0),
    **dict.fromkeys(("chrt", "conda", "gosu", "mamba", "micromamba", "newrelic-admin", "pdm", "pipenv", "pixi"), 1),
    **dict.fromkeys(("poetry", "su-exec", "taskset", "timeout", "uv"), 1),
}
# Wrappers that know programs which are on no other path.
_ENVIRONMENTS = frozenset({"conda", "mamba", "micromamba", "pdm", "pipenv", "pixi", "poetry", "uv"})
# Options of wrappers with a value in a separate word.
_VALUES = frozenset(
    (
        *("-C", "-N", "-k", "-m", "-n", "-p", "-s", "-u", "--adjustment", "--chdir", "--class", "--classdata"),
        *("--directory", "--extra", "--group", "--kill-after", "--name", "--prefix", "--project", "--python"),
        *("--signal", "--unset", "--with", "--exporter_otlp_endpoint", "--logs_exporter", "--metrics_exporter"),
        *("--service_name", "--traces_exporter"),
    )
)
_SHELLS = frozenset({"ash", "bash", "dash", "ksh", "sh", "zsh"})
# Programs that start the command somewhere else, where this process cannot inspect it.
_ELSEWHERE = frozenset({"docker", "podman", "kubectl", "nerdctl", "ssh", "srun", "systemd-run"})
_PYTHON = re.compile(r"(python|pypy)[0-9.]*t?")
# Options of Python that take a value.
_PYTHON_VALUES = ("-X", "-W", "--check-hash-based-pycs")
_MAX_LINE_BYTES = 1000
_NOT_PYTHON = (
    "{} is not a Python program. Stagelens times only Python processes that it starts.\n"
    "https://opentelemetry.io/docs/languages/    # send its spans, or scrape its /metrics: docs/engines.md"
)


@dataclass(frozen=True, slots=True)
class CommandTarget:
    """A program, the interpreter that runs it, and the wrappers before; *problem* with a fix on a second line."""

    prefix: tuple[str, ...] = ()
    interpreter: str = ""
    flags: tuple[str, ...] = ()
    program: str = ""
    words: tuple[str, ...] = ()
    inner: tuple[str, ...] = ()
    problem: str = ""
    is_certain: bool = True

    @property
    def name(self) -> str:
        """Short name of the program: `uvicorn` for `/venv/bin/uvicorn` and for `-m uvicorn`."""
        return "python" if self.program in ("", "-c") else Path(self.program).name.removesuffix(".py")


def find_target(command: Sequence[str], env: Mapping[str, str]) -> CommandTarget:
    """Return the target of *command* in *env*.

    >>> find_target(["nice", "-n", "5", "python", "-I", "-m", "uvicorn", "serve:app"], {}).flags
    ('-I',)
    """
    prefix, words = _skip_wrappers(list(command))
    if not words or not words[0]:
        return CommandTarget(prefix, problem="The command contains no program.")
    name = Path(words[0]).name
    if _PYTHON.fullmatch(name):
        return _python_target(prefix, words)
    target = CommandTarget(prefix, program=words[0], words=tuple(words[1:]), inner=tuple(words))
    if name in _ELSEWHERE | _SHELLS:
        return _started_by(target)
    path = shutil.which(words[0], path=env.get("PATH"))
    bundle = run.explain_bundle(path or words[0])
    if bundle is not None:
        return replace(target, problem=bundle.replace(" fix: ", "\n"))
    if path is not None:
        return _installed_target(target, path)
    is_known_to_wrapper = not _ENVIRONMENTS.isdisjoint(Path(word).name for word in prefix)
    problem = "" if is_known_to_wrapper else run.explain_start_failure(words[0], FileNotFoundError())
    return replace(target, interpreter="python", problem=problem)


def _skip_wrappers(words: list[str]) -> tuple[tuple[str, ...], list[str]]:
    prefix: list[str] = []
    while words:
        if words[:2] == ["stagelens", "run"]:
            stages, _, rest = run.split(words[2:])
            prefix += ["stagelens", "run", *(f"--stage={stage}" for stage in stages), "--"]
            words = rest[rest[:1] == ["--"] :]
        elif Path(words[0]).name in WRAPPERS:
            used = _wrapper_length(words)
            prefix, words = prefix + words[:used], words[used:]
        else:
            break
    return tuple(prefix), words


def _installed_target(target: CommandTarget, path: str) -> CommandTarget:
    try:
        interpreter = _read_shebang(path)
    except OSError as error:
        return replace(target, problem=f"{path} cannot be read ({error.strerror})")
    name = Path(interpreter[0]).name if interpreter else ""
    if _PYTHON.fullmatch(name):
        return replace(target, interpreter=interpreter[0], flags=tuple(interpreter[1:]))
    if name in _SHELLS:
        return _started_by(target)
    problem = "" if target.name == "uwsgi" else _NOT_PYTHON.format(target.name)
    return replace(target, problem=problem)


def _wrapper_length(words: list[str]) -> int:
    name, position = Path(words[0]).name, 1
    arguments_left = WRAPPERS[name]
    while position < len(words):
        word = words[position]
        if word == "--":
            return position + 1
        if word.startswith("-"):
            position += 2 if word in _VALUES else 1
        elif arguments_left or (name == "env" and "=" in word):
            arguments_left -= arguments_left > 0
            position += 1
        else:
            break
    return position


def _started_by(target: CommandTarget) -> CommandTarget:
    is_elsewhere = target.name in _ELSEWHERE
    commands = "`stagelens doctor` and `stagelens run`" if is_elsewhere else "`stagelens doctor`"
    problem = (
        f"{target.name} starts the program, which is not inspected.\n"
        f"write {commands} before the Python command that {target.name} starts"
    )
    return replace(target, problem=problem, is_certain=is_elsewhere)


def _python_target(prefix: tuple[str, ...], words: list[str]) -> CommandTarget:
    position, module, flags = 1, "", list[str]()
    while position < len(words) and words[position].startswith("-") and words[position] != "-":
        word = words[position]
        if word in ("-c", "-m") or (word[1] not in "-XW" and word[-1] in "cm"):
            flags += [f"-{word[1:-1]}"] if word[1:-1] else []
            module = "-c" if word[-1] == "c" else words[position + 1] if position + 1 < len(words) else ""
            position += 1
            break
        width = 2 if word in _PYTHON_VALUES else 1
        flags += words[position : position + width]
        position += width
    program = module or (words[position] if position < len(words) else "")
    problem = "" if program else "The command starts Python without a program."
    return CommandTarget(prefix, words[0], tuple(flags), program, tuple(words[position + 1 :]), tuple(words), problem)


def _read_shebang(path: str) -> list[str]:
    with Path(path).open("rb") as file:
        first, second = (file.readline(_MAX_LINE_BYTES).decode(errors="replace") for _ in range(2))
    # Form that pip writes if the path of the interpreter is too long for a shebang.
    if hidden := re.match(r"'''exec' \"?([^\" ]+)", second):
        return [hidden[1]]
    words = first[2:].split() if first.startswith("#!") else []
    return words[_wrapper_length(words) :] if words and Path(words[0]).name == "env" else words
