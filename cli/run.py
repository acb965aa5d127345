"""`stagelens run -- COMMAND`: start a program instrumented, and report the run if no collector does.

The words are split without `argparse`, because everything after the options belongs to COMMAND.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.util import find_spec

from ..instrumentors import run
from ..instrumentors.run import RunOutputs

USAGE = """\
usage: stagelens run [OPTION ...] -- COMMAND [ARGUMENT ...]

Start COMMAND and time every request of its Python processes by stage; its code stays unchanged.

  stagelens run -- uvicorn app:app --workers 2
  stagelens run --stage preprocess=app:resize -- python serve.py
  stagelens run --save run.json --report run.html -- python batch.py

options:
  --stage STAGE=MODULE:FUNCTION  time that function, or MODULE:CLASS.METHOD, as STAGE; can be repeated
                                 [STAGELENS_STAGES, separated by commas]
  --summary                      print a summary on stderr when COMMAND exits; the run is not sent
  --report FILE                  like --summary; also write the run as one self-contained HTML page
  --save FILE                    like --summary; also write the run as OTLP/JSON, for `stagelens import` and `stagelens compare`

Data is sent to OTEL_EXPORTER_OTLP_ENDPOINT (default http://127.0.0.1:4318, where `stagelens up` listens). The name of
the service is OTEL_SERVICE_NAME. In a terminal, --summary is implied if no endpoint is set and no collector responds.
"""
# Modules of the server extra that are required to collect and report a run.
_SERVER_MODULES = ("alembic", "dash", "numpy", "pandas", "pydantic", "rich", "sqlalchemy", "starlette", "uvicorn")


def main(words: list[str], environment: Mapping[str, str]) -> int:
    """Execute the command in *words*, or supervise it; return only on failure or after a supervised run."""
    if words[:1] in (["-h"], ["--help"]):
        print(USAGE, end="")
        return 0
    stages, outputs, rest = run.split(words)
    command, wrong = command_after(rest)
    if wrong:
        print(f"stagelens run: {wrong}\n\n{USAGE}", end="", file=sys.stderr)
        return 2
    env = run.environment(environment, stages)
    if (reason := run.explain_untimed(command)) is not None:
        # The interpreter that starts a bundle needs no Stagelens.
        env.pop(run.PID_VARIABLE)
        print(f"stagelens run: {reason}\n" * bool(reason), end="", file=sys.stderr)
    if is_supervised(outputs, environment):
        from . import supervisor  # noqa: PLC0415 - only a supervised run needs it

        return supervisor.main(command, env, outputs)
    return run.become(command, env)


def command_after(rest: list[str]) -> tuple[list[str], str]:
    """Return the command in the words after the options, and what is wrong with them."""
    command = rest[1:] if rest[:1] == ["--"] else rest
    if not command or (command is rest and rest[0].startswith("-")):
        return command, f"unknown option {rest[0]}" if command else "the command is missing"
    return command, ""


def is_supervised(outputs: RunOutputs, environment: Mapping[str, str]) -> bool:
    """Return whether the run is collected and reported here, which needs the server extra.

    Raises:
        ModuleNotFoundError: Outputs are requested, and the extra is not installed.
    """
    if not outputs.requested and not run.lacks_collector_in_terminal(environment):
        return False
    # The modules are searched but not loaded: the command must start in a process that has loaded none of them.
    missing = [module for module in _SERVER_MODULES if find_spec(module) is None]
    if missing and outputs.requested:
        raise ModuleNotFoundError(name=missing[0])
    return not missing
