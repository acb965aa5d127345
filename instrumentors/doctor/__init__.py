"""The command `stagelens doctor`: reports what Stagelens would time in a command, and what would prevent it.

Only the interpreter of the command is executed, for a moment; with `--run` the command itself, for the given time. Only an
empty export is sent, to test whether the collector accepts data.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from ...core.errors import ConfigError
from .. import run
from . import checks, delivery
from .inspection import Check, DoctorFinding, Inspection, inspect_interpreter
from .live_run import live_findings, run_and_watch
from .report import ReportWriter, write_report
from .target import find_target

CHECKS: tuple[Check, ...] = (
    checks.check_program,
    checks.check_versions,
    checks.check_autoload,
    checks.check_stages,
    checks.check_uwsgi,
    checks.check_threads,
    checks.check_memory,
    checks.check_temporary_files,
    checks.check_gpus,
    delivery.check_settings,
    delivery.check_collector,
)


def run_checks(inspection: Inspection) -> Iterator[DoctorFinding]:
    """Yield the findings of all checks, problems first."""
    found = [finding for check in CHECKS for finding in check(inspection)]
    yield from sorted(found, key=lambda finding: not finding.hurts)


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

FINE, IN_THE_WAY, WRONG = 0, 1, 2


def main(words: list[str], find_saver: Callable[[], run.RunSaver] | None = None) -> int:
    if words[:1] in (["-h"], ["--help"]):
        print(USAGE, end="")
        return FINE
    try:
        seconds, rest = _take_run_seconds(words)
        stages, outputs, rest = run.split(rest)
        env = run.environment(os.environ, stages)
    except ConfigError as error:
        return _usage_error(str(error))
    command = rest[1:] if rest[:1] == ["--"] else rest
    if not command or (command is rest and rest[0].startswith("-")):
        return _usage_error(f"unknown option {rest[0]}" if command else "the command is missing")
    alone = not outputs.requested and find_saver is not None and run.choose_saver(find_saver, outputs) is not None
    inspection = replace(inspect_command(command, env), saved_here=outputs.requested or alone, alone=alone)
    found = list(run_checks(inspection))
    watched = run_and_watch(command, env, seconds) if seconds else None
    found = [*live_findings(watched), *found] if watched else found
    write_report(ReportWriter(sys.stdout), inspection, found, watched)
    return IN_THE_WAY if any(finding.hurts for finding in found) else FINE


def inspect_command(command: list[str], env: Mapping[str, str]) -> Inspection:
    """Return the inspection of *command* in *env*, the environment that `stagelens run` would set."""
    target = find_target(command, env)
    is_startable = bool(target.interpreter) and not target.problem
    interpreter, silence = inspect_interpreter(target, env) if is_startable else (None, "")
    found_environment = {**env, **interpreter.environment} if interpreter else env
    return Inspection(target, found_environment, interpreter, silence)


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
    return WRONG
