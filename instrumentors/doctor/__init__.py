"""The command `stagelens doctor`: reports what Stagelens would time in a command, and what would prevent it.

Only the interpreter of the command is executed, for a moment; with `--run` the command itself, for the given time. Only an
empty export is sent, to test whether the collector accepts data.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from . import checks, delivery
from .inspection import Check, Inspection, inspect_interpreter
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


def examine(command: list[str], env: Mapping[str, str], seconds: float, *, saved_here: bool, alone: bool) -> bool:
    """Print the report about *command*, which is also run for *seconds*; return whether there are problems.

    Args:
        command: The command.
        env: Environment that `stagelens run` would set.
        seconds: Time for which the command runs; 0 does not run it.
        saved_here: Whether `stagelens run` would collect and report the run itself.
        alone: Whether it would because no collector responds.
    """
    target = find_target(command, env)
    is_startable = bool(target.interpreter) and not target.problem
    interpreter, silence = inspect_interpreter(target, env) if is_startable else (None, "")
    found_environment = {**env, **interpreter.environment} if interpreter else env
    inspection = Inspection(target, found_environment, interpreter, silence, saved_here, alone)
    findings = [finding for check in CHECKS for finding in check(inspection)]
    # Problems first.
    findings.sort(key=lambda finding: not finding.hurts)
    watched = run_and_watch(command, env, seconds) if seconds else None
    findings = [*live_findings(watched), *findings] if watched else findings
    write_report(ReportWriter(sys.stdout), inspection, findings, watched)
    return any(finding.hurts for finding in findings)
