"""Exponential histogram points in columns, from either encoding; protobuf messages are decoded in parallel with numpy.

Encoders write the fields of a message in the order of their numbers. Messages of one type are therefore decoded in parallel: each
step decodes one field in all messages that have it, and advances their read positions. A message with another order of fields
does not reach its end; it is called *odd* and must be decoded alone.

Source: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...store.points import Buckets, Floats, Ints
from .model import Attributes, HistogramPoint

Unsigned = NDArray[np.uint64]
Flags = NDArray[np.bool_]

_VARINT, _FIXED64, _LENGTH_DELIMITED = 0, 1, 2
# Bytes that may be read past the end of the last message.
_PADDING = bytes(32)
_SCANNED_VARINT_BYTES = 4
_ONE = np.ones(1, np.int64)
# Maximum number of elements of a repeated field, more than any point has attributes.
_MOST_REPEATED = 64


class Scan:
    """Serialized messages of one type, with a read position in each message.

    Args:
        data: All messages, each followed by a zero byte (which starts no field), and `_PADDING` at the end.
        at: Read position in each message; shape (n,).
        end: End of each message; shape (n,).
    """

    def __init__(self, data: bytes, at: Ints, end: Ints) -> None:
        self.data, self.at, self._end = data, at, end
        self._bytes = np.frombuffer(data, np.uint8)
        # The eight bytes that start at each byte.
        self._words = np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))
        self._last = len(data) - len(_PADDING)
        self._odd = np.zeros(len(at), bool)

    @classmethod
    def of(cls, messages: Sequence[bytes]) -> Scan:
        """Return a scan of *messages*, positioned at their start."""
        sizes = np.fromiter(map(len, messages), np.int64, len(messages))
        end = np.cumsum(sizes + 1) - 1
        return cls(b"\0".join((*messages, _PADDING)), end - sizes, end)

    @property
    def odd(self) -> Flags:
        """Mask of the messages that were not decoded completely; shape (n,)."""
        return self._odd | (self.at != self._end)

    def fixed64(self, number: int) -> tuple[Flags, Unsigned]:
        """Decode a fixed64, or the bits of a double; return a mask of the messages that have it, and its values or 0."""
        has = self._has(number, _FIXED64)
        if not has.any():
            return has, np.zeros(len(has), np.uint64)
        value = np.where(has, self._words[self.at + 1], np.uint64(0))
        self._go(9 * has)
        return has, value

    def sint32(self, number: int) -> Ints:
        """Decode a sint32; return its value in each message, or 0."""
        has = self._has(number, _VARINT)
        value, size = self._varint(has)
        self._go(has * (1 + size))
        return np.where(has, (value >> 1) ^ -(value & 1), 0)

    def contents(self, number: int) -> tuple[Ints, Ints]:
        """Decode a length-delimited field; return the start and end of its content."""
        has = self._has(number, _LENGTH_DELIMITED)
        length, size = self._varint(has)
        begin = np.minimum(self.at + has * (1 + size), self._last)
        self._go(has * (1 + size + length))
        return begin, self.at

    def inside(self, number: int) -> Scan:
        """Return a scan of the embedded messages of field *number*; a missing message is empty."""
        return Scan(self.data, *self.contents(number))

    def skip(self, number: int) -> None:
        """Skip all elements of a repeated message."""
        for _ in range(_MOST_REPEATED):
            has = self._has(number, _LENGTH_DELIMITED)
            if not has.any():
                return
            length, size = self._varint(has)
            self._go(has * (1 + size + length))

    def pieces(self, start: Ints, end: Ints) -> list[bytes]:
        """Return the bytes `[start, end)` of each message."""
        data = self.data
        return [data[low:high] for low, high in zip(start.tolist(), end.tolist(), strict=True)]

    def _has(self, number: int, wire_type: int) -> Flags:
        return self._bytes[self.at] == (number << 3 | wire_type)

    def _varint(self, has: Flags) -> tuple[Ints, Ints]:
        """Return the varint of up to four bytes after the tag, and the size of the varint."""
        first = self._bytes[self.at + 1].astype(np.int64)
        more = has & (first >= _CONTINUES)
        if not more.any():
            return first, _ONE
        word, size = self._words[self.at + 1].view(np.int64), np.ones(len(first), np.int64)
        value = first & _BITS
        for place in range(1, _SCANNED_VARINT_BYTES):
            value |= np.where(more, (word >> 8 * place & _BITS) << 7 * place, 0)
            size += more
            more = more & (word >> 8 * place & _CONTINUES != 0)
        self._odd |= more
        return value, size

    def _go(self, step: Ints) -> None:
        # A read position past the end of its message stays there, so the message is odd.
        self.at = np.minimum(self.at + step, self._last)


_CONTINUES, _BITS = 0x80, 0x7F
_MAX_VARINT_BYTES = 10
_UNSIGNED = 2**64


@dataclass(frozen=True, slots=True)
class HistogramColumns:
    """Data points in columns; the fields are those of `HistogramPoint`, each of shape (n,).

    Args:
        odd: Mask of the points that could not be decoded here; their other columns are arbitrary.
        attributes: Attributes of each point, parsed or serialized.
        start_ns: Start of the interval of each point. [Unix nanoseconds]
        time_ns: End of the interval of each point. [Unix nanoseconds]
        count: Number of values of each point.
        has_sum: Whether the point has a sum.
        sum: Sum of the values of each point; arbitrary without a sum.
        scale: Scale of each point.
        zero: Number of zero values of each point.
        lengths: Number of positive buckets of each point, including empty ones.
        buckets: Non-empty buckets; a count of 2**63 or more, or with an overlong encoding, is negative.
    """

    odd: Flags
    attributes: Sequence[bytes] | Sequence[Attributes]
    start_ns: Unsigned
    time_ns: Unsigned
    count: Unsigned
    has_sum: Flags
    sum: Floats
    scale: Ints
    zero: Unsigned
    lengths: Ints
    buckets: Buckets


def from_protobuf(points: Sequence[bytes]) -> HistogramColumns:
    """Return *points*, serialized ExponentialHistogramDataPoints, as columns.

    Points with flags, negative values or an unusual encoding are odd.
    """
    scan = Scan.of(points)
    begin = scan.at
    scan.skip(1)
    attributes = scan.pieces(begin, scan.at)
    _, start_ns = scan.fixed64(2)
    _, time_ns = scan.fixed64(3)
    _, count = scan.fixed64(4)
    has_sum, total = scan.fixed64(5)
    scale = scan.sint32(6)
    _, zero = scan.fixed64(7)
    positive = scan.inside(8)
    offset = positive.sint32(1)
    counts = scan.pieces(*positive.contents(2))
    negative_begin, negative_end = scan.contents(9)
    scan.skip(11)
    for number in (12, 13, 14):
        scan.fixed64(number)
    buckets, lengths, broken = _filled(counts, offset)
    odd = scan.odd | positive.odd | broken | (negative_begin < negative_end)
    for number in np.flatnonzero(odd).tolist():
        attributes[number] = b""
    return HistogramColumns(
        odd=odd,
        attributes=attributes,
        start_ns=start_ns,
        time_ns=time_ns,
        count=count,
        has_sum=has_sum,
        sum=total.view(np.float64),
        scale=scale,
        zero=zero,
        lengths=lengths,
        buckets=buckets,
    )


def from_points(points: Sequence[HistogramPoint]) -> HistogramColumns:
    """Return *points* as columns; points with flags, negative values or a number out of range are odd."""
    numbers = np.array([_numbers(point) for point in points], np.uint64).reshape(-1, 5)
    lengths = np.array([len(point.counts) for point in points], np.int64)
    offset = np.array([point.offset for point in points], np.int64)
    counts = _signed([count for point in points for count in point.counts])
    ends = np.cumsum(lengths)
    where = np.flatnonzero(counts)
    offsets = np.searchsorted(where, np.concatenate((np.zeros(1, np.int64), ends)))
    index = where + np.repeat(offset - ends + lengths, np.diff(offsets))
    return HistogramColumns(
        odd=numbers[:, 0] != 0,
        attributes=[point.attributes for point in points],
        start_ns=numbers[:, 1],
        time_ns=numbers[:, 2],
        count=numbers[:, 3],
        has_sum=np.array([point.sum is not None for point in points], bool),
        sum=np.array([point.sum or 0.0 for point in points], np.float64),
        scale=np.array([point.scale for point in points], np.int64),
        zero=numbers[:, 4],
        lengths=lengths,
        buckets=Buckets(offsets, index, counts[where]),
    )


def _signed(counts: Sequence[int]) -> Ints:
    try:
        return np.array(counts, np.int64)
    except OverflowError:
        return np.array([count if count < _UNSIGNED // 2 else -1 for count in counts], np.int64)


def _numbers(point: HistogramPoint) -> tuple[int, ...]:
    numbers = point.start_ns, point.time_ns, point.count, point.zero
    if point.flags or point.negative or not all(0 <= number < _UNSIGNED for number in numbers):
        return 1, 0, 0, 0, 0
    return 0, *numbers


def _filled(counts: Sequence[bytes], offset: Ints) -> tuple[Buckets, Ints, Flags]:
    """Return the non-empty buckets, the number of buckets of each point, and a mask of points with a truncated count.

    Args:
        counts: Packed counts of each point.
        offset: Index of the first bucket of each point; shape (n,).
    """
    # A leading zero byte, so that every byte and the first point have a predecessor.
    data = np.frombuffer(b"\0" + b"".join(counts), np.uint8)
    edges = 1 + np.cumsum(np.fromiter(map(len, (b"", *counts)), np.int64, 1 + len(counts)))
    ends = data < _CONTINUES
    # A zero count is a single zero byte.
    filled = ends & (data != 0)
    filled[1:] |= ends[1:] & ~ends[:-1]
    where = np.flatnonzero(filled)
    number = np.cumsum(ends, dtype=np.int32)
    first = number[edges - 1]
    offsets = np.searchsorted(where, edges)
    index = number[where] + np.repeat(offset - first[:-1] - 1, np.diff(offsets))
    return Buckets(offsets, index, _varints(data, where)), np.diff(first), ~ends[edges[1:] - 1]


def _varints(data: NDArray[np.uint8], last: Ints) -> Ints:
    """Return the values of the varints that end at the positions *last*."""
    values = data[last].astype(np.int64)
    before = last - 1
    here = np.flatnonzero(data[before] >= _CONTINUES)
    before = before[here]
    for _ in range(_MAX_VARINT_BYTES - 1):
        if not len(here):
            return values
        values[here] = values[here] << 7 | data[before] & _BITS
        before = before - 1
        longer = data[before] >= _CONTINUES
        here, before = here[longer], before[longer]
    values[here] = -1
    return values
