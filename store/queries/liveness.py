"""Whether the collector still works, to tell a silent service from one that nobody listens to."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import func, select

from .. import clock, schema, tiers
from ..points import Snapshot
from ..rollup import SETTLE_SECONDS
from ..selection import moment


def stale_since(snapshot: Snapshot, now: int, patience: timedelta) -> datetime | None:
    """See `Reader.stale_since`; *now* is in Unix seconds.

    A collector that works rolls up what is complete, whether anything comes or not, until some time after the newest data.
    """
    newest = snapshot.connection.execute(select(func.max(schema.series.c.last_seen))).scalar()
    rolled_up = tiers.read(snapshot.connection)[1].watermark
    if newest is None or not rolled_up:
        return None
    waited = int(patience.total_seconds())
    silent = newest + schema.FINEST
    due = clock.now(snapshot.connection, now).settled - SETTLE_SECONDS - waited
    return moment(silent) if now - silent > waited and rolled_up < due else None
