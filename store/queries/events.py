"""What people and pipelines told that happened."""

from __future__ import annotations

from datetime import datetime

import pandas as pd
from sqlalchemy import select

from .. import schema
from ..events import COLUMNS
from ..points import Snapshot
from ..texts import name as storable_name


def events(snapshot: Snapshot, start: datetime, end: datetime, service: str | None, kind: str | None) -> pd.DataFrame:
    """See `Reader.events`."""
    table = schema.events
    statement = (
        select(*(table.c[name] for name in COLUMNS))
        .where(table.c.at >= int(start.timestamp() * 1000), table.c.at < int(end.timestamp() * 1000))
        .order_by(table.c.at.desc(), table.c.id.desc())
    )
    if service is not None:
        statement = statement.where(table.c.service.in_(("", storable_name(service))))
    if kind is not None:
        statement = statement.where(table.c.kind == kind)
    rows = [tuple(row) for row in snapshot.connection.execute(statement)]
    found = pd.DataFrame(rows, columns=list(COLUMNS))
    return found.assign(at=pd.to_datetime(found["at"].astype("int64"), unit="ms", utc=True))
