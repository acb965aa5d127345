"""Conversion of untrusted objects into text and numbers that are printable, short, and within the limits of the wire format."""

from __future__ import annotations

import math
from typing import Any, Final

# Maximum of an OTLP integer, which has 64 bits: the collector refuses the whole export if one integer is larger.
MAX_INTEGER: Final = 2**63 - 1
# Maximum length of a name from the user's code. [characters]
MAX_TEXT: Final = 200
_MAX_DIGITS = 18


def printable(text: str) -> str:
    r"""Return *text* with each unprintable character replaced by U+FFFD.

    >>> printable("a\x00b")
    'a�b'
    """
    return text if text.isprintable() else "".join(char if char.isprintable() else "\ufffd" for char in text)


class PairKey:
    """Key of two texts with a separator between them, which the first one does not contain.

    >>> key = PairKey(":")
    >>> key("gc", "forward"), key.split("gc:forward"), key.split("gc")
    ('gc:forward', ('gc', 'forward'), ('gc', ''))
    """

    def __init__(self, separator: str) -> None:
        self._separator = separator

    def __call__(self, first: str, second: str) -> str:
        return f"{first}{self._separator}{second}"

    def split(self, key: str) -> tuple[str, str]:
        first, _, second = key.partition(self._separator)
        return first, second


def to_text(value: object) -> str:
    """Return *value* as printable text of at most `MAX_TEXT` characters; "" if the conversion fails. Never raises."""
    try:
        return "" if value is None else printable(str(value)[:MAX_TEXT])
    except Exception:  # noqa: BLE001 - the conversion of a foreign object may raise anything
        return ""


def truncated_percent(ratio: float, target: float = 0.0) -> str:
    """Return a share of good requests in percent, truncated, so that it reaches *target* only if the share does.

    >>> truncated_percent(0.99996), truncated_percent(0.999956, target=0.99995), truncated_percent(1.0)
    ('99.99', '99.995', '100.00')
    """
    digits = max(2, len(f"{target * 100:.8g}".partition(".")[2]))
    return f"{math.floor(round(ratio * 100 * 10**digits, 6)) / 10**digits:.{digits}f}"


def is_whole_number(text: str) -> bool:
    """Return whether *text* is a number of at most 18 digits, as a 64-bit integer has; `int` fails for more than 4300 of them.

    >>> is_whole_number("42"), is_whole_number("9" * 5000), is_whole_number("²")
    (True, False, False)
    """
    return len(text) <= _MAX_DIGITS and text.isascii() and text.isdecimal()


def to_integer(value: Any) -> int:
    """Return *value* as an integer from 0 to `MAX_INTEGER`; 0 if it is not a number. Never raises."""
    try:
        return min(max(0, int(value or 0)), MAX_INTEGER)
    except Exception:  # noqa: BLE001 - the conversion of a foreign object may raise anything
        return 0
