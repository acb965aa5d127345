"""The command `stagelens doctor`: reports what Stagelens would time in a command, and what would prevent it.

A check is a function in the table `CHECKS` that takes an `Inspection` and yields a `DoctorFinding` for each problem. Only the
interpreter of the command is executed, for a moment; with `--run` the command itself, for the given time. Only an empty export
is sent, to test whether the collector accepts data.

The report is plain text, 80 columns wide, with colours on a terminal.
"""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TextIO

from ...core.errors import ConfigError
from .. import run
from ..bootstrap import LIBRARIES
from . import checks, frameworks
from .inspection import (
    Check,
    DoctorFinding,
    Inspection,
    LiveRun,
    inspect_interpreter,
    live_findings,
    read_sources,
    run_and_watch,
)
from .target import find_target

CHECKS: tuple[Check, ...] = (
    checks.check_program,
    frameworks.check_not_python,
    checks.check_versions,
    checks.check_autoload,
    checks.check_stages,
    checks.check_uwsgi,
    frameworks.check_gevent,
    frameworks.check_tracers,
    frameworks.check_batching,
    frameworks.check_lists_of_jobs,
    frameworks.check_unseen_servers,
    checks.check_threads,
    checks.check_memory,
    checks.check_temporary_files,
    checks.check_gpus,
    checks.check_settings,
    checks.check_collector,
    frameworks.check_multiprocess_metrics,
    frameworks.check_vllm,
    frameworks.check_sglang,
    frameworks.check_triton,
    frameworks.check_stream_usage,
)


def run_checks(inspection: Inspection) -> Iterator[DoctorFinding]:
    """Yield the findings of all checks, problems first."""
    found = [finding for check in CHECKS for finding in check(inspection)]
    yield from sorted(found, key=lambda finding: not finding.hurts)


USAGE = """\
usage: stagelens doctor [OPTION ...] -- COMMAND [ARGUMENT ...]

Check what `stagelens run -- COMMAND` would time, and suggest fixes. COMMAND is not started: its
interpreter is queried, its modules are read, and an empty export is sent to the collector.

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
    known = find_target(command, env)
    interpreter, silence = inspect_interpreter(known, env) if known.interpreter and not known.lost else (None, "")
    return Inspection(
        command=command,
        target=known,
        environment={**env, **interpreter.environment} if interpreter else env,
        interpreter=interpreter,
        silence=silence,
        sources=read_sources(known.program, known.words, Path.cwd()),
    )


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


# Libraries that run models and have no instrumentor: import name by distribution.
WITHOUT_MODULE = {
    "mlx": "mlx",
    "onnxruntime-genai": "onnxruntime_genai",
    "paddlepaddle": "paddle",
    "spacy": "spacy",
    "tensorrt": "tensorrt",
}
# Distributions that are tested together with a library but also used without it: their import is no sign of the library.
ALSO_ALONE = frozenset({"gevent", "werkzeug"})
# Distributions of the same library for other devices.
OTHER_NAMES = {
    "onnxruntime": ("onnxruntime-gpu", "onnxruntime-directml", "onnxruntime-openvino"),
    "tensorflow-cpu": ("tensorflow",),
    "xgboost-cpu": ("xgboost",),
}


class TimedLibrary(NamedTuple):
    title: str
    versions: dict[str, tuple[str, str]]
    certain: bool


def timed_libraries(inspection: Inspection) -> Iterator[TimedLibrary]:
    imported = inspection.sources.imported() | {inspection.target.name}
    found = {library.load() for library in LIBRARIES}
    others = (cls for cls in found if cls.library.partition(".")[0] not in sys.stdlib_module_names)
    classes = sorted(others, key=lambda cls: cls.title.lower())
    mains = {next(iter(cls.tested)) for cls in classes}
    for cls in classes:
        main = next(iter(cls.tested))
        # A distribution with its own instrumentor is listed there, not here.
        versions = {
            there: (inspection.installed(there), tested)
            for name, tested in cls.tested.items()
            if name not in mains - {main}
            and (there := next(filter(inspection.installed, (name, *OTHER_NAMES.get(name, ()))), ""))
        }
        used = {name for name in versions.keys() - ALSO_ALONE if name.replace("-", "_") in imported}
        used |= {name for name in versions if name == main and cls.library.partition(".")[0] in imported}
        if any(name == main or name.startswith(cls.library) for name in versions):
            shown = {name: both for place, (name, both) in enumerate(versions.items()) if place == 0 or name in used}
            yield TimedLibrary(
                cls.title, shown if inspection.sources.trees else versions, not inspection.sources.trees or bool(used)
            )


def untimed_libraries(inspection: Inspection) -> dict[str, str]:
    """Return the versions of known libraries without an instrumentor that are installed and, if sources are known, imported."""
    imported = inspection.sources.imported()
    return {
        name: version
        for name, module in WITHOUT_MODULE.items()
        if (version := inspection.installed(name)) and (not inspection.sources.trees or module in imported)
    }


WIDTH = 80
# Non-breaking space.
_NBSP = "\xa0"
# ECMA-48, "Select graphic rendition".
GREEN, YELLOW, RED, BOLD = "32", "33", "31", "1"


class ReportWriter:
    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._coloured = out.isatty() and not os.environ.get("NO_COLOR")

    def line(self, text: str = "", *codes: str) -> None:
        painted = f"\x1b[{';'.join(codes)}m{text}\x1b[0m" if codes and self._coloured else text
        print(painted, file=self._out)

    def wrapped(self, text: str, lead: str = "") -> None:
        """Write *text* wrapped to the width, with *lead* before the first line; long words are not broken."""
        indent = " " * len(lead)
        for part in textwrap.wrap(
            text, WIDTH, initial_indent=lead, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        ):
            self.line(part.replace(_NBSP, " "))


def write_report(
    page: ReportWriter, inspection: Inspection, found: Sequence[DoctorFinding], watched: LiveRun | None = None
) -> None:
    _write_interpreter(page, inspection)
    _write_libraries(page, inspection)
    if inspection.interpreter and (profiler := checks.profiler_state(inspection)):
        page.line()
        page.wrapped(profiler, "Tail profiler: ")
    if watched is not None:
        page.line()
        page.line(f"Run for {watched.seconds:.0f} s, in instrumented Python processes: {watched.processes}")
        page.wrapped(
            ", ".join(f"{title} ({count})" for title, count in watched.libraries.items()), "  imported there: "
        )
    hurting, rest = [one for one in found if one.hurts], [one for one in found if not one.hurts]
    if hurting:
        _write_findings(page, "Problems:", hurting, RED)
    if rest:
        _write_findings(page, "Hints:", rest, YELLOW)
    page.line()
    if hurting:
        page.line(f"{len(hurting)} problem{'s' * (len(hurting) != 1)} found.", RED, BOLD)
    else:
        page.line("No problems found.", GREEN, BOLD)


def _write_interpreter(page: ReportWriter, inspection: Inspection) -> None:
    found = inspection.interpreter
    if found is not None:
        version = ".".join(map(str, found.version))
        with_us = f", stagelens {found.stagelens['version']}" if "version" in found.stagelens else ""
        page.line(f"{inspection.target.name}: Python {version}{with_us}", BOLD)
        page.line(f"  {found.executable}")


def _write_libraries(page: ReportWriter, inspection: Inspection) -> None:
    libraries = list(timed_libraries(inspection))
    certain = [library for library in libraries if library.certain]
    width = max((len(library.title) for library in certain), default=0)
    if certain:
        page.line()
        page.line("Timed automatically:" if inspection.sources.trees else "Timed automatically, if it is imported:")
    for library in certain:
        page.wrapped(", ".join(_versions(library)), f"  {library.title:<{width}}  ")
    rest = dict.fromkeys(version for library in libraries if not library.certain for version in _versions(library))
    if rest:
        page.line()
        page.line(
            "Also timed automatically, if another module imports it:"
            if certain
            else "Timed automatically, if another module imports it:"
        )
        page.wrapped(", ".join(rest), "  ")
    for name, version in untimed_libraries(inspection).items():
        page.line()
        page.line(f"Not timed automatically: {name} {version}")
        page.line(f"      stagelens run --stage forward=MODULE:FUNCTION -- {inspection.target.name} …", BOLD)


def _versions(library: TimedLibrary) -> Iterator[str]:
    for name, (version, tested) in library.versions.items():
        # A suffix such as +cpu describes the build.
        differs = version.partition("+")[0] != tested
        yield f"{name}{_NBSP}{version}" + (f" (tested{_NBSP}with{_NBSP}{tested})" if differs else "")


def _write_findings(page: ReportWriter, title: str, found: Sequence[DoctorFinding], colour: str) -> None:
    page.line()
    page.line(title, colour)
    for finding in found:
        page.wrapped(finding.text, "  - ")
        if finding.fix:
            # Fixes are copied, so their lines are not broken.
            page.line(f"      {finding.fix}", BOLD)
