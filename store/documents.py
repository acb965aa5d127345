"""The documents of kept traces, as the database has them: their spans and attributes as JSON, packed.

They are packed with zstd, for a third of the time that zlib takes; those of a store that is older were packed with zlib.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from typing import Any

import zstandard

# RFC 8878, 3.1.1: what a frame begins with. No stream of zlib does (RFC 1950).
_ZSTD = b"\x28\xb5\x2f\xfd"
_LEVEL = 3

written: Callable[[Any], str] = json.JSONEncoder(separators=(",", ":")).encode


def packer() -> Callable[[str], bytes]:
    """Return what packs documents, for one thread: it is made once for many of them, which takes longer than to pack one."""
    compress = zstandard.ZstdCompressor(level=_LEVEL).compress
    return lambda document: compress(document.encode())


def read(packed: bytes) -> dict[str, Any]:
    """Return a document: `spans` and `attributes`."""
    unpacked = zstandard.decompress(packed) if packed.startswith(_ZSTD) else zlib.decompress(packed)
    return json.loads(unpacked)
