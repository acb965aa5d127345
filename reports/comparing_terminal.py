"""A comparison on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..core.stages import label
from . import comparing_words as words
from .comparison import Contrast
from .difference import Difference
from .words import FULL, colour, table, text

_OUTCOMES = {"passed": "green", "failed": "bold red", "unknown": "yellow"}
# What the table of stages takes; a log has no width of its own. [columns]
_NARROWEST = 120
# Which columns of it stand beside each other: all, or first the requests at the percentile, then each stage's own.
_WHOLE, _FOLDED = (slice(1, None),), (slice(1, 5), slice(5, None))


def show(contrast: Contrast, out: Console) -> None:
    """Print *contrast* on *out*."""
    if not out.is_terminal:
        out.width = max(out.width, _NARROWEST)
    for name, side, counted in zip("AB", (contrast.a, contrast.b), words.counted(contrast), strict=True):
        out.print(text(f"{name}  {side.name}  {counted}"), highlight=False)
    out.print()
    out.print(text(words.verdict(contrast), "bold"), highlight=False)
    for warning in words.warnings(contrast):
        out.print(text(warning, "yellow"), highlight=False)
    out.print()
    out.print(_differences(words.LATENCY_HEAD, ((words.latency_row(each), each) for each in contrast.latency)))
    out.print()
    tokens = _differences(words.ANSWERS_HEAD, words.answers_rows(contrast))
    if tokens.rows:
        out.print(tokens)
        out.print()
    for columns in _WHOLE if out.width >= _NARROWEST else _FOLDED:
        out.print(_stages(contrast, columns))
        out.print()
    for each in contrast.judged:
        limit, outcome, why = words.judgement(each)
        out.print(
            Text.assemble(text(f"{outcome:<12}", _OUTCOMES[each.outcome]), f"{limit}  ", text(why, "dim")),
            highlight=False,
        )


def _stages(contrast: Contrast, columns: slice) -> Table:
    head = words.stage_head(contrast)
    made = table(head[0], *head[columns])
    for each in contrast.stages:
        name = Text.assemble(text(f"{FULL} ", colour(each.stage)), label(each.stage))
        made.add_row(name, *words.stage_row(contrast, each)[columns])
    return made


def _differences(head: Sequence[str], rows: Iterable[tuple[Sequence[str], Difference]]) -> Table:
    """Return a table in which what may be chance is dim."""
    made = table(*head)
    for cells, found in rows:
        made.add_row(*cells, style="" if found.is_clear else "dim")
    return made
