"""A reading as bytes, to be found again by whoever reads the target next."""

from __future__ import annotations

import json
import zlib
from math import inf
from typing import Any

from .reading import Counted, Reading, Stream

# Readings by another version are none: the next is the first.
_FORMAT = 1


def dump(reading: Reading) -> bytes:
    """Return *reading* as bytes."""
    streams = [
        (
            *stream,
            [(low, None if high == inf else high, count) for (low, high), count in counted.buckets.items()],
            counted.sum,
            counted.created,
        )
        for stream, counted in reading.streams.items()
    ]
    document = [_FORMAT, reading.at, reading.rules, reading.started, streams, reading.beyond]
    return zlib.compress(json.dumps(document, separators=(",", ":")).encode())


def load(saved: bytes) -> Reading | None:
    """Return what was dumped; None where that is nothing, or not by this version."""
    if not saved:
        return None
    form, *rest = json.loads(zlib.decompress(saved))
    if form != _FORMAT:
        return None
    at, rules, started, streams, beyond = rest
    return Reading(at, rules, started, dict(map(_stream, streams)), beyond)


def _stream(row: list[Any]) -> tuple[Stream, Counted]:
    kind, key, labels, buckets, total, created = row
    edges = {(low, inf if high is None else high): count for low, high, count in buckets}
    return Stream(kind, key, tuple((name, value) for name, value in labels)), Counted(edges, total, created)
