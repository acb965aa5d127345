"""Decoding of many serialized messages of one type at once with numpy.

Encoders write the fields of a message in the order of their numbers. Each step of a scan decodes one field in all messages that
have it, and advances their read positions. A message with another order of fields does not reach its end; it is called *odd*.

Measured with `benchmarks/ingest.py`: without the scan an export of datapoints takes four times, and one of spans 1.3 times the
time to decode.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...core.columns import Bools, Ints
from ...core.varint import BITS, CONTINUES
from .message_classes import FIXED32, FIXED64, LENGTH_DELIMITED, VARINT

Unsigned = NDArray[np.uint64]
# Bytes that may be read past the end of the last message.
_PADDING = bytes(64)
_SCANNED_VARINT_BYTES = 5
_ONE = np.ones(1, np.int64)
# Maximum number of elements of a repeated field; the default limit of the attributes of a span is 128.
_MOST_REPEATED = 130


class Scan:
    """Serialized messages of one type, with a read position in each message.

    Args:
        data: All messages, each followed by a zero byte (which starts no field), and `_PADDING` at the end.
        at: Read position in each message; shape (n,).
        end: End of each message; shape (n,).

    Attributes:
        bytes: *data* as numbers.
        words: The number in the eight bytes that start at each byte of *data*, little-endian.
    """

    def __init__(self, data: bytes, at: Ints, end: Ints) -> None:
        self.data, self.at, self._end = data, at, end
        self.bytes = np.frombuffer(data, np.uint8)
        # The eight bytes that start at each byte. Only indexing is fast: `take` copies an array with overlapping elements.
        self.words = np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))
        self._last = len(data) - len(_PADDING)
        self._odd = np.zeros(len(at), bool)

    @classmethod
    def of(cls, messages: Sequence[bytes]) -> Scan:
        sizes = np.fromiter(map(len, messages), np.int64, len(messages))
        end = np.cumsum(sizes + 1) - 1
        return cls(b"\0".join((*messages, _PADDING)), end - sizes, end)

    @property
    def odd(self) -> Bools:
        """Mask of the messages that were not decoded completely; shape (n,)."""
        return self._odd | (self.at != self._end)

    def fixed64(self, number: int) -> tuple[Bools, Unsigned]:
        """Decode a fixed64, or the bits of a double; return a mask of the messages that have it, and its values or 0."""
        has = self._has(number, FIXED64)
        if not has.any():
            return has, np.zeros(len(has), np.uint64)
        value = np.where(has, self.words[self.at + 1], np.uint64(0))
        self._go(9 * has)
        return has, value

    def skip_fixed32(self, number: int) -> None:
        first, second = (number << 3 & BITS) | FIXED32 | CONTINUES, number >> 4
        self._go(6 * ((self.bytes[self.at] == first) & (self.bytes[self.at + 1] == second)))

    def uint32(self, number: int) -> Ints:
        has = self._has(number, VARINT)
        if not has.any():
            return np.zeros(len(has), np.int64)
        value, size = self._varint(self.at, has)
        self._go(has * (1 + size))
        return np.where(has, value, 0)

    def sint32(self, number: int) -> Ints:
        value = self.uint32(number)
        return (value >> 1) ^ -(value & 1)

    def contents(self, number: int) -> tuple[Ints, Ints]:
        """Decode a length-delimited field; return the start and end of its content."""
        has = self._has(number, LENGTH_DELIMITED)
        if not has.any():
            return self.at, self.at
        length, size = self._varint(self.at, has)
        if not has.all():
            length, size = length * has, (1 + size) * has - 1
        begin = np.minimum(self.at + 1 + size, self._last)
        self._go(1 + size + length)
        return begin, self.at

    def words_at(self, at: Ints, count: int) -> NDArray[np.uint64]:
        """Return the *count* words, up to 6, that start at each position *at*; shape (count, n)."""
        size = 8 * count
        # Copying an element of many bytes is as fast as copying a word.
        blocks = np.ndarray((len(self.data) - size + 1,), f"V{size}", self.data, strides=(1,))[at]
        return blocks.view("<u8").reshape(-1, count).T.copy()

    def inside(self, number: int) -> Scan:
        """Return a scan of the embedded messages of field *number*; a missing message is empty."""
        return Scan(self.data, *self.contents(number))

    def elements(self, number: int) -> tuple[Ints, Scan]:
        tag, at = number << 3 | LENGTH_DELIMITED, self.at.copy()
        message = np.flatnonzero(self._has(number, LENGTH_DELIMITED))
        here = at.take(message)
        messages, begins, ends = [message[:0]], [here[:0]], [here[:0]]
        for _ in range(_MOST_REPEATED):
            if not len(message):
                break
            length, size = self._varint(here, message)
            begin = np.minimum(here + (1 + size), self._last)
            end = np.minimum(begin + length, self._last)
            messages.append(message)
            begins.append(begin)
            ends.append(end)
            more = self.bytes.take(end) == tag
            if not more.all():
                at[message] = end
                message, end = message[more], end[more]
            here = end
        at[message] = here
        self.at = at
        return np.concatenate(messages), Scan(self.data, np.concatenate(begins), np.concatenate(ends))

    def skip(self, number: int) -> None:
        for _ in range(_MOST_REPEATED):
            begin = self.at
            self.contents(number)
            if self.at is begin:
                return

    def pieces(self, start: Ints, end: Ints) -> list[bytes]:
        data = self.data
        return [data[low:high] for low, high in zip(start.tolist(), end.tolist(), strict=True)]

    def _has(self, number: int, wire_type: int) -> Bools:
        return self.bytes.take(self.at) == (number << 3 | wire_type)

    def _varint(self, at: Ints, which: Bools | Ints) -> tuple[Ints, Ints]:
        """Return the varints of up to five bytes after the tags at the positions *at*, and their sizes."""
        first = self.bytes.take(at + 1).astype(np.int64)
        more = first >= CONTINUES
        if which.dtype == np.bool_:
            more &= which
        if not more.any():
            return first, _ONE
        word, size = self.words[at + 1].view(np.int64), np.ones(len(first), np.int64)
        value = first & BITS
        for byte_number in range(1, _SCANNED_VARINT_BYTES):
            value |= np.where(more, (word >> 8 * byte_number & BITS) << 7 * byte_number, 0)
            size += more
            more = more & (word >> 8 * byte_number & CONTINUES != 0)
            if not more.any():
                break
        self._odd[more if which.dtype == np.bool_ else which[more]] = True
        return value, size

    def _go(self, step: Ints) -> None:
        # A read position past the end of its message stays there, so the message is odd.
        self.at = np.minimum(self.at + step, self._last)
