"""Breaking what is right, at random: values of JSON, fields of protobuf messages, bytes.

Everything is drawn from the generator that is given, so that an input can be made again from its seed.
"""

from __future__ import annotations

import copy
import math
import random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

_INTEGERS = (0, 1, -1, 2**31 - 1, -(2**31), 2**32, 2**48, 2**63 - 1, -(2**63), 2**64 - 1, 2**70)
_NUMBERS = (0.0, -0.0, 0.5, -1.0, 1e308, 5e-324, math.nan, math.inf, -math.inf)
_TEXTS = ("", "ok", "\x00", "\ud800", "a" * 300, "NaN", "Infinity", "1e400", "-1", "00", "%s{0}", "ab" * 16, "é" * 40)
_NAMES = ("forward", "queue", "server", "inference.stage", "service.name", "stagelens", "triton-server", "0-1", "1024+")

_LIMITS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_ENUM: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}
# What one input may grow to by doubling. [items]
_MOST = 64


def value(rng: random.Random, depth: int = 2) -> Any:
    if depth and rng.random() < 0.25:
        inner = [value(rng, depth - 1) for _ in range(rng.randrange(4))]
        return inner if rng.random() < 0.5 else {rng.choice((*_TEXTS, *_NAMES)): item for item in inner}
    kinds = ((None, True, False), _INTEGERS, tuple(map(str, _INTEGERS)), _NUMBERS, _TEXTS, _NAMES)
    return rng.choice(rng.choice(kinds))


def _like(found: Any, rng: random.Random) -> Any:
    match found:
        case bool():
            return not found
        case int() | float():
            return rng.choice((rng.choice(_NUMBERS), rng.choice(_INTEGERS), rng.randrange(20)))
        case str() if found.isdigit():
            return str(rng.choice((rng.choice(_INTEGERS), rng.randrange(20), int(found) + rng.randint(-5, 5))))
        case str():
            return rng.choice((*_TEXTS, *_NAMES))
        case _:
            return value(rng)


def json_value(whole: Any, rng: random.Random) -> Any:
    root = copy.deepcopy(whole)
    for _ in range(rng.randint(1, 4)):
        ways = list(_places(root))
        if not ways:
            break
        node, key = rng.choice(ways)
        other, its = rng.choice(ways)
        match rng.randrange(7):
            case 0 | 1 | 2:
                node[key] = _like(node[key], rng) if rng.random() < 0.8 else value(rng)
            case 3:
                del node[key]
            case 4:
                node[key] = [node[key], copy.deepcopy(node[key])]
            case 5 if isinstance(node, list):
                node[:] = (node * 2)[:_MOST]
            case _:
                node[key] = copy.deepcopy(other[its])
    return root


def _places(node: Any) -> list[tuple[Any, Any]]:
    items = list(node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ())
    return [(node, key) for key, _ in items] + [place for _, inner in items for place in _places(inner)]


def message(whole: Message, rng: random.Random) -> Message:
    root = type(whole)()
    root.CopyFrom(whole)
    for _ in range(rng.randint(1, 4)):
        node: Any = root
        while True:
            set_fields = [field for field, _ in node.ListFields()]
            below = [field for field in set_fields if field.message_type is not None]
            if below and rng.random() < 0.8:
                found = getattr(node, (field := rng.choice(below)).name)
                node = rng.choice(found) if _repeated(field) else found
            else:
                break
        _change(node, rng.choice(node.DESCRIPTOR.fields), rng)
    return root


def _repeated(field: FieldDescriptor) -> bool:
    return bool(field.is_repeated)


def _change(node: Any, field: FieldDescriptor, rng: random.Random) -> None:
    found = getattr(node, field.name)
    if rng.random() < 0.15:
        node.ClearField(field.name)
    elif field.message_type is not None:
        if not _repeated(field):
            found.SetInParent()
        elif found and rng.random() < 0.7:
            found.extend(list(found)[: _MOST - len(found)])
        else:
            found.add()
    elif _repeated(field):
        found.extend([_scalar(field, rng) for _ in range(rng.randrange(4))])
    else:
        setattr(node, field.name, _scalar(field, rng))


def _scalar(field: FieldDescriptor, rng: random.Random) -> Any:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_BOOL:
            return rng.random() < 0.5
        case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
            return rng.choice(_NUMBERS)
        case FieldDescriptor.CPPTYPE_STRING if field.type == FieldDescriptor.TYPE_BYTES:
            return rng.randbytes(rng.choice((0, 1, 8, 16, 17)))
        case FieldDescriptor.CPPTYPE_STRING:
            return rng.choice((*_NAMES, *_TEXTS)).encode(errors="ignore").decode()
        case kind:
            low, high = _LIMITS[kind]
            return min(max(rng.choice((*_INTEGERS, rng.randrange(6))), low), high)


def raw(whole: bytes, rng: random.Random) -> bytes:
    body = bytearray(whole)
    for _ in range(rng.randint(1, 4)):
        at = rng.randint(0, len(body))
        match rng.randrange(5):
            case 0:
                body[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                del body[at : at + rng.randint(1, 20)]
            case 2:
                body[at:at] = rng.randbytes(rng.randint(1, 10))
            case 3:
                body[at:at] = body[at : at + rng.randint(1, 40)]
            case _ if rng.random() < 0.3:
                del body[at:]
            case _:
                body[at : at + 4] = rng.choice((b"\xff\xff\xff\xff", b"\x00\x00\x00\x00", b"\xff\xff\xff\x7f"))
    return bytes(body)
