"""The Protocol Buffers wire format as far as OTLP needs it, because the base install has no protobuf package.

A message is the concatenation of its fields, and a nested message is a field itself. Every `..._field` function returns one
field: number and wire type, then the value. Source: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from ...core.varint import CONTINUES, SMALL, decode_varint, encode_varint

# Wire types: the lowest three bits of a field's tag.
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_SIZES = {FIXED64: 8, FIXED32: 4}
_FIXED64 = struct.Struct("<BQ")
_DOUBLE = struct.Struct("<Bd")
_64_BITS = 2**64 - 1
_BROKEN = "not a protobuf message"


def message_field(number: int, content: bytes) -> bytes:
    """Return *content*, the fields of a message or plain bytes, as field *number*.

    >>> message_field(1, message_field(2, b"ab")).hex()
    '0a0412026162'
    """
    return SMALL[number << 3 | BYTES] + encode_varint(len(content)) + content


def text_field(number: int, value: str) -> bytes:
    return message_field(number, value.encode(errors="replace"))


def integer_field(number: int, value: int) -> bytes:
    return SMALL[number << 3 | VARINT] + encode_varint(value & _64_BITS)


def signed_field(number: int, value: int) -> bytes:
    """Return *value* as a field of type sint32, which is also short for small negative numbers.

    >>> signed_field(1, -1).hex()
    '0801'
    """
    return integer_field(number, 2 * value if value >= 0 else -2 * value - 1)


def fixed64_field(number: int, value: int) -> bytes:
    return _FIXED64.pack(number << 3 | FIXED64, value)


def double_field(number: int, value: float) -> bytes:
    return _DOUBLE.pack(number << 3 | FIXED64, value)


def packed_field(number: int, values: Sequence[int]) -> bytes:
    """Return *values* (at least 0) as a packed repeated field of type uint64.

    >>> packed_field(2, [3, 0, 300]).hex()
    '12040300ac02'
    """
    if max(values, default=0) < CONTINUES:
        return message_field(number, bytes(values))
    # Most values are small: each saved call is time.
    return message_field(
        number, b"".join([SMALL[value] if value < CONTINUES else encode_varint(value) for value in values])
    )


def parse_fields(content: bytes) -> dict[int, int | bytes]:
    """Return the last value of each field of a message by field number: varints as numbers, everything else as bytes.

    Raises:
        ValueError: *content* is not a valid message.

    >>> parse_fields(integer_field(1, 300) + text_field(2, "ab"))
    {1: 300, 2: b'ab'}
    """
    fields: dict[int, int | bytes] = {}
    at = 0
    while at < len(content):
        key, at = decode_varint(content, at)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            fields[number], at = decode_varint(content, at)
            continue
        size, at = decode_varint(content, at) if kind == BYTES else (_SIZES.get(kind, len(content)), at)
        if at + size > len(content):
            raise ValueError(_BROKEN)
        fields[number] = content[at : at + size]
        at += size
    return fields
