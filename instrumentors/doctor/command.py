"""The command line of `stagelens doctor`, and the table of its checks."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from ...core.errors import ConfigError
from .. import run
from . import delivery, frameworks, live_run, startup
from .environment import Check, Finding, Inspection, ask_interpreter
from .live_run import run_and_watch
from .output import Page, write_report
from .sources import read_sources
from .target import find_target

CHECKS: tuple[Check, ...] = (
    startup.check_program,
    frameworks.check_not_python,
    startup.check_versions,
    startup.check_autoload,
    startup.check_stages,
    startup.check_uwsgi,
    frameworks.check_gevent,
    frameworks.check_tracers,
    frameworks.check_batching,
    startup.check_threads,
    startup.check_memory,
    startup.check_temporary_files,
    startup.check_gpus,
    delivery.check_settings,
    delivery.check_collector,
    frameworks.check_multiprocess_metrics,
    frameworks.check_vllm,
    frameworks.check_sglang,
    frameworks.check_triton,
    frameworks.check_stream_usage,
)


def run_checks(inspection: Inspection) -> Iterator[Finding]:
    """Yield the findings of all checks, problems first."""
    found = [finding for check in CHECKS for finding in check(inspection)]
    yield from sorted(found, key=lambda finding: not finding.hurts)


USAGE = """\
usage: stagelens doctor [OPTION ...] -- COMMAND [ARGUMENT ...]

Say what `stagelens run -- COMMAND` would time, and what is in the way, each with its cure. COMMAND is not started: its
interpreter is asked what it has, its modules are read, and the collector is asked to take an export without content.

  stagelens doctor -- uvicorn app:app --workers 2
  stagelens doctor --stage preprocess=app:resize -- python serve.py

options:
  --run SECONDS                  then start COMMAND for so long, and see which of its processes would be timed, and what they
                                 import; what it sends meanwhile goes nowhere
  --stage, --summary, --report, --save    as `stagelens run` takes them

exit codes: 0 nothing is in the way, 1 something is, 2 wrong usage
"""

FINE, IN_THE_WAY, WRONG = 0, 1, 2


def main(words: list[str], keeper: Callable[[], run.Keep] | None = None) -> int:
    """Inspect the command in *words* and print the report.

    Args:
        words: The words after `stagelens doctor`.
        keeper: Loads what keeps a run.

    Returns:
        The exit code, see `USAGE`.
    """
    if words[:1] in (["-h"], ["--help"]):
        print(USAGE, end="")
        return FINE
    try:
        seconds, rest = _seconds(words)
        stages, kept, rest = run.split(rest)
        env = run.environment(os.environ, stages)
    except ConfigError as error:
        return _wrong(str(error))
    command = rest[1:] if rest[:1] == ["--"] else rest
    if not command or (command is rest and rest[0].startswith("-")):
        return _wrong(f"there is no option {rest[0]}" if command else "the command is missing")
    alone = not kept.asked and keeper is not None and run.keeping(keeper, kept) is not None
    inspection = replace(inspect_command(command, env), kept_here=kept.asked or alone, alone=alone)
    found = list(run_checks(inspection))
    watched = run_and_watch(command, env, seconds) if seconds else None
    found = [*live_run.live_findings(watched), *found] if watched else found
    write_report(Page(sys.stdout), inspection, found, watched)
    return IN_THE_WAY if any(finding.hurts for finding in found) else FINE


def inspect_command(command: list[str], env: Mapping[str, str]) -> Inspection:
    """Return the inspection of *command* in *env*, which is the environment of `stagelens run`."""
    known = find_target(command, env)
    interpreter, silence = ask_interpreter(known, env) if known.interpreter and not known.lost else (None, "")
    return Inspection(
        command=command,
        target=known,
        environment={**env, **interpreter.environment} if interpreter else env,
        interpreter=interpreter,
        silence=silence,
        sources=read_sources(known.program, known.words, Path.cwd()),
    )


def _seconds(words: list[str]) -> tuple[float, list[str]]:
    """Return the value of a leading `--run`, 0 without one, and the remaining words."""
    option, sign, value = words[0].partition("=") if words else ("", "", "")
    if option != "--run":
        return 0.0, words
    value, rest = (value, words[1:]) if sign else ("".join(words[1:2]), words[2:])
    if not value.isascii() or not value.isdigit() or not int(value):
        msg = "--run needs seconds, such as 20"
        raise ConfigError(msg)
    return float(value), rest


def _wrong(text: str) -> int:
    print(f"stagelens doctor: {text}\n\n{USAGE}", end="", file=sys.stderr)
    return WRONG
