"""Texts cut to what a receiver takes, so that what is left is still valid and still says the beginning."""

from __future__ import annotations

import math
from collections.abc import Sequence


def cut(text: str, limit: int) -> str:
    """Return *text* with at most *limit* characters, never ending within an escape such as `&amp;`.

    >>> cut("ab&amp;cd", 8), cut("ab&amp;cd", 6)
    ('ab&amp;…', 'ab…')
    """
    if len(text) <= limit:
        return text
    kept = text[: limit - 1]
    start = kept.rfind("&")
    if start != -1 and ";" not in kept[start:]:
        kept = kept[:start]
    return kept + "…"


def line(text: str, limit: int) -> str:
    r"""Return *text* as one line of at most *limit* characters, without characters that end or hide one.

    >>> line("a\r\nBcc: b", 80), line("too long", 5)
    ('a Bcc: b', 'too …')
    """
    printable = "".join(each if each.isprintable() else " " for each in text)
    return cut(" ".join(printable.split()), limit)


def sparkline(values: Sequence[float | None], widest: int = 30) -> str:
    """Return *values* as a row of at most *widest* bars, from zero to the highest; a space where there is none.

    >>> sparkline((0.0, 1.0, None, 4.0, 8.0))
    '▁▁ ▄█'
    """
    step = math.ceil(len(values) / widest) if values else 1
    # From the end, so that the last bar is always of as many as the others.
    ends = range(len(values), 0, -step)
    groups = [[value for value in values[max(0, end - step) : end] if value is not None] for end in ends][::-1]
    top = max((max(group) for group in groups if group), default=0.0)
    return "".join(_bar(max(group), top) if group else " " for group in groups)


_BARS = "▁▂▃▄▅▆▇█"


def _bar(value: float, top: float) -> str:
    share = value / top if top > 0 else 0.0
    return _BARS[max(0, min(round(share * len(_BARS)), len(_BARS)) - 1)]
