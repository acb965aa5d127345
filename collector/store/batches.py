"""How long the model of a request ran, by how many items it ran at once."""

from __future__ import annotations

from ...core.batch_bands import position
from ...core.histogram import Histogram
from ...core.names import BATCH_DURATION
from .latency import distributions
from .points import Snapshot
from .selection import Selection


def batches(snapshot: Snapshot, selection: Selection) -> dict[str, Histogram]:
    """See `Reader.batches`."""
    found = distributions(snapshot, selection, BATCH_DURATION)
    return {band: found[band] for band in sorted(found, key=position)}
