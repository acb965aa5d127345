"""`stagelens run -- COMMAND …`: start any program with every Python process of it instrumented.

The command replaces this process (`exec`), so its exit code and its signals are its own. What instruments it is a
`sitecustomize` on PYTHONPATH, which every interpreter it starts inherits: workers, reloaders, scripts.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from . import functions

AUTOLOAD = Path(__file__).parent / "autoload"
# Which process `exec` made of ours; only that one says so when it cannot be instrumented.
PID_VARIABLE = "STAGELENS_RUN_PID"

USAGE = """\
usage: stagelens run [--stage STAGE=MODULE:FUNCTION ...] -- COMMAND [ARGUMENT ...]

Start COMMAND with every request of its Python processes timed, stage by stage; its code stays as it is.

  stagelens run -- uvicorn app:app --workers 2
  stagelens run --stage preprocess=app:resize -- python serve.py

options:
  --stage STAGE=MODULE:FUNCTION  count the time in that function, or MODULE:CLASS.METHOD, as STAGE; may be repeated
                                 [STAGELENS_STAGES, separated by commas]

Times go to OTEL_EXPORTER_OTLP_ENDPOINT (default http://127.0.0.1:4318, where `stagelens up` listens), under the name
OTEL_SERVICE_NAME.
"""

# As shells have it.
NOT_EXECUTABLE, NOT_FOUND = 126, 127


def main(argv: list[str]) -> int:
    """Become the command in *argv*; return only if that fails.

    Args:
        argv: The words after `stagelens run`: options, `--`, the command. The `--` may be left out.

    Returns:
        0 after printing the help, 2 for a wrong command line, 126 or 127 as a shell would.

    Raises:
        ConfigError: A --stage is not written as it must be.
    """
    if argv[:1] in (["-h"], ["--help"]):
        print(USAGE, end="")
        return 0
    stages, rest = _split(argv)
    command = rest[1:] if rest[:1] == ["--"] else rest
    if not command or (command is rest and rest[0].startswith("-")):
        wrong = f"there is no option {rest[0]}" if command else "the command is missing"
        print(f"stagelens run: {wrong}\n\n{USAGE}", end="", file=sys.stderr)
        return 2
    env = environment(os.environ, stages)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvpe(command[0], command, env)  # noqa: S606 - the user's command, as it is
    except OSError as error:
        print(f"stagelens run: {_cure(command[0], error)}", file=sys.stderr)
        return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE


def environment(current: Mapping[str, str], stages: Sequence[str] = ()) -> dict[str, str]:
    """Return *current* with our `sitecustomize` first on PYTHONPATH, once, and the user's entries behind it.

    Args:
        current: The environment as it is.
        stages: What `--stage` was given, besides what STAGELENS_STAGES holds.

    Raises:
        ConfigError: One of *stages* is not written as it must be.
    """
    theirs = current.get("PYTHONPATH")
    # An empty entry among others is the working directory, and stays.
    kept = [entry for entry in theirs.split(os.pathsep) if entry != str(AUTOLOAD)] if theirs else []
    env = {**current, "PYTHONPATH": os.pathsep.join([str(AUTOLOAD), *kept]), PID_VARIABLE: str(os.getpid())}
    if stages:
        env[functions.VARIABLE] = ",".join(filter(None, [current.get(functions.VARIABLE, ""), *stages]))
        functions.parse(env[functions.VARIABLE])
    return env


def _split(argv: list[str]) -> tuple[list[str], list[str]]:
    """Return the values of the leading --stage options, and what follows them."""
    stages: list[str] = []
    rest = argv
    while rest and rest[0].partition("=")[0] == "--stage":
        if "=" in rest[0]:
            stages.append(rest[0].partition("=")[2])
            rest = rest[1:]
        else:
            stages += rest[1:2]
            rest = rest[2:]
    return stages, rest


def _cure(command: str, error: OSError) -> str:
    if not isinstance(error, FileNotFoundError):
        hint = f"    stagelens run -- python {command}" if command.endswith(".py") else f"    chmod +x {command}"
        return f"{command} cannot be executed ({error.strerror}).\n{hint}"
    if os.sep in command:
        return f"there is no file {command}.\n    Write its full path, or a command on PATH."
    if Path(command).is_file():
        return f"there is no command {command} on PATH, but there is a file of that name.\n    ./{command}, or python {command}"
    return (
        f"there is no command {command} on PATH.\n"
        f"    Activate the environment it is installed in, or start it as a module: stagelens run -- python -m {command}"
    )
