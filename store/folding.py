"""Writing what spans were folded to: as a batch that takes out of the inbox what it was made of."""

from __future__ import annotations

import uuid
from dataclasses import replace

from sqlalchemy import Connection

from . import inbox, ingest
from .inbox import Folded
from .points import Change
from .records import Batch
from .series import SeriesIndex


def prepare(connection: Connection, folded: Folded, index: SeriesIndex, arrival: ingest.Arrival) -> Change | None:
    """Return the write that counts *folded*; None if others have counted any of it."""
    if not inbox.holds(connection, folded.taken):
        return None
    batch = Batch(f"fold#{uuid.uuid4().hex}", folded.points, list(folded.traces))
    _, change = ingest.prepare(connection, [batch], index, arrival)
    if change is None:
        raise AssertionError  # no other batch has this name
    write = change.finish

    def finish(connection: Connection) -> None:
        inbox.replace(connection, folded)
        write(connection)

    return replace(change, finish=finish)
