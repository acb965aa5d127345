"""Attributes of finished requests: the values by which they are counted, and how many requests ran when each one arrived.

A request draws the number of its arrival; those that had ended before are counted by the time of their end. Requests that have not
ended when their generation is ten minutes old are no longer counted: a generator that the user forgot never ends.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Mapping
from typing import Any

from ...core import attributes
from ...core.attributes import CALLER, Attribute, band_of
from ...core.request_histograms import AttributeLimits
from ...core.text import MAX_INTEGER, to_integer, to_text
from ..records import ATTRIBUTE
from ..trace_context import caller_of

# A few seconds of the fastest service; of requests that started before, the concurrency is not known.
MAX_ENDS = 16_384
GENERATION_SECONDS, MAX_GENERATIONS = 60.0, 10
# Longer sizes are mistakes.
MAX_DIGITS = 18
# Limit of the texts whose value is looked up instead of computed.
MAX_KNOWN = 1000
# Attributes of requests that are whole numbers, by fact, with their lowest number: an unknown batch size or number of tokens is 0.
NUMBERS = {
    "@request_size": (attributes.REQUEST_SIZE, 0),
    "@response_size": (attributes.RESPONSE_SIZE, 0),
    "@batch": (attributes.BATCH_SIZE, 1),
    "@tokens_in": (attributes.INPUT_TOKENS, 1),
    "@tokens_out": (attributes.OUTPUT_TOKENS, 1),
    "@queue_length": (attributes.QUEUE_LENGTH, 0),
}
_NOTHING: Mapping[str, str] = {}


class Arrivals:
    def __init__(self) -> None:
        # Ends of requests in order of time, and the number of earlier ones. [nanoseconds by `clock`]
        self._ends: list[int] = []
        self._earlier = 0
        # Requests that are no longer counted although their end is not known.
        self._uncounted = 0
        # First number of each generation, and the number of its requests that have ended; oldest first.
        self._generations: deque[list[int]] = deque([[0, 0]])
        self._next_number = 0
        self._since: float | None = None

    def end(self, number: int, ended: int) -> None:
        if number >= self._next_number:
            self._next_number = number + 1
        for generation in reversed(self._generations):
            if number >= generation[0]:
                generation[1] += 1
                break
        else:
            # It was no longer counted, and has ended after all.
            self._uncounted -= 1
        ends = self._ends
        if not ends or ended >= ends[-1]:
            ends.append(ended)
        else:
            insort(ends, ended)
        if len(ends) > MAX_ENDS:
            self._earlier += MAX_ENDS // 2
            del ends[: MAX_ENDS // 2]

    def drop(self, count: int) -> None:
        self._uncounted += count
        self._generations[-1][1] += count

    def running(self, number: int, started: int) -> int | None:
        """Return how many requests ran when request *number* started, itself included; None if it started too long ago."""
        if self._earlier and started < self._ends[0]:
            return None
        return max(1, number + 1 - self._earlier - bisect_right(self._ends, started) - self._uncounted)

    def age(self, now: float) -> None:
        if self._since is None:
            self._since = now
        if now - self._since < GENERATION_SECONDS:
            return
        self._since = now
        self._generations.append([self._next_number, 0])
        if len(self._generations) > MAX_GENERATIONS:
            first, ended = self._generations.popleft()
            self._uncounted += self._generations[0][0] - first - ended


def attribute_values(facts: Mapping[str, Any], running: int | None, limits: AttributeLimits) -> list[tuple[str, str]]:
    get = facts.get
    values: list[tuple[str, str]] = [] if running is None else [_CONCURRENCY[running.bit_length()]]
    for fact, bands, lowest in _BANDS:
        number = get(fact)
        if number is None:
            continue
        if type(number) is not int or number > MAX_INTEGER:
            number = to_size(number)
        if number >= lowest:
            values.append(bands[number.bit_length()])
    header = get("@caller")
    if header is None and ATTRIBUTE not in facts:
        return values
    cached_text = limits.known.get
    texts: list[tuple[str, str]] = []
    if header is not None:
        texts.append(cached_text((CALLER.key, header)) or _text(CALLER.key, header, caller_of(header), limits))
    for name, value in get(ATTRIBUTE, _NOTHING).items():
        texts.append(cached_text((name, value)) or _text(name, value, value, limits))
    return values + [text for text in texts if text[1]]


def _text(key: str, given: str, value: str, limits: AttributeLimits) -> tuple[str, str]:
    text = to_text(value)
    shown = key, limits.value(key, text) if text else ""
    if len(limits.known) < MAX_KNOWN:
        limits.known[key, given] = shown
    return shown


def _bands(attribute: Attribute) -> tuple[tuple[str, str], ...]:
    sizes = range(MAX_INTEGER.bit_length() + 1)
    return tuple((attribute.key, band_of(attribute.kind, 1 << bits >> 1)) for bits in sizes)


_CONCURRENCY = _bands(attributes.CONCURRENCY)
_BANDS = [(fact, _bands(attribute), lowest) for fact, (attribute, lowest) in NUMBERS.items()]


def to_size(value: object) -> int:
    """Return the number in *value*, as a header or a library wrote it; -1 for none."""
    if isinstance(value, str):
        return int(value) if value.isascii() and value.isdecimal() and len(value) <= MAX_DIGITS else -1
    return to_integer(value)
