"""Start of any program with all of its Python processes instrumented, as `stagelens run` does.

The command replaces this process (`exec`), so its exit code and its signals are its own. A `sitecustomize` on PYTHONPATH does
the instrumentation, and every interpreter that the command starts inherits it: workers, reloaders, scripts.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import re
import shlex
import shutil
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..core.errors import ConfigError
from . import functions

AUTOLOAD = Path(__file__).parent / "autoload"
_ROOT = Path(__file__).parents[1]
# What `pip install` takes: the clone that this runs from, or the name.
SOURCE = str(_ROOT) if (_ROOT / "pyproject.toml").exists() else "stagelens"
# Id of the process that becomes the command by `exec`; only this process reports that it cannot be instrumented.
PID_VARIABLE = "STAGELENS_RUN_PID"

# Exit codes as in shells.
NOT_EXECUTABLE, NOT_FOUND = 126, 127
_FILES = {"--report": "run.html", "--save": "run.json"}
_OPTIONS = ("--stage", "--summary", *_FILES)
# A collector on this machine accepts connections immediately.
_CONNECT_SECONDS = 1.0


# Each of these variables configures a collector.
_ENDPOINTS = (
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_CONFIG_FILE",
)
# Programs that contain their Python, by what their files contain.
# https://pyinstaller.org/en/stable/advanced-topics.html#carchive: the archive ends with a cookie that starts so.
_PYINSTALLER_COOKIE = b"MEI\014\013\012\013\016"
_PEX_INFO = "PEX-INFO"
_OURS = b"stagelens"
_MAX_SCRIPT_BYTES = 64 * 1024
_ISOLATED = re.compile(r"-[A-Za-z]*[EIS][A-Za-z]*")
_INSTRUMENT = "add stagelens to it, and call stagelens.instrument() in its first line"


@dataclass(frozen=True, slots=True)
class RunOutputs:
    requested: bool = False
    report: Path | None = None
    save: Path | None = None


def explain_untimed(command: Sequence[str]) -> str | None:
    """Return why no process of *command* would load Stagelens, and the fix; "" if the program has to load it, None if unknown."""
    words = list(_words(command))
    for index, word in enumerate(words):
        if (reason := explain_bundle(shutil.which(word) or word)) is not None:
            return reason
        if Path(word).name.startswith("python"):
            flags = itertools.takewhile(
                lambda flag_or_program: flag_or_program.startswith("-") and flag_or_program not in ("-c", "-m"),
                words[index + 1 :],
            )
            if flag := next(filter(_ISOLATED.fullmatch, flags), ""):
                return f"{flag} makes Python ignore PYTHONPATH, which loads Stagelens: nothing is timed. fix: remove {flag}"
    return None


def pyinstaller_hooks() -> list[str]:
    return [str(Path(__file__).parent / "pyinstaller")]


def _words(command: Sequence[str]) -> Iterator[str]:
    for word in command:
        yield word
        with contextlib.suppress(OSError, ValueError):
            if " " in word or "\n" in word:
                yield from shlex.split(word, comments=True)
            elif (path := Path(word)).suffix == ".sh" and path.stat().st_size <= _MAX_SCRIPT_BYTES:
                yield from shlex.split(path.read_text(), comments=True)


def explain_bundle(path: str) -> str | None:
    """Return why the program at *path*, bundled with its libraries, is not timed; "" with Stagelens among them; else None."""
    kind, has_ours = "", False
    # Not `Path.open`: a word may be too long for a path.
    with contextlib.suppress(OSError, ValueError, zipfile.BadZipFile), open(path, "rb") as file:  # noqa: PTH123
        if zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as archive:
                if _PEX_INFO in archive.namelist():
                    kind, has_ours = "PEX", _OURS in archive.read(_PEX_INFO)
        else:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                if content.find(_PYINSTALLER_COOKIE, max(0, len(content) - _MAX_SCRIPT_BYTES)) >= 0:
                    kind, has_ours = "program of PyInstaller", content.find(_OURS) >= 0
    if not kind:
        return None
    return "" if has_ours else f"{path} is a {kind}, which ignores PYTHONPATH: nothing is timed. fix: {_INSTRUMENT}"


def become(command: list[str], env: Mapping[str, str]) -> int:
    for stream in filter(None, (sys.stdout, sys.stderr)):  # the parent process may have closed either
        stream.flush()
    try:
        os.execvpe(command[0], command, env)  # noqa: S606 - the user's own command
    except OSError as error:
        print(f"stagelens run: {explain_start_failure(command[0], error)}", file=sys.stderr)
        return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE


def lacks_collector_in_terminal(env: Mapping[str, str]) -> bool:
    if not (sys.stderr and sys.stderr.isatty()) or any(env.get(name, "").strip() for name in _ENDPOINTS):
        return False
    if env.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    import socket  # noqa: PLC0415 - imported only when it is needed

    from .config import DEFAULT_ENDPOINT  # noqa: PLC0415

    host, _, port = DEFAULT_ENDPOINT.rpartition("/")[2].partition(":")
    with socket.socket() as tried:
        tried.settimeout(_CONNECT_SECONDS)
        return tried.connect_ex((host, int(port))) != 0


def environment(current: Mapping[str, str], stages: Sequence[str] = ()) -> dict[str, str]:
    theirs = current.get("PYTHONPATH")
    # An empty entry among others means the working directory and is retained.
    entries = [entry for entry in theirs.split(os.pathsep) if entry != str(AUTOLOAD)] if theirs else []
    env = {**current, "PYTHONPATH": os.pathsep.join([str(AUTOLOAD), *entries]), PID_VARIABLE: str(os.getpid())}
    if stages:
        env[functions.VARIABLE] = ",".join(filter(None, [current.get(functions.VARIABLE, ""), *stages]))
        functions.parse(env[functions.VARIABLE])
    return env


def split(argv: list[str]) -> tuple[list[str], RunOutputs, list[str]]:
    stages, outputs, rest = list[str](), RunOutputs(), argv
    while rest and (option := rest[0].partition("=")[0]) in _OPTIONS:
        value, used = _value(rest, option)
        rest = rest[used:]
        if option == "--stage":
            stages += value
        else:
            files = {option[2:]: Path(value[0])} if value else {}
            outputs = replace(outputs, requested=True, **files)
    return stages, outputs, rest


def _value(words: list[str], option: str) -> tuple[list[str], int]:
    _, sign, inline_value = words[0].partition("=")
    if option == "--summary":
        return [], 1
    value = [inline_value] if sign else words[1:2]
    if option in _FILES and (not value or value[0] in ("", "--")):
        msg = f"{option} needs a file, such as {_FILES[option]}"
        raise ConfigError(msg)
    return value, 1 if sign else 2


def explain_start_failure(command: str, error: OSError) -> str:
    """Return the reason why *command* could not be started, and the fix on an indented line."""
    if not isinstance(error, FileNotFoundError):
        hint = f"    stagelens run -- python {command}" if command.endswith(".py") else f"    chmod +x {command}"
        return f"{command} cannot be executed ({error.strerror}).\n{hint}"
    if os.sep in command:
        return f"there is no file {command}.\n    Write its full path, or a command on PATH."
    # Not `Path.is_file`, which raises if a name is too long for a file.
    if os.path.isfile(command):  # noqa: PTH113
        return f"there is no command {command} on PATH, but there is a file of that name.\n    ./{command}, or python {command}"
    return (
        f"there is no command {command} on PATH.\n"
        f"    Activate the environment it is installed in, or start it as a module: stagelens run -- python -m {command}"
    )
