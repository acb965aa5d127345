"""What was found, as plain text: 80 columns, and colours where a person reads."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator, Sequence
from typing import TextIO

from .environment import Finding, Look
from .listing import Timed, not_timed, timed
from .live_run import Watched

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
        """Write *text* in as many lines as it takes, the first behind *lead*; what cannot be broken stays whole."""
        indent = " " * len(lead)
        for part in textwrap.wrap(
            text, WIDTH, initial_indent=lead, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        ):
            self.line(part.replace(_NBSP, " "))


def tell(page: Page, look: Look, found: Sequence[Finding], watched: Watched | None = None) -> None:
    """Write what is timed, what was when it ran, what is in the way, and what would give more."""
    _who(page, look)
    _libraries(page, look)
    if watched is not None:
        page.line()
        page.line(f"Run for {watched.seconds:.0f} s, in processes of Python we were in: {watched.processes}")
        page.wrapped(
            ", ".join(f"{title} ({count})" for title, count in watched.libraries.items()), "  imported there: "
        )
    hurting, rest = [one for one in found if one.hurts], [one for one in found if not one.hurts]
    if hurting:
        _findings(page, "In the way:", hurting, RED)
    if rest:
        _findings(page, "Worth knowing:", rest, YELLOW)
    page.line()
    if hurting:
        page.line(f"{len(hurting)} in the way", RED, BOLD)
    else:
        page.line("Nothing is in the way.", GREEN, BOLD)


def _who(page: Page, look: Look) -> None:
    found = look.interpreter
    if found is not None:
        version = ".".join(map(str, found.version))
        with_us = f", stagelens {found.stagelens['version']}" if "version" in found.stagelens else ""
        page.line(f"{look.target.name}: Python {version}{with_us}", BOLD)
        page.line(f"  {found.executable}")


def _libraries(page: Page, look: Look) -> None:
    libraries = list(timed(look))
    certain = [library for library in libraries if library.certain]
    width = max((len(library.title) for library in certain), default=0)
    if certain:
        page.line()
        page.line("Timed by itself:" if look.sources.trees else "Timed by itself, where it is imported:")
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
    for name, version in not_timed(look).items():
        page.line()
        page.line(f"Not timed by itself: {name} {version}")
        page.line(f"      stagelens run --stage forward=MODULE:FUNCTION -- {look.target.name} …", BOLD)


def _versions(library: Timed) -> Iterator[str]:
    for name, (version, tested) in library.versions.items():
        # +cpu and its like say how it was built.
        differs = version.partition("+")[0] != tested
        yield f"{name}{_NBSP}{version}" + (f" (tested{_NBSP}with{_NBSP}{tested})" if differs else "")


def _findings(page: Page, title: str, found: Sequence[Finding], colour: str) -> None:
    page.line()
    page.line(title, colour)
    for finding in found:
        page.wrapped(finding.text, "  - ")
        if finding.cure:
            # To be copied: never broken.
            page.line(f"      {finding.cure}", BOLD)
