"""Reading the same field of many protobuf messages at once, with numpy.

Whoever writes protobuf writes the fields of a message in the order of their numbers. So messages of one type can be walked in
step: has each of them, where it now is, field 2? Then its value is taken, and that message goes on behind it. A message that
is written otherwise does not come to its end this way: it is *odd*, and has to be read by itself.

Source: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...store.encoding import Ints

Unsigned = NDArray[np.uint64]
Flags = NDArray[np.bool_]

_VARINT, _FIXED64, _LENGTH_DELIMITED = 0, 1, 2
# What may be read past the end of the last message.
_PADDING = bytes(32)
_CONTINUES, _BITS, _MOST_BYTES = 0x80, 0x7F, 4
_ONE = np.ones(1, np.int64)
# Of a field that is repeated; no point has as many attributes.
_MOST_REPEATED = 64


class Scan:
    """Messages of one type, each read up to some place.

    Args:
        data: All messages, a zero behind each, which begins no field, and `_PADDING`.
        at: Where each is; shape (n,).
        end: Where each ends; shape (n,).
    """

    def __init__(self, data: bytes, at: Ints, end: Ints) -> None:
        self.data, self.at, self._end = data, at, end
        self._bytes = np.frombuffer(data, np.uint8)
        # The eight bytes from every byte on.
        self._words = np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))
        self._last = len(data) - len(_PADDING)
        self._odd = np.zeros(len(at), bool)

    @classmethod
    def of(cls, messages: Sequence[bytes]) -> Scan:
        """Return *messages*, each read up to its beginning."""
        sizes = np.fromiter(map(len, messages), np.int64, len(messages))
        end = np.cumsum(sizes + 1) - 1
        return cls(b"\0".join((*messages, _PADDING)), end - sizes, end)

    @property
    def odd(self) -> Flags:
        """Which messages are not read to their ends, or not rightly; shape (n,)."""
        return self._odd | (self.at != self._end)

    def fixed64(self, number: int) -> tuple[Flags, Unsigned]:
        """Read a fixed64, or the bits of a double; return which have it, and its value or 0."""
        has = self._has(number, _FIXED64)
        if not has.any():
            return has, np.zeros(len(has), np.uint64)
        value = np.where(has, self._words[self.at + 1], np.uint64(0))
        self._go(9 * has)
        return has, value

    def sint32(self, number: int) -> Ints:
        """Read a sint32; return its value or 0."""
        has = self._has(number, _VARINT)
        value, size = self._varint(has)
        self._go(has * (1 + size))
        return np.where(has, (value >> 1) ^ -(value & 1), 0)

    def contents(self, number: int) -> tuple[Ints, Ints]:
        """Read a field of text, bytes, packed numbers or a message; return where its content begins and ends."""
        has = self._has(number, _LENGTH_DELIMITED)
        length, size = self._varint(has)
        begin = np.minimum(self.at + has * (1 + size), self._last)
        self._go(has * (1 + size + length))
        return begin, self.at

    def inside(self, number: int) -> Scan:
        """Read a message; return it, to be read itself. One that is not there has no fields."""
        return Scan(self.data, *self.contents(number))

    def skip(self, number: int) -> None:
        """Pass over all of a repeated message."""
        for _ in range(_MOST_REPEATED):
            has = self._has(number, _LENGTH_DELIMITED)
            if not has.any():
                return
            length, size = self._varint(has)
            self._go(has * (1 + size + length))

    def pieces(self, start: Ints, end: Ints) -> list[bytes]:
        """Return the bytes of each message in `[start, end)`."""
        data = self.data
        return [data[low:high] for low, high in zip(start.tolist(), end.tolist(), strict=True)]

    def _has(self, number: int, wire_type: int) -> Flags:
        return self._bytes[self.at] == (number << 3 | wire_type)

    def _varint(self, has: Flags) -> tuple[Ints, Ints]:
        """Return the varint of up to four bytes behind the tag, and its size."""
        first = self._bytes[self.at + 1].astype(np.int64)
        more = has & (first >= _CONTINUES)
        if not more.any():
            return first, _ONE
        word, size = self._words[self.at + 1].view(np.int64), np.ones(len(first), np.int64)
        value = first & _BITS
        for place in range(1, _MOST_BYTES):
            value |= np.where(more, (word >> 8 * place & _BITS) << 7 * place, 0)
            size += more
            more = more & (word >> 8 * place & _CONTINUES != 0)
        self._odd |= more
        return value, size

    def _go(self, step: Ints) -> None:
        # Who is past the end of its message never comes back to it.
        self.at = np.minimum(self.at + step, self._last)
