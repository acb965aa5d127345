"""The axes of a chart: where a moment and a value stand, and the round numbers that are written beside them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

_MINUTE, _DAY = 60, 86_400
# So many fit beside each other. [count]
_MOST_LEVELS, _MOST_MOMENTS = 4, 7
# Steps of a clock; longer ones are whole days. [minutes]
_CLOCK_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720)


@dataclass(frozen=True, slots=True)
class Scale:
    """A window of time and of values, from zero up, laid over a box.

    Args:
        start: When the window begins. [Unix seconds]
        end: When it ends. [Unix seconds]
        highest: What must fit into it; above zero.
        box: Left, top, right and bottom edge. [units of the picture]
    """

    start: float
    end: float
    highest: float
    box: tuple[float, float, float, float]

    def x(self, at: float) -> float:
        """Return where *at* (Unix seconds) stands; what lies outside stands at the edge."""
        left, _, right, _ = self.box
        return left + (right - left) * min(1.0, max(0.0, (at - self.start) / (self.end - self.start)))

    def y(self, value: float) -> float:
        """Return where *value* stands."""
        _, top, _, bottom = self.box
        return bottom - (bottom - top) * value / (self.levels()[-1])

    def levels(self) -> list[float]:
        """Return the round values that are written, from zero to the first that nothing passes."""
        step = _round_up(self.highest / _MOST_LEVELS)
        return [step * number for number in range(math.ceil(self.highest / step - 1e-9) + 1)]

    def moments(self) -> Iterator[tuple[float, str]]:
        """Yield the round moments that are written, in Unix seconds, with what is written: a time in UTC, or a day."""
        step = _time_step(self.end - self.start)
        number = math.ceil(self.start / step)
        while number * step <= self.end:
            at = datetime.fromtimestamp(number * step, UTC)
            is_midnight = number * step % _DAY == 0
            yield number * step, f"{at.day} {at:%b}" if is_midnight else f"{at:%H:%M}"
            number += 1


def _round_up(size: float) -> float:
    """Return the next number that begins with 1, 2 or 5.

    >>> _round_up(7.2), _round_up(0.031), _round_up(20)
    (10.0, 0.05, 20.0)
    """
    unit = 10.0 ** math.floor(math.log10(size))
    return next(unit * lead for lead in (1, 2, 5, 10) if unit * lead >= size * (1 - 1e-9))


def _time_step(length: float) -> int:
    """Return how far apart the moments of a window of *length* stand, both in seconds.

    >>> _time_step(30 * 60), _time_step(86_400), _time_step(20 * 86_400)
    (300, 21600, 259200)
    """
    for minutes in _CLOCK_STEPS:
        if length <= _MOST_MOMENTS * minutes * _MINUTE:
            return minutes * _MINUTE
    return _DAY * math.ceil(length / _DAY / _MOST_MOMENTS)
