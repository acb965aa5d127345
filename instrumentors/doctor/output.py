"""The report of `stagelens doctor` as plain text, 80 columns wide, with colours on a terminal."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TextIO

from ..bootstrap import LIBRARIES
from .environment import Finding, Inspection
from .live_run import LiveRun

# Libraries in which a model runs and that have no module of ours: distribution, import name.
WITHOUT_MODULE = {
    "ctranslate2": "ctranslate2",
    "jax": "jax",
    "lightgbm": "lightgbm",
    "llama-cpp-python": "llama_cpp",
    "mlx": "mlx",
    "onnxruntime-genai": "onnxruntime_genai",
    "openvino": "openvino",
    "paddlepaddle": "paddle",
    "scikit-learn": "sklearn",
    "spacy": "spacy",
    "tensorflow": "tensorflow",
    "tensorrt": "tensorrt",
    "xgboost": "xgboost",
}
# Tested along with a library, and used without it as well: who imports one of them need not have the library.
ALSO_ALONE = frozenset({"gevent", "werkzeug"})
# The same library under another name: what runs on another device.
OTHER_NAMES = {"onnxruntime": ("onnxruntime-gpu", "onnxruntime-directml", "onnxruntime-openvino")}


class TimedLibrary(NamedTuple):
    """A library that would be timed.

    Args:
        title: Its name as people write it.
        versions: Its distributions that are installed, each with the version, and the one it was tested with.
        certain: Whether the command's own modules import it, as far as they are known; else something else has to.
    """

    title: str
    versions: dict[str, tuple[str, str]]
    certain: bool


def timed_libraries(inspection: Inspection) -> Iterator[TimedLibrary]:
    """Yield the installed libraries that are instrumented, by title."""
    imported = inspection.sources.imported() | {inspection.target.name}
    found = {library.load() for library in LIBRARIES}
    classes = sorted((cls for cls in found if not _is_pythons(cls.library)), key=lambda cls: cls.title.lower())
    mains = {next(iter(cls.tested)) for cls in classes}
    for cls in classes:
        main = next(iter(cls.tested))
        # What was tested along with it and has a module of its own is told there.
        versions = {
            there: (inspection.installed(there), tested)
            for name, tested in cls.tested.items()
            if name not in mains - {main}
            and (there := next(filter(inspection.installed, (name, *OTHER_NAMES.get(name, ()))), ""))
        }
        used = {name for name in versions.keys() - ALSO_ALONE if name.replace("-", "_") in imported}
        used |= {name for name in versions if name == main and cls.library.partition(".")[0] in imported}
        if any(name == main or name.startswith(cls.library) for name in versions):
            told = {name: both for place, (name, both) in enumerate(versions.items()) if place == 0 or name in used}
            yield TimedLibrary(
                cls.title, told if inspection.sources.trees else versions, not inspection.sources.trees or bool(used)
            )


def untimed_libraries(inspection: Inspection) -> dict[str, str]:
    """Return known libraries without an instrumentor, installed and, if sources are known, imported, with versions."""
    imported = inspection.sources.imported()
    return {
        name: version
        for name, module in WITHOUT_MODULE.items()
        if (version := inspection.installed(name)) and (not inspection.sources.trees or module in imported)
    }


def _is_pythons(library: str) -> bool:
    return library.partition(".")[0] in sys.stdlib_module_names


WIDTH = 80
# Where a line must not be broken.
_NBSP = "\xa0"
# ECMA-48, "Select graphic rendition".
GREEN, YELLOW, RED, BOLD, DIM = "32", "33", "31", "1", "2"


class Page:
    """Lines for *out*.

    Args:
        out: Where they go.
    """

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._coloured = out.isatty() and not os.environ.get("NO_COLOR")

    def line(self, text: str = "", *codes: str) -> None:
        """Write *text* as one line."""
        painted = f"\x1b[{';'.join(codes)}m{text}\x1b[0m" if codes and self._coloured else text
        print(painted, file=self._out)

    def wrapped(self, text: str, lead: str = "") -> None:
        """Write *text* wrapped to the width, the first line after *lead*; long words are not broken."""
        indent = " " * len(lead)
        for part in textwrap.wrap(
            text, WIDTH, initial_indent=lead, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        ):
            self.line(part.replace(_NBSP, " "))


def write_report(page: Page, inspection: Inspection, found: Sequence[Finding], watched: LiveRun | None = None) -> None:
    """Write the instrumented libraries, the observations of a live run, the problems and the hints."""
    _write_interpreter(page, inspection)
    _write_libraries(page, inspection)
    if watched is not None:
        page.line()
        page.line(f"Run for {watched.seconds:.0f} s, in processes of Python we were in: {watched.processes}")
        page.wrapped(
            ", ".join(f"{title} ({count})" for title, count in watched.libraries.items()), "  imported there: "
        )
    hurting, rest = [one for one in found if one.hurts], [one for one in found if not one.hurts]
    if hurting:
        _write_findings(page, "In the way:", hurting, RED)
    if rest:
        _write_findings(page, "Worth knowing:", rest, YELLOW)
    page.line()
    if hurting:
        page.line(f"{len(hurting)} in the way", RED, BOLD)
    else:
        page.line("Nothing is in the way.", GREEN, BOLD)


def _write_interpreter(page: Page, inspection: Inspection) -> None:
    found = inspection.interpreter
    if found is not None:
        version = ".".join(map(str, found.version))
        with_us = f", stagelens {found.stagelens['version']}" if "version" in found.stagelens else ""
        page.line(f"{inspection.target.name}: Python {version}{with_us}", BOLD)
        page.line(f"  {found.executable}")


def _write_libraries(page: Page, inspection: Inspection) -> None:
    libraries = list(timed_libraries(inspection))
    certain = [library for library in libraries if library.certain]
    width = max((len(library.title) for library in certain), default=0)
    if certain:
        page.line()
        page.line("Timed by itself:" if inspection.sources.trees else "Timed by itself, where it is imported:")
    for library in certain:
        page.wrapped(", ".join(_versions(library)), f"  {library.title:<{width}}  ")
    rest = dict.fromkeys(version for library in libraries if not library.certain for version in _versions(library))
    if rest:
        page.line()
        page.line(
            "Timed by itself too, where something imports it:"
            if certain
            else "Timed by itself, where something imports it:"
        )
        page.wrapped(", ".join(rest), "  ")
    for name, version in untimed_libraries(inspection).items():
        page.line()
        page.line(f"Not timed by itself: {name} {version}")
        page.line(f"      stagelens run --stage forward=MODULE:FUNCTION -- {inspection.target.name} …", BOLD)


def _versions(library: TimedLibrary) -> Iterator[str]:
    for name, (version, tested) in library.versions.items():
        # +cpu and its like say how it was built.
        differs = version.partition("+")[0] != tested
        yield f"{name}{_NBSP}{version}" + (f" (tested{_NBSP}with{_NBSP}{tested})" if differs else "")


def _write_findings(page: Page, title: str, found: Sequence[Finding], colour: str) -> None:
    page.line()
    page.line(title, colour)
    for finding in found:
        page.wrapped(finding.text, "  - ")
        if finding.fix:
            # To be copied: never broken.
            page.line(f"      {finding.fix}", BOLD)
