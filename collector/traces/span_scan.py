"""Vectorized decoding of serialized spans: ids, times, and a key of each span that determines its rule result.

Spans repeat their names, attribute names and relevant values, so these byte strings are numbered (`ByteStrings`), and Python code
runs only for new ones. The key of a span consists of numbers; spans with equal keys have equal rule results. A span with an unusual
encoding is called *odd* and must be decoded alone, as in `otlp.protobuf_encoding`.

Source: opentelemetry/proto/trace/v1/trace.proto.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...core.columns import Bools, Ints
from ..otlp.model import Scalar
from ..otlp.protobuf_encoding import serialized_scalar
from ..otlp.scan import Scan
from .columns import ROW, Flag, Rows

# Longer strings are found in a dictionary, and the longest are not numbered. [bytes]
_WORD_BYTES, _VECTOR_BYTES, _MAX_BYTES = 8, 48, 1024
# Numbered strings of a table, and its cells; few strings share a cell.
_CAPACITY, _CELL_BITS = 4096, 15
# Masks of each word of a string, by its length.
_MASKS = [
    np.array([(1 << 8 * min(max(length - first, 0), 8)) - 1 for length in range(_VECTOR_BYTES + 1)], np.uint64)
    for first in range(0, _VECTOR_BYTES, _WORD_BYTES)
]
# Odd factors of the hash: one for each word, and one for the length.
_FACTORS = np.random.default_rng(1).integers(0, 2**64, len(_MASKS) + 1, np.uint64) | np.uint64(1)
# Classes of attribute names: names that are not valid text, and names of attributes that are irrelevant, or whose presence or
# value, or the class of the value, is relevant.
_INVALID, _IRRELEVANT, _PRESENT, _EXACT, _CLASSIFIED = range(5)
# A path is classified only in a span without a route.
ROUTE, PATHS = "http.route", frozenset({"url.path", "http.target"})
TRACE_BYTES, SPAN_BYTES = 16, 8
# Serialized Status with the code Ok and with the code Error, little-endian.
_OK, _ERROR = 0x0118, 0x0218
_MAX_KIND = 127


class ByteStrings:
    """Numbers of distinct byte strings, found for many strings at once. Thread-safe.

    A hash selects a candidate, and all bytes are compared with it.

    Attributes:
        classes: Class of each number; -1 for the number -1.
    """

    def __init__(self, classify: Callable[[bytes], int] = lambda _: 0) -> None:
        self._classify = classify
        self._lock = threading.Lock()
        self._numbers: dict[bytes, int] = {}
        # The last element of each column belongs to no string.
        self.classes = np.full(_CAPACITY + 1, -1, np.int8)
        self._lengths = np.full(_CAPACITY + 1, -1)
        self._words = np.zeros((len(_MASKS), _CAPACITY + 1), np.uint64)
        self._cells = np.full(1 << _CELL_BITS, -1)

    @property
    def is_full(self) -> bool:
        return len(self._numbers) >= _CAPACITY

    def find(self, scan: Scan, start: Ints, end: Ints) -> Ints:
        """Return the number of each byte string `[start, end)` of *scan*; -1 if it has none, because the table is full."""
        length = end - start
        shown = np.minimum(length, _VECTOR_BYTES)
        # The words beyond the longest string are zero in every string of the same length.
        count = max(-(-int(shown.max(initial=0)) // _WORD_BYTES), 1)
        words = scan.words_at(start, count)
        hashes = length.view(np.uint64) * _FACTORS[-1]
        for index in range(count):
            words[index] &= _MASKS[index].take(shown)
            hashes += words[index] * _FACTORS[index]
        cells = (hashes >> np.uint64(64 - _CELL_BITS)).view(np.int64)
        numbers = self._cells.take(cells)
        same = self._lengths.take(numbers) == length
        for word, stored in zip(words, self._words, strict=False):
            same &= stored.take(numbers) == word
        for row in np.flatnonzero(~same).tolist():
            string = scan.data[int(start[row]) : int(end[row])]
            number = self._numbers.get(string)
            numbers[row] = self._add(string, int(cells[row]), words[:, row]) if number is None else number
        return numbers

    def _add(self, string: bytes, cell: int, words: NDArray[np.uint64]) -> int:
        with self._lock:
            # Another thread may have added it.
            existing = self._numbers.get(string)
            if existing is not None:
                return existing
            number = len(self._numbers)
            if number >= _CAPACITY or len(string) > _MAX_BYTES:
                return -1
            self.classes[number] = self._classify(string)
            if len(string) <= _VECTOR_BYTES and self._cells[cell] < 0:
                self._words[: len(words), number] = words
                self._lengths[number] = len(string)
                # Last, because other threads read without the lock.
                self._cells[cell] = number
            self._numbers[string] = number
            return number


class SpanStrings:
    """Numbers of the strings in the keys of spans.

    Attributes:
        names: Numbers of the names of attributes.
        texts: Numbers of the names of spans and of relevant values.
        attributes: Name of each number of *names*, "" for a name that is not valid text.
    """

    def __init__(
        self,
        exact: Collection[str],
        present: Collection[str],
        classified: Collection[str] = (),
        classify: Callable[[Scalar | None], int] = lambda _: 0,
    ) -> None:
        self._exact, self._present, self._classified = exact, present, classified
        self.names, self.texts = ByteStrings(self._class_of), ByteStrings()
        # Of the classified values, such as paths, there may be many: the table is replaced when it is full.
        self.values = ByteStrings(lambda value: classify(serialized_scalar(value)))
        self.attributes: list[str] = []

    @property
    def is_full(self) -> bool:
        return self.names.is_full or self.texts.is_full or self.values.is_full

    def number_of(self, name: str) -> int:
        return self.attributes.index(name) if name in self.attributes else -1

    def _class_of(self, name: bytes) -> int:
        try:
            text = name.decode()
        except UnicodeDecodeError:
            self.attributes.append("")
            return _INVALID
        self.attributes.append(text)
        if text in self._classified:
            return _CLASSIFIED
        return _EXACT if text in self._exact else _PRESENT if text in self._present else _IRRELEVANT


class RelevantAttributes(NamedTuple):
    span: Ints
    name: Ints
    begin: Ints
    end: Ints


class ScannedSpans(NamedTuple):
    rows: Rows
    keys: list[bytes]
    odd: list[int]
    has_events: Bools
    relevant: RelevantAttributes
    scan: Scan

    def values_of(
        self, spans: Sequence[int], names: Sequence[str], wanted: Collection[str]
    ) -> dict[int, dict[str, bytes]]:
        """Return the serialized values of the relevant attributes *wanted* of some *spans*; *names* has the name of each number."""
        is_span, is_wanted = np.zeros(len(self.rows), np.bool_), np.array([name in wanted for name in names], np.bool_)
        is_span[spans] = True
        which = np.flatnonzero(is_span[self.relevant.span])
        which = which[is_wanted[self.relevant.name[which]]]
        values: dict[int, dict[str, bytes]] = {span: {} for span in spans}
        columns = (column[which].tolist() for column in self.relevant)
        for span, name, begin, end in zip(*columns, strict=True):
            key: str = names[int(name)]
            values[span][key] = self.scan.data[begin:end]
        return values


def scan_spans(spans: Sequence[bytes], origins: Ints, strings: SpanStrings) -> ScannedSpans:
    scan, rows = Scan.of(spans), np.zeros(len(spans), ROW)
    begin, end = scan.contents(1)
    odd = end - begin != TRACE_BYTES
    rows["trace_high"], rows["trace_low"] = scan.words[begin].byteswap(), scan.words[begin + _WORD_BYTES].byteswap()
    begin, end = scan.contents(2)
    odd |= end - begin != SPAN_BYTES
    rows["span"] = scan.words[begin].byteswap()
    scan.contents(3)
    begin, end = scan.contents(4)
    has_parent = end - begin == SPAN_BYTES
    odd |= ~has_parent & (end != begin)
    rows["parent"] = np.where(has_parent, scan.words[begin].byteswap(), 0)
    name = scan.contents(5)
    kind = scan.uint32(6)
    odd |= kind > _MAX_KIND
    rows["start"], rows["end"] = (scan.fixed64(number)[1].view(np.int64) for number in (7, 8))
    of, attributes = scan.elements(9)
    keys, values = attributes.contents(1), attributes.contents(2)
    scan.uint32(10)
    before_events = scan.at
    scan.skip(11)
    has_events = scan.at != before_events
    scan.uint32(12)
    scan.skip(13)
    scan.uint32(14)
    failed, is_known_status = _status(scan, *scan.contents(15))
    rows["flags"] = failed * np.uint16(Flag.ERROR)
    scan.skip_fixed32(16)
    odd |= scan.odd | ~is_known_status
    odd[of[attributes.odd]] = True
    if odd.any():
        # The strings of odd spans may be anywhere.
        usual = ~odd[of]
        of, keys, values = of[usual], (keys[0][usual], keys[1][usual]), (values[0][usual], values[1][usual])
        name = name[0], np.where(odd, name[0], name[1])
    relevant, entries = _relevant_attributes(scan, of, keys, values, strings, odd)
    text = strings.texts.find(scan, *name)
    odd |= text < 0
    heads = (origins << 40) | (text << 8) | (kind << 1) | (rows["parent"] == 0)
    return ScannedSpans(
        rows=rows,
        keys=_joined(heads, relevant.span, entries),
        odd=np.flatnonzero(odd).tolist(),
        has_events=has_events,
        relevant=relevant,
        scan=scan,
    )


def _status(scan: Scan, begin: Ints, end: Ints) -> tuple[Bools, Bools]:
    code = np.where(end - begin == 2, scan.words[begin] & np.uint64(0xFFFF), np.uint64(0))  # noqa: PLR2004 - bytes
    return code == _ERROR, (end == begin) | (code == _ERROR) | (code == _OK)


def _relevant_attributes(  # noqa: PLR0917 - columns
    scan: Scan, of: Ints, keys: tuple[Ints, Ints], values: tuple[Ints, Ints], strings: SpanStrings, odd: Bools
) -> tuple[RelevantAttributes, Ints]:
    """Return the relevant attributes, and a number of the name and value of each; mark spans as odd."""
    names = strings.names.find(scan, *keys)
    classes = strings.names.classes.take(names)
    odd[of[classes <= _INVALID]] = True
    which = np.flatnonzero(classes >= _PRESENT)
    which = which[np.argsort(of[which], kind="stable")]
    relevant = RelevantAttributes(of[which], names[which], values[0][which], values[1][which])
    entries = relevant.name << 32
    exact = np.flatnonzero(classes[which] == _EXACT)
    texts = strings.texts.find(scan, relevant.begin[exact], relevant.end[exact])
    odd[relevant.span[exact[texts < 0]]] = True
    entries[exact] |= texts
    is_classified = classes[which] == _CLASSIFIED
    has_route = np.zeros(len(odd), np.bool_)
    has_route[relevant.span[relevant.name == strings.number_of(ROUTE)]] = True
    is_path = np.isin(relevant.name, [*map(strings.number_of, PATHS)])
    classified = np.flatnonzero(is_classified & ~(is_path & has_route[relevant.span]))
    values_of = strings.values.find(scan, relevant.begin[classified], relevant.end[classified])
    odd[relevant.span[classified[values_of < 0]]] = True
    entries[classified] |= np.maximum(strings.values.classes.take(values_of), 0)
    return relevant, entries


def _joined(heads: Ints, head_index: Ints, entries: Ints) -> list[bytes]:
    after = np.cumsum(np.bincount(head_index, minlength=len(heads)) + 1)
    first = np.append(0, after)
    joined = np.empty(len(heads) + len(entries), np.int64)
    is_entry = np.ones(len(joined), np.bool_)
    is_entry[first[:-1]] = False
    joined[first[:-1]], joined[is_entry] = heads, entries
    data = joined.tobytes()
    return [data[start:stop] for start, stop in pairwise((first * joined.itemsize).tolist())]
