"""Text and tables of a terminal: no colour value is written here, those of stages are read from where pages have them."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from rich.table import Table
from rich.text import Text

from .. import dashboard
from ..dashboard.design_tokens import hue

FULL, SHADED = "\u2588", "\u2592"

_TOKEN = re.compile(r"--st-(\w+): light-dark\(#\w+, (#\w{6})\)")
# Fonts of terminals have no narrow space, in Markdown nobody looks for one, and nothing breaks a line but we.
_SPACES = str.maketrans("\u202f\u00a0", "  ")


def plain(said: str) -> str:
    """Return *said*, numbers as `dashboard.format` has them, with ordinary spaces."""
    return said.translate(_SPACES)


def text(said: str, style: str = "") -> Text:
    """Return *said*, numbers as `dashboard.format` has them, for a terminal."""
    return Text(plain(said), style)


def table(first: str, *numbers: str) -> Table:
    """Return a table without lines: a column of names, which alone give way where room is short, and *numbers* at the right."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    made.add_column(first, overflow="ellipsis")
    for name in numbers:
        made.add_column(name, justify="right", no_wrap=True)
    return made


def colour(stage: str) -> str:
    """Return the colour of *stage* on a dark ground, which most terminals have and the others bear.

    >>> colour("queue")
    '#EDA227'
    """
    return _hues()[hue(stage)]


@cache
def _hues() -> dict[str, str]:
    tokens = Path(dashboard.__path__[0]) / "assets" / "tokens.css"
    return dict(_TOKEN.findall(tokens.read_text(encoding="utf-8")))
