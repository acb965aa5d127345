"""`stagelens doctor -- COMMAND`: report what `stagelens run` would time, and what would prevent it."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from ..core.errors import ConfigError
from ..instrumentors import doctor, run
from .run import command_after, is_supervised

USAGE = """\
usage: stagelens doctor [OPTION ...] -- COMMAND [ARGUMENT ...]

Check what `stagelens run -- COMMAND` would time, and suggest fixes. COMMAND is not started: its
interpreter is queried, and an empty export is sent to the collector.

  stagelens doctor -- uvicorn app:app --workers 2
  stagelens doctor --stage preprocess=app:resize -- python serve.py

options:
  --run SECONDS                  also run COMMAND for this time; list the instrumented processes and their libraries;
                                 the data is discarded
  --stage, --summary, --report, --save    as in `stagelens run`

exit codes: 0 no problems, 1 problems found, 2 wrong usage
"""


def main(words: list[str], environment: Mapping[str, str]) -> int:
    if words[:1] in (["-h"], ["--help"]):
        print(USAGE, end="")
        return 0
    try:
        seconds, rest = _take_run_seconds(words)
        stages, outputs, rest = run.split(rest)
        env = run.environment(environment, stages)
    except ConfigError as error:
        return _usage_error(str(error))
    command, wrong = command_after(rest)
    if wrong:
        return _usage_error(wrong)
    alone = not outputs.requested and is_supervised(outputs, environment)
    has_problems = doctor.examine(command, env, seconds, saved_here=outputs.requested or alone, alone=alone)
    return 1 if has_problems else 0


def _take_run_seconds(words: list[str]) -> tuple[float, list[str]]:
    option, sign, value = words[0].partition("=") if words else ("", "", "")
    if option != "--run":
        return 0.0, words
    value, rest = (value, words[1:]) if sign else ("".join(words[1:2]), words[2:])
    if not value.isascii() or not value.isdigit() or not int(value):
        msg = "--run needs seconds, such as 20"
        raise ConfigError(msg)
    return float(value), rest


def _usage_error(text: str) -> int:
    print(f"stagelens doctor: {text}\n\n{USAGE}", end="", file=sys.stderr)
    return 2
