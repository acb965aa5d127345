"""ClickHouse's Native format: columns as they lie in memory, for numbers, arrays of numbers and, on the way there, strings.

An answer of some millions of numbers becomes numpy arrays without a Python object for each. A block is the number of its
columns and of its rows, then each column: name, type, values. Counts and lengths are varints; an array column begins with
where each of its rows ends.

Source: https://clickhouse.com/docs/interfaces/formats/Native and `NativeReader.cpp`
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
# How many buckets each row has and all of them, one row after the other.
Arrays = tuple[Array, Array]

_NUMBERS = {
    **{f"Int{8 * size}": np.dtype(f"<i{size}") for size in (1, 2, 4, 8)},
    **{f"UInt{8 * size}": np.dtype(f"<u{size}") for size in (1, 2, 4, 8)},
    "Float64": np.dtype("<f8"),
}
_ENDS = np.dtype("<u8")
_CONTINUES = 0x80


def read(data: bytes) -> dict[str, Array]:
    """Return the columns of an answer; none if it has no rows. Column `name` of arrays comes as `name` and `name.lengths`."""
    pieces: defaultdict[str, list[Array]] = defaultdict(list)
    source = _Source(data)
    while source.more:
        n_columns, n_rows = source.varint(), source.varint()
        for _ in range(n_columns):
            name, kind = source.text(), source.text()
            element = kind.removeprefix("Array(").removesuffix(")")
            if element == kind:
                pieces[name].append(source.numbers(_NUMBERS[kind], n_rows))
            else:
                ends = source.numbers(_ENDS, n_rows).astype(np.int64)
                pieces[f"{name}.lengths"].append(np.diff(ends, prepend=0))
                pieces[name].append(source.numbers(_NUMBERS[element], int(ends[-1]) if n_rows else 0))
    return {name: np.concatenate(parts) for name, parts in pieces.items()} if any(map(len, pieces.values())) else {}


def write(columns: Mapping[str, tuple[str, Sequence[Any] | Arrays]], n_rows: int) -> bytes:
    """Return *columns*, type and values by name, as one block; a tuple of lengths and values for arrays."""
    parts = [_varint(len(columns)), _varint(n_rows)]
    for name, (kind, values) in columns.items():
        parts += [_text(name), _text(kind)]
        if kind == "String":
            parts += map(_text, values)
        elif isinstance(values, tuple) and kind.startswith("Array("):
            lengths, flat = values
            element = kind.removeprefix("Array(").removesuffix(")")
            parts += [np.cumsum(lengths).astype(_ENDS).tobytes(), flat.astype(_NUMBERS[element]).tobytes()]
        else:
            parts.append(np.asarray(values).astype(_NUMBERS[kind]).tobytes())
    return b"".join(parts)


class _Source:
    """Bytes, and how far they are read."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def more(self) -> bool:
        return self._at < len(self._data)

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & ~_CONTINUES) << shift
            if byte < _CONTINUES:
                return value
            shift += 7

    def text(self) -> str:
        size = self.varint()
        self._at += size
        return self._data[self._at - size : self._at].decode()

    def numbers(self, kind: np.dtype[Any], count: int) -> Array:
        found = np.frombuffer(self._data, kind, count, self._at)
        self._at += found.nbytes
        return found


def _varint(value: int) -> bytes:
    digits: list[int] = []
    while value >= _CONTINUES:
        digits.append(value % _CONTINUES | _CONTINUES)
        value //= _CONTINUES
    return bytes([*digits, value])


def _text(value: str) -> bytes:
    data = value.encode()
    return _varint(len(data)) + data
