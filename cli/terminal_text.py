"""Styled text and tables for terminals; the colours of stages come from the dashboard's design tokens."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from rich.table import Table
from rich.text import Text

from .. import dashboard
from ..dashboard.ui.design_tokens import hue

FULL, SHADED = "\u2588", "\u2592"

_TOKEN = re.compile(r"--st-(\w+): light-dark\(#\w+, (#\w{6})\)")
# Terminal fonts have no narrow space, and lines are broken only here.
_SPACES = str.maketrans("\u202f\u00a0", "  ")


def ordinary_spaces(text: str) -> str:
    """Return *text* with the special spaces of `dashboard.ui.format` replaced by ordinary ones."""
    return text.translate(_SPACES)


def styled(text: str, style: str = "") -> Text:
    """Return *text*, a text of `dashboard.ui.format`, as styled text for a terminal."""
    return Text(ordinary_spaces(text), style)


def plain_table(first: str, *numbers: str) -> Table:
    """Return a table without lines: a column of names, truncated in narrow terminals, and right-aligned *numbers*."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    made.add_column(first, overflow="ellipsis")
    for name in numbers:
        made.add_column(name, justify="right", no_wrap=True)
    return made


def stage_colour(stage: str) -> str:
    """Return the colour of *stage* for dark backgrounds, which is legible on light ones, too.

    >>> stage_colour("queue")
    '#EDA227'
    """
    return _hue_colours()[hue(stage)]


@cache
def _hue_colours() -> dict[str, str]:
    tokens = Path(dashboard.__path__[0]) / "assets" / "tokens.css"
    return dict(_TOKEN.findall(tokens.read_text(encoding="utf-8")))
