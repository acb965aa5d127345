"""Variable-length integers: seven bits a byte, the lowest first; all bytes but the last have their high bit set.

Source: https://protobuf.dev/programming-guides/encoding/#varints.
"""

from __future__ import annotations

CONTINUES, BITS = 0x80, 0x7F
# Bytes of 64 bits.
MAX_VARINT_BYTES = 10
SMALL = tuple(bytes((value,)) for value in range(CONTINUES))


def encode_varint(value: int) -> bytes:
    """Return the encoding of *value*, at least 0.

    >>> encode_varint(300).hex()
    'ac02'
    """
    if value < CONTINUES:
        return SMALL[value]
    written = bytearray()
    while value >= CONTINUES:
        written.append(value & BITS | CONTINUES)
        value >>= 7
    written.append(value)
    return bytes(written)


def decode_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at position *at* of *data*, and the position after it.

    Raises:
        ValueError: The number is truncated, or has more than `MAX_VARINT_BYTES`.

    >>> decode_varint(bytes.fromhex("ac0201"), 0)
    (300, 2)
    """
    value = shift = 0
    for position in range(at, min(at + MAX_VARINT_BYTES, len(data))):
        byte = data[position]
        value |= (byte & BITS) << shift
        if byte < CONTINUES:
            return value, position + 1
        shift += 7
    msg = "a varint is truncated, or has more than ten bytes"
    raise ValueError(msg)
