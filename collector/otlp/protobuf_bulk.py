"""How much a protobuf body becomes once it is parsed, found out before it is parsed.

An empty message takes two bytes on the wire, about a hundred in the parser and several hundred as objects of ours: 64 MiB
of them, which gzip packs into 64 kB, would take gigabytes. So a large body is walked first, field by field, without being
built, and refused when it holds more than an export may. Small ones cannot do harm and are not walked.
"""

from __future__ import annotations

from functools import cache
from typing import TypeAlias

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from .model import MAX_ELEMENTS, MAX_OBJECTS, TooLargeError

# A body of this size becomes 60 MB at the very worst. The walk takes about as long as reading.
SMALL_BYTES = 256 * 1024

_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5
_MAX_DEPTH = 100  # what the parser follows

# What takes room when it is length-delimited: messages by their type, those that are left as bytes by None.
_Messages: TypeAlias = dict[int, Descriptor | None]


def check_bulk(body: bytes, message: Descriptor) -> None:
    """Refuse *body* when it holds more than an export may; whether it is well-formed is the parser's to say.

    Args:
        body: A serialized message.
        message: Its type.

    Raises:
        TooLargeError: It has more than `MAX_OBJECTS` messages or `MAX_ELEMENTS` numbers.
    """
    if len(body) <= SMALL_BYTES:
        return
    objects = elements = 0
    waiting = [(0, len(body), message, 0)]
    while waiting:
        at, end, kind, depth = waiting.pop()
        messages, packed = _messages(kind), _packed(kind)
        while at < end:
            number, wire_type, at, size = _field(body, at)
            if at + size > end or depth > _MAX_DEPTH:
                return  # malformed
            if wire_type == _LENGTH_DELIMITED:
                if number in messages:
                    objects += 1
                    child = messages[number]
                    if child is not None:
                        waiting.append((at, at + size, child, depth + 1))
                elif number in packed:
                    elements += size
            at += size
            elements += 1
            if objects > MAX_OBJECTS or elements > MAX_ELEMENTS:
                msg = f"the body has more than {MAX_OBJECTS} objects or {MAX_ELEMENTS} fields; send smaller batches"
                raise TooLargeError(msg)


@cache
def _messages(message: Descriptor) -> _Messages:
    return {
        field.number: field.message_type
        for field in message.fields
        if field.message_type is not None or field.type == FieldDescriptor.TYPE_BYTES
    }


@cache
def _packed(message: Descriptor) -> frozenset[int]:
    text = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES, FieldDescriptor.TYPE_MESSAGE)
    return frozenset(field.number for field in message.fields if field.type not in text)


def _field(body: bytes, at: int) -> tuple[int, int, int, int]:
    """Return the number and wire type of the field at *at*, where its content begins, and its size.

    A field that runs past the end of the body, or is of no kind known, has a size past the end.
    """
    beyond = len(body) + 1
    tag, at = _varint(body, at)
    match tag & 7:
        case 0:
            return tag >> 3, _VARINT, at, _varint(body, at)[1] - at
        case 1:
            return tag >> 3, _FIXED64, at, 8
        case 2:
            size, at = _varint(body, at)
            return tag >> 3, _LENGTH_DELIMITED, at, size
        case 5:
            return tag >> 3, _FIXED32, at, 4
        case _:
            return tag >> 3, tag & 7, at, beyond


def _varint(body: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    for position in range(at, min(at + 10, len(body))):
        byte = body[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004 - the last byte of a varint has its high bit clear
            return value, position + 1
        shift += 7
    return value, len(body) + 1
