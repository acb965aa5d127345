"""One export request, from its bytes to a batch the store can take.

Bytes and a clock's reading in, a batch and a tally out. It runs in a worker thread, off the event loop.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ..core import names
from ..core.errors import WireError
from . import json_wire, protobuf_wire
from .dimensions import text
from .points import PointReader, Window
from .replies import JSON
from .spans import TraceReader
from .store import Batch, KeptTrace, Point
from .tally import Tally
from .triton import TritonReader
from .triton_pieces import Pieces
from .wire import ResourceMetrics, ResourceSpans

Signal: TypeAlias = Literal["metrics", "traces"]

MAX_BATCH_NAME_CHARS = 200


@dataclass(frozen=True, slots=True)
class Export:
    """An export that was read.

    Args:
        batch: What of it to write.
        tally: What of it was refused or passed over.
        named: Whether its sender named it.
        size_bytes: Its inflated size.
    """

    batch: Batch
    tally: Tally
    named: bool
    size_bytes: int

    @property
    def empty(self) -> bool:
        """Whether there is nothing to write, not even a sign of life."""
        return not (self.named or self.batch.points or self.batch.traces or self.batch.dropped)


def read_export(  # noqa: PLR0917 - what was sent, and what it is read with
    signal: Signal, media_type: str, body: bytes, name: str | None, window: Window, pieces: Pieces
) -> Export:
    """Read an inflated OTLP body.

    Args:
        signal: Which service it was sent to.
        media_type: How it is encoded.
        body: Inflated.
        name: The `X-Stagelens-Batch` header, None when there is none.
        window: Which times are plausible.
        pieces: Spans of requests of Triton whose own span is still to come.

    Raises:
        TooLargeError: It has more elements than the collector holds.
        WireError: It is malformed, or *name* is.
    """
    wire = json_wire if media_type == JSON else protobuf_wire
    batch_id = _batch_id(signal, body, name)
    points: Sequence[Point] = ()
    traces: Sequence[KeptTrace] = ()
    dropped = 0
    if signal == "metrics":
        resources = wire.read_metrics(body)
        reader = PointReader(window)
        reader.read(resources)
        points, dropped = reader.points, reader.dropped
    else:
        resources = wire.read_spans(body)
        reader = TraceReader(window)
        reader.read(resources)
        triton = TritonReader(window, pieces, tally=reader.tally)
        triton.read(resources)
        points, traces = triton.points, [*reader.traces, *triton.traces]
    batch = Batch(id=batch_id, points=list(points), traces=list(traces), dropped=dropped, instance=_instance(resources))
    return Export(batch, reader.tally, named=name is not None, size_bytes=len(body))


def _batch_id(signal: Signal, body: bytes, name: str | None) -> str:
    """Return what the batch is counted under: its sender's name for it, or else a hash of what it says."""
    if name is None:
        return f"{signal}#{hashlib.blake2b(body, digest_size=16).hexdigest()}"
    if not 0 < len(name) <= MAX_BATCH_NAME_CHARS or not (name.isascii() and name.isprintable()):
        msg = f"{names.BATCH_HEADER} must be 1 to {MAX_BATCH_NAME_CHARS} printable ASCII characters"
        raise WireError(msg)
    return f"{signal}:{name}"


def _instance(resources: Iterable[ResourceMetrics | ResourceSpans]) -> str:
    found = (text(item.resource.get(names.SERVICE_INSTANCE, "")) for item in resources)
    return next((instance for instance in found if instance), "")
