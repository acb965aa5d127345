"""One export request, from its bytes to a batch the store can take.

Bytes and a clock's reading in, a batch and a tally out. It runs in a worker thread, off the event loop.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ..core import names
from ..core.errors import WireError
from . import json_wire, protobuf_wire
from .dimensions import text
from .points import PointReader, Window
from .replies import JSON
from .spans import TraceReader
from .store import Batch
from .tally import Tally
from .traces.columns import encode
from .traces.reading import SpanReader
from .wire import Attributes

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
        batch = self.batch
        return not (self.named or batch.points or batch.traces or batch.dropped or batch.spans)


def read_export(  # noqa: PLR0917 - what was sent, and what it is read with
    signal: Signal,
    media_type: str,
    body: bytes,
    name: str | None,
    window: Window,
    spans: SpanReader,
    environment: str | None = None,
) -> Export:
    """Read an inflated OTLP body.

    Args:
        signal: Which service it was sent to.
        media_type: How it is encoded.
        body: Inflated.
        name: The `X-Stagelens-Batch` header, None when there is none.
        window: Which times are plausible.
        spans: Reads spans.
        environment: What replaces the environment that senders claim; None for nothing.

    Raises:
        TooLargeError: It has more elements than the collector holds.
        WireError: It is malformed, or *name* is.
    """
    batch_id = _batch_id(signal, body, name)
    if signal == "metrics":
        batch, tally = _metrics(batch_id, media_type, body, window, environment)
    else:
        batch, tally = _traces(batch_id, media_type, body, window, spans, environment)
    return Export(batch, tally, named=name is not None, size_bytes=len(body))


def _metrics(
    batch_id: str, media_type: str, body: bytes, window: Window, environment: str | None
) -> tuple[Batch, Tally]:
    wire = json_wire if media_type == JSON else protobuf_wire
    resources = wire.read_metrics(body)
    if environment is not None:
        for item in resources:
            item.resource[names.ENVIRONMENT] = environment
    reader = PointReader(window)
    reader.read(resources)
    instance = _instance(item.resource for item in resources)
    return Batch(id=batch_id, points=reader.points, dropped=reader.dropped, instance=instance), reader.tally


def _traces(  # noqa: PLR0917 - what was sent, and what it is read with
    batch_id: str, media_type: str, body: bytes, window: Window, spans: SpanReader, environment: str | None
) -> tuple[Batch, Tally]:
    reader = TraceReader(window)
    found, kept = spans.read(media_type, body, window, reader.tally, environment)
    reader.read(kept)
    return Batch(
        id=batch_id,
        traces=reader.traces,
        instance=_instance(item.resource for item in kept),
        spans=encode(found) if len(found.rows) else b"",
    ), reader.tally


def _batch_id(signal: Signal, body: bytes, name: str | None) -> str:
    """Return what the batch is counted under: its sender's name for it, or else a hash of what it says."""
    if name is None:
        return f"{signal}#{hashlib.blake2b(body, digest_size=16).hexdigest()}"
    if not 0 < len(name) <= MAX_BATCH_NAME_CHARS or not (name.isascii() and name.isprintable()):
        msg = f"{names.BATCH_HEADER} must be 1 to {MAX_BATCH_NAME_CHARS} printable ASCII characters"
        raise WireError(msg)
    return f"{signal}:{name}"


def _instance(resources: Iterable[Attributes]) -> str:
    found = (text(resource.get(names.SERVICE_INSTANCE, "")) for resource in resources)
    return next((instance for instance in found if instance), "")
