"""Documents of retained traces: compatible with older versions."""

from __future__ import annotations

import json
import zlib
from typing import Any

import pytest

from stagelens.store import records

DOCUMENT: dict[str, Any] = {
    "spans": [{"name": "推論", "start_ns": 2**60, "attributes": {"a": True}}],
    "attributes": {"b": 1.5},
}
NOW = records.trace_packer()(records.encode_json(DOCUMENT))
BEFORE = zlib.compress(json.dumps(DOCUMENT).encode(), 6)


@pytest.mark.parametrize("packed", [NOW, BEFORE], ids=["now", "before"])
def test_written_columns_are_read_unchanged(packed: bytes) -> None:
    assert records.unpack_trace(packed) == DOCUMENT
    assert records.unpack_attributes(packed) == DOCUMENT["attributes"]


@pytest.mark.parametrize("value", [5, '"attributes":{"a":1}}', "}"])
def test_the_attributes_are_found_whatever_they_are_called(value: object) -> None:
    attributes = {"attributes": value, "last": value}
    document = {"spans": DOCUMENT["spans"], "attributes": attributes, "parent": "ab"}
    packed = records.trace_packer()(records.encode_json(document))

    assert records.unpack_attributes(packed) == attributes
