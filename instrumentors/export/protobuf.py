"""The Protocol Buffers wire format, as far as OTLP needs it: the base install has no protobuf package.

A message is the concatenation of its fields, and a nested message is a field itself. Every function except `varint` and the
reader returns one field: number and wire type, then the value.

Source: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

# The kind of a field, in the lowest three bits before its value.
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_SIZES = {FIXED64: 8, FIXED32: 4}
_FIXED64 = struct.Struct("<BQ")
_DOUBLE = struct.Struct("<Bd")
# A varint has seven bits a byte, and at most 64 in all; the numbers of OTLP's fields fit into four bits.
_MORE = 0x80
_64_BITS = 2**64 - 1
_MAX_VARINT_BYTES = 10
_BROKEN = "not a protobuf message"


def varint(value: int) -> bytes:
    """Return *value*, from 0 up: seven bits a byte, the lowest first.

    >>> varint(300).hex()
    'ac02'
    """
    if value < _MORE:
        return _SMALL[value]
    written = bytearray()
    while value >= _MORE:
        written.append(value & 0x7F | _MORE)
        value >>= 7
    written.append(value)
    return bytes(written)


_SMALL = tuple(bytes((value,)) for value in range(_MORE))


def message(number: int, content: bytes) -> bytes:
    """Return *content*, the fields of a message or plain bytes, as field *number*.

    >>> message(1, message(2, b"ab")).hex()
    '0a0412026162'
    """
    return _SMALL[number << 3 | BYTES] + varint(len(content)) + content


def text(number: int, value: str) -> bytes:
    """Return *value* as field *number*; invalid Unicode becomes a question mark."""
    return message(number, value.encode(errors="replace"))


def whole(number: int, value: int) -> bytes:
    """Return *value* as a field of type int64, uint32, enum or bool."""
    return _SMALL[number << 3 | VARINT] + varint(value & _64_BITS)


def signed(number: int, value: int) -> bytes:
    """Return *value* as a field of type sint32, which is short for small numbers below zero too.

    >>> signed(1, -1).hex()
    '0801'
    """
    return whole(number, 2 * value if value >= 0 else -2 * value - 1)


def fixed(number: int, value: int) -> bytes:
    """Return *value*, from 0 up, as a field of type fixed64, or sfixed64."""
    return _FIXED64.pack(number << 3 | FIXED64, value)


def double(number: int, value: float) -> bytes:
    """Return *value* as a field of type double."""
    return _DOUBLE.pack(number << 3 | FIXED64, value)


def packed(number: int, values: Sequence[int]) -> bytes:
    """Return *values*, from 0 up, as a repeated field of type uint64.

    >>> packed(2, [3, 0, 300]).hex()
    '12040300ac02'
    """
    if max(values, default=0) < _MORE:
        return message(number, bytes(values))
    # Most are small: each call saved is time.
    return message(number, b"".join([_SMALL[value] if value < _MORE else varint(value) for value in values]))


def fields(content: bytes) -> dict[int, int | bytes]:
    """Return the fields of a message by their number, the last of each: varints as numbers, everything else as bytes.

    Raises:
        ValueError: *content* is no message.

    >>> fields(whole(1, 300) + text(2, "ab"))
    {1: 300, 2: b'ab'}
    """
    found: dict[int, int | bytes] = {}
    at = 0
    while at < len(content):
        key, at = _read_varint(content, at)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            found[number], at = _read_varint(content, at)
            continue
        size, at = _read_varint(content, at) if kind == BYTES else (_SIZES.get(kind, len(content)), at)
        if at + size > len(content):
            raise ValueError(_BROKEN)
        found[number] = content[at : at + size]
        at += size
    return found


def _read_varint(content: bytes, at: int) -> tuple[int, int]:
    """Return the varint at *at*, and where it ends."""
    value = 0
    for place, byte in enumerate(content[at : at + _MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << 7 * place
        if byte < _MORE:
            return value, at + place + 1
    raise ValueError(_BROKEN)
