"""Number formats: three significant digits, a unit by magnitude, a thin space before the unit, a true minus sign.

Every number on a page is formatted here, so that tiles, charts and tables show the same value in the same way. Unknown values
(None or NaN) are an en dash, zero is `0`.
"""

from __future__ import annotations

import math
from datetime import datetime, timedelta, tzinfo

from ...alerts.formatting import MINUS, TIMES, in_unit
from ...core.settings.values import format_size
from ...core.text import truncated_percent

# U+202F, the narrow no-break space of ISO 31-0 between a number and its unit.
THIN = "\u202f"
# U+00A0 prevents a line break in `1 m 12 s`, and separates its two numbers.
SPACE = "\u00a0"
UNKNOWN = "\u2013"

# Smaller changes are noise and are shown in grey.
SMALL_CHANGE = 0.03
# From this ratio on, changes are written as factors instead of percentages.
MANIFOLD = 9.0

MILLI = 1e-3
# A larger factor says only that the value before was nearly zero.
MAX_FACTOR = 100.0
# Highest rank with two decimals; p100 would mean that nothing is slower.
_HIGHEST_RANK = 99.99
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def split_duration(seconds: float | None) -> tuple[str, str]:
    """Return *seconds* as separate number and unit, for tiles with a smaller unit.

    >>> split_duration(0.2194)
    ('219', 'ms')
    """
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN, ""
    if round(abs(seconds), 1) >= 60:  # noqa: PLR2004 - sixty seconds are a minute
        return _signed(_long(round(seconds))), ""
    value, unit = in_unit(seconds)
    return (_three(value) if value else "0"), unit


def duration(seconds: float | None, *, sign: bool = False) -> str:
    r"""Return *seconds* with three significant digits and a fitting unit.

    >>> duration(0.0402), duration(8.18), duration(72), duration(0.0000015)
    ('40.2\u202fms', '8.18\u202fs', '1\u202fm\xa012\u202fs', '1.50\u202fµs')
    """
    number, unit = split_duration(seconds)
    text = f"{number}{THIN}{unit}" if unit else number
    return f"+{text}" if sign and seconds is not None and seconds > 0 and number != "0" else text


def interval(low: float, high: float) -> str:
    r"""Return the range of a duration, with the unit written once where both ends share it.

    >>> interval(0.25, 0.5), interval(0.5, 1)
    ('250\u2013500\u202fms', '500\u202fms\u20131.00\u202fs')
    """
    (first, unit), (last, other) = split_duration(low), split_duration(high)
    return f"{first}{UNKNOWN}{last}{THIN}{unit}" if unit == other else f"{duration(low)}{UNKNOWN}{duration(high)}"


def axis_duration(seconds: float) -> str:
    """Return *seconds* as the label of an axis tick: no trailing zeros, `0` for zero.

    >>> axis_duration(0.2), axis_duration(0), axis_duration(1.5)
    ('200\u202fms', '0', '1.5\u202fs')
    """
    size = abs(seconds)
    if size == 0:
        return "0"
    if size >= 60:  # noqa: PLR2004 - sixty seconds are a minute
        return _signed(_long(round(seconds)))
    factor, unit = (1e6, "µs") if size < MILLI else (1e3, "ms") if size < 1 else (1.0, "s")
    return _signed(f"{float(f'{seconds * factor:.4g}'):g}") + THIN + unit


def count(value: float | None) -> str:
    """Return a count or rate with three digits and an SI prefix.

    >>> count(8_840_000), count(392), count(0.25), count(1580)
    ('8.84M', '392', '0.25', '1.58k')
    """
    if value is None or not math.isfinite(value):
        return UNKNOWN
    for factor, prefix in _PREFIXES:
        if abs(value) >= factor * 0.9995:
            return _three(value / factor) + prefix
    return _signed(f"{float(f'{value:.3g}'):g}")


def money(amount: float | None, currency: str) -> str:
    r"""Return an amount with three digits, with the currency sign before it or the currency code after it.

    >>> money(4.85, "$"), money(1234.5, "EUR"), money(0.004321, "$"), money(0, "$")
    ('$4.85', '1.23k\u202fEUR', '$0.00432', '$0')
    """
    if amount is None or not math.isfinite(amount):
        return UNKNOWN
    size = abs(amount)
    text = f"{float(f'{size:.3g}'):.6g}" if size < 1 else count(size) if size >= 1000 else _three(size)  # noqa: PLR2004 - SI prefixes start at a thousand
    sign = MINUS if amount < 0 else ""
    return f"{sign}{text}{THIN}{currency}" if currency.isalpha() else f"{sign}{currency}{text}"


def whole(value: int) -> str:
    """Return an integer count with all digits, in groups of three.

    >>> whole(10000)
    '10,000'
    """
    return f"{value:,}"


def several(number: int, one: str) -> str:
    """Return a count with all digits and its noun, in the plural unless the count is one.

    >>> several(1, "request"), several(0, "step")
    ('1 request', '0 steps')
    """
    return f"{whole(number)} {one if number == 1 else one + 's'}"


def percent(ratio: float | None, decimals: int = 0) -> str:
    """Return *ratio* as a percentage: 0 decimals for shares, 2 for error rates and attainment.

    >>> percent(0.9931, 2), percent(0.63)
    ('99.31\u202f%', '63\u202f%')
    """
    if ratio is None or not math.isfinite(ratio):
        return UNKNOWN
    return _signed(f"{ratio * 100:.{decimals}f}") + THIN + "%"


def portion(share: float) -> str:
    """Return the share of a change, at most 100 %; larger ones occur if other parts changed in the other direction.

    >>> portion(0.92), portion(1.02)
    ('92\u202f%', '100\u202f%')
    """
    return percent(min(share, 1.0))


def target(ratio: float) -> str:
    """Return the target of an objective with the digits of the SLO file.

    >>> target(0.99), target(0.999)
    ('99\u202f%', '99.9\u202f%')
    """
    return f"{ratio * 100:.6g}{THIN}%"


def attained(ratio: float | None, target: float = 0.0) -> str:
    """Return the attainment of *target*, truncated instead of rounded: 99.996 % is not 100 %.

    >>> attained(0.99996), attained(1.0)
    ('99.99\u202f%', '100.00\u202f%')
    """
    if ratio is None or not math.isfinite(ratio):
        return UNKNOWN
    return f"{truncated_percent(ratio, target)}{THIN}%"


def change(ratio: float | None, *, certain: bool = True) -> str:
    """Return a relative change with its arrow; below 3 %, or if it is not *certain*, with `±`.

    >>> change(0.83), change(-0.07), change(0.02), change(0.4, certain=False)
    ('▲\u202f83\u202f%', '▼\u202f7\u202f%', '±\u202f2\u202f%', '±\u202f40\u202f%')
    """
    if ratio is None or not math.isfinite(ratio):
        return UNKNOWN
    mark = "±" if abs(ratio) < SMALL_CHANGE or not certain else "▲" if ratio > 0 else "▼"
    return f"{mark}{THIN}{factor(1 + ratio) if ratio >= MANIFOLD else percent(abs(ratio))}"


def signed_change(ratio: float | None) -> str:
    """Return a relative change with a sign; from tenfold on, a factor.

    >>> signed_change(1.38), signed_change(56.63) == "58" + TIMES
    ('+138\u202f%', True)
    """
    if ratio is not None and ratio >= MANIFOLD:
        return factor(1 + ratio)
    return ("+" if ratio and round(ratio, 2) > 0 else "") + percent(ratio)


def factor(ratio: float) -> str:
    """Return the factor of a change; of a value that was nearly zero before, only that it is large.

    >>> factor(14.2) == "14" + TIMES, factor(155_324) == "> 100" + TIMES
    (True, True)
    """
    return times(ratio) if ratio <= MAX_FACTOR else f"> {MAX_FACTOR:.0f}{TIMES}"


def times(ratio: float | None) -> str:
    """Return the factor from one value to another.

    >>> times(3.94) == "3.9" + TIMES, times(14.2) == "14" + TIMES
    (True, True)
    """
    if ratio is None or not math.isfinite(ratio):
        return UNKNOWN
    return (f"{ratio:.1f}" if abs(ratio) < 9.95 else f"{ratio:.0f}") + TIMES  # noqa: PLR2004 - no decimals from ten on


def percentile(quantile: float) -> str:
    """Return the name of the percentile *quantile*.

    >>> percentile(0.99), percentile(0.999), percentile(0.5)
    ('p99', 'p99.9', 'p50')
    """
    return f"p{float(f'{quantile * 100:.6g}'):g}"


def rank(quantile: float | None) -> str:
    """Return a rank in a distribution, capped at the resolution of the histogram.

    >>> rank(0.99943), rank(0.61), rank(1.0)
    ('p99.94', 'p61', 'p99.99')
    """
    if quantile is None or not math.isfinite(quantile):
        return UNKNOWN
    # Truncated, not rounded: p98.97 is not p99.
    digits = 2 if quantile >= 0.99 else 1 if quantile >= 0.95 else 0  # noqa: PLR2004 - one more digit for each nine
    cut = min(math.floor(quantile * 100 * 10**digits + 1e-9) / 10**digits, _HIGHEST_RANK)
    return f"p{cut:g}"


def span(length: timedelta) -> str:
    r"""Return a duration, such as a window or an age, in its one or two largest units.

    >>> span(timedelta(hours=6)), span(timedelta(seconds=90)), span(timedelta(days=30))
    ('6\u202fh', '1\u202fm\xa030\u202fs', '30\u202fd')
    """
    return _long(round(length.total_seconds()))


def size(size_bytes: float | None) -> str:
    r"""Return a size in bytes with a fitting unit.

    >>> size(10 * 1024**3)
    '10\u202fGiB'
    """
    return UNKNOWN if size_bytes is None else format_size(size_bytes).replace(" ", THIN)


def megahertz(hertz: float) -> str:
    r"""Return the clock of a device.

    >>> megahertz(1.755e9)
    '1,755\u202fMHz'
    """
    return f"{hertz / 1e6:,.0f}{THIN}MHz"


def day(at: datetime) -> str:
    """Return the date and the minute of *at*, such as `14 Nov 15:39`."""
    return at.strftime("%-d %b %H:%M")


def time_range(start: datetime, end: datetime, zone: tzinfo, to: str = " to ") -> str:
    """Return a time range in *zone*: `14 Nov 15:39 to 18:20`; with the names of the clocks if they change meanwhile."""
    first, last = start.astimezone(zone), end.astimezone(zone)
    name = " %Z" if first.utcoffset() != last.utcoffset() else ""
    ended = "%H:%M" if first.date() == last.date() else "%-d %b %H:%M"
    return f"{first.strftime('%-d %b %H:%M' + name)}{to}{last.strftime(ended + name)}"


def _three(value: float) -> str:
    rounded = float(f"{value:.3g}")
    decimals = 0 if abs(rounded) >= 100 else 1 if abs(rounded) >= 10 else 2  # noqa: PLR2004 - three significant digits
    return _signed(f"{rounded:.{decimals}f}")


def _long(seconds: int) -> str:
    parts: list[str] = []
    left = abs(seconds)
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "m"), (1, "s")):
        amount, left = divmod(left, size)
        if amount:
            parts.append(f"{amount}{THIN}{unit}")
        if parts and (len(parts) == 2 or not left):  # noqa: PLR2004 - two units are precise enough
            break
    return ("-" if seconds < 0 else "") + SPACE.join(parts) if parts else f"0{THIN}s"


def _signed(text: str) -> str:
    return text.replace("-", MINUS if text.strip("-0.") else "")
