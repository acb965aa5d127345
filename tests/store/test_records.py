"""Documents of kept traces are read as they were written, by this version or an older one."""

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
def test_what_was_written_is_read(packed: bytes) -> None:
    """A store keeps its traces for days: those that were there before an upgrade are read, too."""
    assert records.unpack_trace(packed) == DOCUMENT
