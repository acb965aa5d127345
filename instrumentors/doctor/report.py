"""The report of `stagelens doctor`: plain text, 80 columns wide, with colours on a terminal."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TextIO

from ..bootstrap import LIBRARIES
from .delivery import profiler_state
from .inspection import DoctorFinding, Inspection
from .live_run import LiveRun

# Libraries that run models and have no instrumentor.
WITHOUT_INSTRUMENTOR = ("mlx", "onnxruntime-genai", "paddlepaddle", "spacy", "tensorrt")
# Distributions of the same library for other devices.
OTHER_NAMES = {
    "onnxruntime": ("onnxruntime-gpu", "onnxruntime-directml", "onnxruntime-openvino"),
    "tensorflow-cpu": ("tensorflow",),
    "xgboost-cpu": ("xgboost",),
}
WIDTH = 80
# Non-breaking space.
_NBSP = "\xa0"


class TimedLibrary(NamedTuple):
    title: str
    versions: dict[str, tuple[str, str]]


def timed_libraries(inspection: Inspection) -> Iterator[TimedLibrary]:
    loaded = {library.load() for library in LIBRARIES}
    others = (cls for cls in loaded if cls.library.partition(".")[0] not in sys.stdlib_module_names)
    classes = sorted(others, key=lambda cls: cls.title.lower())
    mains = {next(iter(cls.tested)) for cls in classes}
    for cls in classes:
        main = next(iter(cls.tested))
        # A distribution with its own instrumentor is listed there, not here.
        versions = {
            installed: (inspection.installed(installed), tested)
            for name, tested in cls.tested.items()
            if name not in mains - {main}
            and (installed := next(filter(inspection.installed, (name, *OTHER_NAMES.get(name, ()))), ""))
        }
        if any(name == main or name.startswith(cls.library) for name in versions):
            yield TimedLibrary(cls.title, versions)


def untimed_libraries(inspection: Inspection) -> dict[str, str]:
    """Return the versions of installed libraries that run models and have no instrumentor."""
    return {name: version for name in WITHOUT_INSTRUMENTOR if (version := inspection.installed(name))}


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
    page: ReportWriter, inspection: Inspection, findings: Sequence[DoctorFinding], watched: LiveRun | None = None
) -> None:
    _write_interpreter(page, inspection)
    _write_libraries(page, inspection)
    if inspection.interpreter and (profiler := profiler_state(inspection)):
        page.line()
        page.wrapped(profiler, "Tail profiler: ")
    if watched is not None:
        page.line()
        page.line(f"Run for {watched.seconds:.0f} s, in instrumented Python processes: {watched.processes}")
        page.wrapped(
            ", ".join(f"{title} ({count})" for title, count in watched.libraries.items()), "  imported there: "
        )
    hurting, rest = [one for one in findings if one.hurts], [one for one in findings if not one.hurts]
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
    interpreter = inspection.interpreter
    if interpreter is not None:
        version = ".".join(map(str, interpreter.version))
        with_us = f", stagelens {interpreter.stagelens['version']}" if "version" in interpreter.stagelens else ""
        page.line(f"{inspection.target.name}: Python {version}{with_us}", BOLD)
        page.line(f"  {interpreter.executable}")


def _write_libraries(page: ReportWriter, inspection: Inspection) -> None:
    libraries = list(timed_libraries(inspection))
    width = max((len(library.title) for library in libraries), default=0)
    if libraries:
        page.line()
        page.line("Timed automatically, if it is imported:")
    for library in libraries:
        page.wrapped(", ".join(_versions(library)), f"  {library.title:<{width}}  ")
    untimed = untimed_libraries(inspection)
    if untimed:
        page.line()
        page.wrapped(
            "Not timed automatically: " + ", ".join(f"{name}{_NBSP}{version}" for name, version in untimed.items())
        )
        page.line(f"      stagelens run --stage forward=MODULE:FUNCTION -- {inspection.target.name} …", BOLD)


def _versions(library: TimedLibrary) -> Iterator[str]:
    for name, (version, tested) in library.versions.items():
        # A suffix such as +cpu describes the build.
        differs = version.partition("+")[0] != tested
        yield f"{name}{_NBSP}{version}" + (f" (tested{_NBSP}with{_NBSP}{tested})" if differs else "")


def _write_findings(page: ReportWriter, title: str, findings: Sequence[DoctorFinding], colour: str) -> None:
    page.line()
    page.line(title, colour)
    for finding in findings:
        page.wrapped(finding.text, "  - ")
        if finding.fix:
            # Fixes are copied, so their lines are not broken.
            page.line(f"      {finding.fix}", BOLD)
