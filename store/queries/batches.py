"""How long the model of a request ran, by how many items it ran at once."""

from __future__ import annotations

from ...core.histogram import BATCH_SIZES, Histogram
from ...core.names import BATCH_DURATION
from ..points import Snapshot
from ..selection import Selection
from .latency import distributions


def batches(snapshot: Snapshot, selection: Selection) -> dict[str, Histogram]:
    """See `Reader.batches`."""
    found = distributions(snapshot, selection, BATCH_DURATION)
    return {band: found[band] for band in sorted(found, key=BATCH_SIZES.position)}
