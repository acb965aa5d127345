"""Message classes made at run time, and the scan of large bodies before they are parsed.

A class with the field numbers of another message can leave fields serialized that are rarely read, or read in columns.

An empty message takes two bytes on the wire, about a hundred in the parser and several hundred as Python objects, so 64 MiB of
them, 64 kB of gzip, would take gigabytes. A large body is therefore scanned first (`check_bulk`).

Source: https://protobuf.dev/programming-guides/encoding/.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, TypeAlias

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, MessageOptions

from ...core.varint import decode_varint
from . import model

# Fields of each message by number, with their types: "*" for repeated fields, a capital letter for messages, "|" for those of the
# oneof `data`. On the wire a map from string to bytes is a repeated KeyValue, with the value left serialized.
Messages: TypeAlias = Mapping[str, Mapping[int, tuple[str, str]]]
MAP = "*Map"
# A body of this size needs at most 60 MB once parsed; larger bodies are scanned first, which takes as long as parsing.
SMALL_BYTES = 256 * 1024
VARINT, FIXED64, LENGTH_DELIMITED, FIXED32 = 0, 1, 2, 5
_SIZES = {FIXED64: 8, FIXED32: 4}
_MAX_DEPTH = 100  # limit of the parser


def message_classes(
    package: str, messages: Messages, pool: descriptor_pool.DescriptorPool, *requires: str
) -> dict[str, Any]:
    file = FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3", dependency=requires)
    for message, fields in messages.items():
        descriptor = file.message_type.add(name=message)
        for number, (name, kind) in fields.items():
            field = descriptor.field.add(name=name, number=number, **_type(package, kind))
            if kind == MAP:
                entry = descriptor.nested_type.add(
                    name=f"{name.capitalize()}Entry", options=MessageOptions(map_entry=True)
                )
                entry.field.add(name="key", number=1, **_type(package, "string"))
                entry.field.add(name="value", number=2, **_type(package, "bytes"))
                field.type_name = f".{package}.{message}.{entry.name}"
            elif kind.startswith("|"):
                field.oneof_index = 0
        if any(kind.startswith("|") for _, kind in fields.values()):
            descriptor.oneof_decl.add(name="data")
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in messages}


def _type(package: str, kind: str) -> dict[str, Any]:
    label = FieldDescriptorProto.LABEL_REPEATED if kind.startswith("*") else FieldDescriptorProto.LABEL_OPTIONAL
    kind = kind.lstrip("*|")
    if kind.islower():
        return {"label": label, "type": getattr(FieldDescriptorProto, f"TYPE_{kind.upper()}")}
    full_name = f".{kind}" if "." in kind else f".{package}.{kind}"
    return {"label": label, "type": FieldDescriptorProto.TYPE_MESSAGE, "type_name": full_name}


def check_bulk(body: bytes, message: Descriptor) -> None:
    """Refuse a *body* with too many objects; the parser checks whether it is well-formed."""
    if len(body) <= SMALL_BYTES:
        return
    try:
        objects, elements = _count(body, message)
    except (ValueError, KeyError):
        return  # malformed
    if objects > model.MAX_OBJECTS or elements > model.MAX_ELEMENTS:
        msg = f"the body has more than {model.MAX_OBJECTS} objects or {model.MAX_ELEMENTS} fields; send smaller batches"
        raise model.BodyTooLargeError(msg)


def _count(body: bytes, message: Descriptor) -> tuple[int, int]:
    objects = elements = 0
    waiting = [(0, len(body), message, 0)]
    while waiting and objects <= model.MAX_OBJECTS and elements <= model.MAX_ELEMENTS:
        at, end, kind, depth = waiting.pop()
        messages, packed = _messages(kind), _packed(kind)
        while at < end and objects <= model.MAX_OBJECTS and elements <= model.MAX_ELEMENTS:
            tag, at = decode_varint(body, at)
            number, wire_type = tag >> 3, tag & 7
            if wire_type == VARINT:
                at = decode_varint(body, at)[1]
            elif wire_type == LENGTH_DELIMITED:
                size, at = decode_varint(body, at)
                if number in messages:
                    objects += 1
                    if (child := messages[number]) is not None:
                        waiting.append((at, at + size, child, depth + 1))
                elif number in packed:
                    elements += size
                at += size
            else:
                at += _SIZES[wire_type]
            elements += 1
            if at > end or depth > _MAX_DEPTH:
                return 0, 0  # malformed
    return objects, elements


@cache
def _messages(message: Descriptor) -> Mapping[int, Descriptor | None]:
    """Return the length-delimited fields that become objects: messages with their type, bytes with None."""
    return {
        field.number: field.message_type
        for field in message.fields
        if field.message_type is not None or field.type == FieldDescriptor.TYPE_BYTES
    }


@cache
def _packed(message: Descriptor) -> frozenset[int]:
    text = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES, FieldDescriptor.TYPE_MESSAGE)
    return frozenset(field.number for field in message.fields if field.type not in text)
