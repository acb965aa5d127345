"""Comparison as Markdown, to paste into a ticket or a chat."""

from __future__ import annotations

import re

from ...core.confidence import has_enough_samples
from ...core.stages import label
from ..ui.format import duration, percentile
from .compare_cards import change_words, total_words
from .comparison import Comparison
from .comparison_text import compared_times, evidence, report_time, verdict_badge, verdict_sentence
from .page import Context
from .scope_filter import part_words
from .trace_rows import records

_MARKED = re.compile(r"([\\`*_\[\]<>|])")


def report(context: Context, judged: Comparison) -> str:
    """Return verdict, evidence, stages and link as Markdown; the reader adds the host to the link."""
    pair = judged.pair
    part = part_words(context.view, context.view.part_of_each_version)
    whose = f"{context.service}, {part}" if part else context.service or ""
    title = f"**{_plain(whose)}: {verdict_sentence(judged)}** ({verdict_badge(context, judged)[0]})"
    sides = [
        f"{side}: {_plain(name)}, {report_time(selection)}"
        for side, name, selection in (("A", pair.a_name, pair.a), ("B", pair.b_name, pair.b))
    ]
    said = [title, " · ".join(_plain(each) for each in evidence(context, judged)), "  \n".join(sides)]
    said += [compared_times(context, pair), _stages(judged)]
    return "\n\n".join([*(each for each in said if each), f"[Open the comparison]({address(context, judged)})"]) + "\n"


def address(context: Context, judged: Comparison) -> str:
    """Return the address of exactly this comparison, stable after newer versions."""
    pair, at = judged.pair, f"{judged.quantile * 100:g}"
    return context.view.link(
        "/compare", svc=context.service, a=pair.a_name, b=pair.b_name, p=at, **context.view.part_of_each_version
    )


def _stages(judged: Comparison) -> str:
    if not has_enough_samples(min(judged.verdict.a_n, judged.verdict.b_n), judged.quantile) or judged.stages.empty:
        return ""
    widest = float(judged.stages["delta_seconds"].abs().max())
    head = ["| Stage | A | B | change at " + percentile(judged.quantile) + " |", "|---|---:|---:|---:|"]
    rows = [
        _line(
            label(str(each["stage"])), float(each["a_seconds"]), float(each["b_seconds"]), float(each["share"]), widest
        )
        for each in records(judged.stages)
    ]
    found = judged.verdict
    foot = f"| **End to end** | {duration(found.a_value)} | {duration(found.b_value)} | {total_words(judged)[0]} |"
    return "\n".join([*head, *rows, foot])


def _line(stage: str, a: float, b: float, share: float, widest: float) -> str:
    return f"| {_plain(stage)} | {duration(a)} | {duration(b)} | {change_words(a, b, share, widest)} |"


def _plain(text: str) -> str:
    r"""Return *text*, which may be user input, with Markdown escaped.

    >>> _plain("a|b")
    'a\\|b'
    """
    return _MARKED.sub(r"\\\1", " ".join(text.split()))
