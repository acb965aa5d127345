"""Target of a command line: the interpreter and program that it starts through shells, wrappers and start scripts."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from .. import run

# Shell commands in start scripts that are no program of the user.
_NO_PROGRAMS = frozenset(
    (
        *("[", ":", ".", "}", "cd", "done", "echo", "elif", "else", "esac", "exit", "export", "fi", "if", "mkdir"),
        *("printf", "set", "sleep", "source", "test", "then", "trap", "true", "ulimit", "umask", "unset", "wait"),
    )
)
_BREAKS = frozenset({"&&", ";", "||"})
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?-([^}]*))?\}|(\w+))")


def last_program(text: str, arguments: list[str]) -> list[str] | None:
    """Return the words of the `exec` command, else of the last program, in *text*; None if only a shell can parse *text*.

    >>> last_program("set -e; exec nice $@", ["sh", "python", "serve.py"])
    ['exec', 'nice', 'python', 'serve.py']
    """
    try:
        commands = [command for line in text.replace("\\\n", " ").splitlines() for command in _commands(line)]
    except ValueError:
        return None
    programs = [words for words in commands if words[0] not in _NO_PROGRAMS]
    words = next((words for words in programs if words[0] == "exec"), programs[-1] if programs else [])
    if not words or any(set(word) <= set("|&<>()") or "$(" in word or "`" in word for word in words):
        return None
    return [part for word in words for part in (arguments[1:] if word in ("$@", "$*") else [_expand_variables(word)])]


def _commands(line: str) -> list[list[str]]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    commands: list[list[str]] = [[]]
    for word in lexer:
        if word in _BREAKS:
            commands.append([])
        else:
            commands[-1].append(word)
    return [words for words in commands if words]


def _expand_variables(word: str) -> str:
    return _VARIABLE.sub(lambda match: os.environ.get(match[1] or match[3]) or match[2] or "", word)


# Wrappers that only start the command after them: options with a value, number of words before the command, by name.
WRAPPERS: dict[str, tuple[frozenset[str], int]] = {
    "catchsegv": (frozenset(), 0),
    "chrt": (frozenset({"-T", "-P", "-D"}), 1),
    "dumb-init": (frozenset({"-r", "--rewrite"}), 0),
    "exec": (frozenset({"-a"}), 0),
    "gosu": (frozenset(), 1),
    "ionice": (frozenset({"-c", "-n", "--class", "--classdata"}), 0),
    "nice": (frozenset({"-n", "--adjustment"}), 0),
    "nohup": (frozenset(), 0),
    "numactl": (frozenset({"-N", "-m", "-C", "-i", "-p"}), 0),
    "setsid": (frozenset(), 0),
    "stdbuf": (frozenset({"-i", "-o", "-e"}), 0),
    "su-exec": (frozenset(), 1),
    "taskset": (frozenset(), 1),
    "time": (frozenset({"-f", "-o"}), 0),
    "timeout": (frozenset({"-s", "-k", "--signal", "--kill-after"}), 1),
    "tini": (frozenset({"-p", "-e"}), 0),
}
# Wrappers that select the interpreter or change its start, so that the interpreter is queried through them: number of words.
STARTERS: dict[str, int] = {
    "conda": 2,
    "ddtrace-run": 1,
    "elasticapm-run": 1,
    "env": 1,
    "mamba": 2,
    "micromamba": 2,
    "newrelic-admin": 2,
    "opentelemetry-instrument": 1,
    "pdm": 2,
    "pipenv": 2,
    "pixi": 2,
    "poetry": 2,
    "uv": 2,
}
# Options of these wrappers with a value in a separate word.
_STARTER_VALUES = frozenset(
    (
        *("-u", "--unset", "-C", "--chdir", "-n", "--name", "--prefix"),
        *("-p", "--python", "--with", "--project", "--directory", "--extra", "--group"),
        *("--traces_exporter", "--metrics_exporter", "--logs_exporter", "--service_name", "--exporter_otlp_endpoint"),
    )
)
SHELLS = frozenset({"ash", "bash", "dash", "ksh", "sh", "zsh"})
# Programs that start the command somewhere else, where this process cannot inspect it.
ELSEWHERE = frozenset({"docker", "podman", "kubectl", "nerdctl", "ssh", "srun", "systemd-run"})
_PYTHON = re.compile(r"(python|pypy)[0-9.]*t?")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
# Options of Python that take a value.
_PYTHON_VALUES = ("-X", "-W", "--check-hash-based-pycs")
_MAX_SCRIPT_BYTES = 64 * 1024
_MAX_LINE_BYTES = 1000
_MAX_DEPTH = 20


@dataclass(frozen=True, slots=True)
class CommandTarget:
    prefix: tuple[str, ...] = ()
    interpreter: str = ""
    flags: tuple[str, ...] = ()
    program: str = ""
    words: tuple[str, ...] = ()
    outer: tuple[str, ...] = ()
    inner: tuple[str, ...] = ()
    lost: str = ""
    bundle: str | None = None
    seen: tuple[str, ...] = field(default=(), repr=False)

    @property
    def name(self) -> str:
        """Short name of the program: `uvicorn` for `/venv/bin/uvicorn` and for `-m uvicorn`."""
        return "python" if self.program in ("", "-c") else Path(self.program).name.removesuffix(".py")


def find_target(command: Sequence[str], env: Mapping[str, str]) -> CommandTarget:
    """Return the target of *command* in *env*.

    >>> find_target(["nice", "-n", "5", "python", "-I", "-m", "uvicorn", "serve:app"], {}).flags
    ('-I',)
    """
    found, words = CommandTarget(), list(command)
    for _ in range(_MAX_DEPTH):
        if not words or not words[0]:
            return replace(found, lost="the command contains no program")
        step = _next_word(found, words, env)
        if isinstance(step, CommandTarget):
            bundle = run.explain_bundle(shutil.which(step.program, path=env.get("PATH")) or step.program)
            # Its interpreter is its own, or has another path.
            return step if bundle is None else replace(step, interpreter="", bundle=bundle)
        found, words = step
    return replace(found, lost="the command has too many nested launchers")


def _next_word(
    found: CommandTarget, words: list[str], env: Mapping[str, str]
) -> CommandTarget | tuple[CommandTarget, list[str]]:
    name = Path(words[0]).name
    if _ASSIGNMENT.fullmatch(words[0]):
        return _skip_wrapper(found, words, 1, ("env", words[0]))
    if name in WRAPPERS:
        values, own = WRAPPERS[name]
        return _skip_wrapper(found, words, _after_options(words, 1, values) + own)
    if name in STARTERS:
        used = _after_options(words, STARTERS[name], _STARTER_VALUES)
        while name == "env" and used < len(words) and _ASSIGNMENT.fullmatch(words[used]):
            used += 1
        return _skip_wrapper(found, words, used, tuple(words[:used]))
    if name == "stagelens" and words[1:2] == ["run"]:
        stages, _, rest = run.split(words[2:])
        used = len(words) - len(rest) + (rest[:1] == ["--"])
        return _skip_wrapper(found, words, used, (*words[:2], *(f"--stage={stage}" for stage in stages), "--"))
    if name in SHELLS:
        return _inspect_shell(found, words, env)
    return _inspect_python(found, words) if _PYTHON.fullmatch(name) else _inspect_program(found, words, env)


def _skip_wrapper(
    found: CommandTarget, words: list[str], used: int, prefix: tuple[str, ...] = ()
) -> tuple[CommandTarget, list[str]]:
    seen = (*found.seen, Path(words[0]).name)
    outer = (*found.outer, *words[:used])
    return replace(found, prefix=(*found.prefix, *prefix), outer=outer, seen=seen), words[used:]


def _after_options(words: list[str], begin: int, values: frozenset[str]) -> int:
    place = begin
    while place < len(words) and words[place].startswith("-"):
        if words[place] == "--":
            return place + 1
        place += 2 if words[place] in values else 1
    return place


def _inspect_python(found: CommandTarget, words: list[str]) -> CommandTarget:
    place, module, flags = 1, "", list[str]()
    while place < len(words) and words[place].startswith("-") and words[place] != "-":
        word = words[place]
        if word in ("-c", "-m") or (word[1] not in "-XW" and word[-1] in "cm"):
            flags += [f"-{word[1:-1]}"] if word[1:-1] else []
            module = "-c" if word[-1] == "c" else words[place + 1] if place + 1 < len(words) else ""
            place += 1
            break
        width = 2 if word in _PYTHON_VALUES else 1
        flags += words[place : place + width]
        place += width
    program = module or (words[place] if place < len(words) else "")
    return replace(
        found,
        interpreter=words[0],
        flags=tuple(flags),
        program=program,
        words=tuple(words[place + 1 :]),
        inner=tuple(words),
        lost="" if program else "the command starts Python without a program",
    )


def _inspect_shell(
    found: CommandTarget, words: list[str], env: Mapping[str, str]
) -> CommandTarget | tuple[CommandTarget, list[str]]:
    place = _after_options(words, 1, frozenset({"-o", "+o"}))
    options = [word for word in words[1:place] if not word.startswith("--")]
    if place >= len(words):
        return replace(found, program=words[0], lost="the command starts an interactive shell")
    if any("c" in word for word in options):
        return _inspect_commands(found, words[place], words[place + 1 :])
    path = shutil.which(words[place], path=env.get("PATH")) or words[place]
    return _inspect_script(found, path, words[place + 1 :])


def _inspect_script(
    found: CommandTarget, path: str, arguments: list[str]
) -> CommandTarget | tuple[CommandTarget, list[str]]:
    try:
        text = Path(path).read_bytes()[:_MAX_SCRIPT_BYTES].decode(errors="replace")
    except OSError as error:
        return replace(found, program=path, lost=f"{path} cannot be read ({error.strerror})")
    return _inspect_commands(found, text, ["", *arguments])


def _inspect_commands(
    found: CommandTarget, text: str, arguments: list[str]
) -> CommandTarget | tuple[CommandTarget, list[str]]:
    words = last_program(text, arguments)
    if words is None:
        return replace(found, program="sh", lost="the program is in a shell command that cannot be parsed")
    return replace(found, seen=(*found.seen, "sh")), words


def _inspect_program(
    found: CommandTarget, words: list[str], env: Mapping[str, str]
) -> CommandTarget | tuple[CommandTarget, list[str]]:
    named = replace(found, program=words[0], words=tuple(words[1:]), inner=tuple(words))
    if named.name in ELSEWHERE:
        return replace(named, lost=f"{named.name} starts the program elsewhere (in a container or on another host)")
    path = shutil.which(words[0], path=env.get("PATH"))
    if path is None:
        # After `uv run` and similar, the program may be on a path known only to them; the query of the interpreter will find it.
        behind = set(found.seen) & (STARTERS.keys() - {"env"})
        return replace(
            named, interpreter="python", lost="" if behind else run.explain_start_failure(words[0], FileNotFoundError())
        )
    try:
        with Path(path).open("rb") as file:
            first, second = (file.readline(_MAX_LINE_BYTES).decode(errors="replace") for _ in range(2))
    except OSError as error:
        return replace(named, lost=f"{path} cannot be read ({error.strerror})")
    interpreter = _read_shebang(first, second)
    name = Path(interpreter[0]).name if interpreter else ""
    if _PYTHON.fullmatch(name):
        return replace(named, interpreter=interpreter[0], flags=tuple(interpreter[1:]))
    return _inspect_script(found, path, words[1:]) if name in SHELLS else named


def _read_shebang(first: str, second: str) -> list[str]:
    """Return the interpreter and flags from the first two lines of a program; an empty list without a shebang.

    >>> _read_shebang("#!/usr/bin/env python3", ""), _read_shebang("ELF", "")
    (['python3'], [])
    """
    # Form that pip writes if the path of the interpreter is too long for a shebang.
    if hidden := re.match(r"'''exec' \"?([^\" ]+)", second):
        return [hidden[1]]
    words = first[2:].split() if first.startswith("#!") else []
    return words[_after_options(words, 1, frozenset()) :] if words and Path(words[0]).name == "env" else words
