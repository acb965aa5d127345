"""Text of numbers, times and durations in notifications, and truncation to the limits of receivers.

Numbers have three significant digits, a true minus sign and written-out units.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

_BARS = "▁▂▃▄▅▆▇█"
TIMES, MINUS = "\N{MULTIPLICATION SIGN}", "\N{MINUS SIGN}"
# Half of the last digit of the smallest unit. [seconds]
_SHOWN = 5e-9
_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86_400.0


def cut(text: str, limit: int) -> str:
    """Return *text* with at most *limit* characters, never ending within an escape such as `&amp;`.

    >>> cut("ab&amp;cd", 8), cut("ab&amp;cd", 6)
    ('ab&amp;…', 'ab…')
    """
    if len(text) <= limit:
        return text
    prefix = text[: limit - 1]
    start = prefix.rfind("&")
    if start != -1 and ";" not in prefix[start:]:
        prefix = prefix[:start]
    return prefix + "…"


def line(text: str, limit: int) -> str:
    r"""Return *text* as one line of at most *limit* characters, without control characters.

    >>> line("a\r\nBcc: b", 80), line("too long", 5)
    ('a Bcc: b', 'too …')
    """
    printable = "".join(character if character.isprintable() else " " for character in text)
    return cut(" ".join(printable.split()), limit)


def sparkline(values: Sequence[float | None], widest: int = 30) -> str:
    """Return *values* as a row of at most *widest* bars, scaled from zero to the highest value; None becomes a space.

    >>> sparkline((0.0, 1.0, None, 4.0, 8.0))
    '▁▁ ▄█'
    """
    step = math.ceil(len(values) / widest) if values else 1
    # From the end, so that the last bar covers a full step.
    ends = range(len(values), 0, -step)
    groups = [[value for value in values[max(0, end - step) : end] if value is not None] for end in ends][::-1]
    top = max((max(group) for group in groups if group), default=0.0)
    return "".join(_bar(max(group), top) if group else " " for group in groups)


def _bar(value: float, top: float) -> str:
    share = value / top if top > 0 else 0.0
    return _BARS[max(0, min(round(share * len(_BARS)), len(_BARS)) - 1)]


def percent(ratio: float) -> str:
    """Return *ratio* in percent without insignificant digits.

    >>> percent(0.999), percent(0.92), percent(0.034), percent(0.00012)
    ('99.9 %', '92 %', '3.4 %', '0.012 %')
    """
    value = 100 * ratio
    # Near 100 the distance from 100 decides the digits: 99.95 must not become 100.
    distance = min(abs(value), abs(100 - value)) if value > 50 else abs(value)  # noqa: PLR2004 - nearer to 100 than to 0
    digits = 0 if distance == 0 else max(0, 1 - math.floor(math.log10(distance)))
    text = f"{value:.{min(digits, 6)}f}"
    return f"{_trim(text)} %".replace("-", MINUS)


def times(factor: float) -> str:
    """Return a burn rate as a factor with one decimal at most, followed by a multiplication sign."""
    text = f"{factor:.0f}" if factor >= 20 else _trim(f"{factor:.1f}")  # noqa: PLR2004 - 14.4 is a known threshold
    return text + TIMES


def duration(length: timedelta) -> str:
    """Return *length* as text in a suitable unit.

    >>> duration(timedelta(milliseconds=250)), duration(timedelta(minutes=90)), duration(timedelta(days=30))
    ('250 ms', '90 minutes', '30 days')
    """
    seconds = length.total_seconds()
    if seconds < _MINUTE:
        return latency(seconds)
    for size, unit in ((_DAY, "day"), (_HOUR, "hour"), (_MINUTE, "minute")):
        if seconds >= 2 * size or size in (seconds, _MINUTE):
            count = round(seconds / size)
            return f"{count} {unit}" if count == 1 else f"{count} {unit}s"
    raise AssertionError  # minutes cover all other lengths


def latency(seconds: float, *, signed: bool = False) -> str:
    """Return a latency as text; *signed* adds a plus sign, for a change of latency.

    >>> latency(0.1804), latency(0.0000312), latency(1.5, signed=True)
    ('180 ms', '31.2 µs', '+1.5 s')
    """
    value, unit = in_unit(seconds)
    return f"{MINUS if value < 0 else '+' if signed and value else ''}{_three_digits(abs(value))} {unit}"


def in_unit(seconds: float) -> tuple[float, str]:
    """Return *seconds* rounded to three digits in a fitting unit; less than 5 ns is zero, because no page shows it.

    >>> in_unit(0.1804), in_unit(0.9999), in_unit(-1e-9)
    ((180.0, 'ms'), (1.0, 's'), (0.0, 'ms'))
    """
    for factor, unit in ((1e6, "µs"), (1e3, "ms"), (1.0, "s")):
        value = float(f"{seconds * factor:.3g}")
        if abs(value) < 1000 or unit == "s":  # noqa: PLR2004 - SI steps
            break
    return (value, unit) if abs(seconds) >= _SHOWN else (0.0, "ms")


def count(number: float) -> str:
    """Return a number of requests as text.

    >>> count(8), count(12_340), count(8_840_000)
    ('8', '12,340', '8.84M')
    """
    size = abs(number)
    text = f"{_three_digits(size / 1e6)}M" if size >= 1e6 else f"{size:,.0f}"  # noqa: PLR2004 - SI step
    return f"{MINUS}{text}" if number < 0 and text != "0" else text


def moment(at: datetime) -> str:
    """Return time and date in UTC as text with the time zone, because readers may be in any time zone.

    >>> moment(datetime(2026, 11, 20, 3, 4, tzinfo=UTC))
    '03:04 UTC on 20 November'
    """
    at = at.astimezone(UTC)
    return f"{at:%H:%M} UTC on {at.day} {at:%B}"


def moment_of(seconds: float) -> str:
    """Return the text of `moment` for a time in Unix seconds."""
    return moment(datetime.fromtimestamp(seconds, UTC))


def iso_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def whole(ratio: float) -> float:
    """Round *ratio* to whole percent, unless it is below one percent."""
    return round(ratio, 2) if ratio >= 0.01 else ratio  # noqa: PLR2004 - one percent


def share_text(share: float) -> str:
    """Return a share as text, at most 100 %; a share above 1 occurs when other parts shrank.

    >>> share_text(0.92), share_text(0.998), share_text(1.02)
    ('92 %', '100 %', '100 %')
    """
    return percent(min(whole(share), 1.0))


def _three_digits(value: float) -> str:
    digits = max(0, 2 - math.floor(math.log10(value))) if value > 0 else 0
    return _trim(f"{value:.{digits}f}")


def _trim(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text
