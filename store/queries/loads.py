"""What replicas loaded and warmed up, and which of them still send."""

from __future__ import annotations

import pandas as pd
from sqlalchemy import func, select

from .. import schema
from ..points import Snapshot
from ..texts import name as storable_name

COLUMNS = ("instance", "place", "version", "environment", "phase", "model", "shape", "started", "ended", "own")


def loads(snapshot: Snapshot, service: str, environment: str | None, heard_since: int) -> pd.DataFrame:
    """See `Reader.loads`; who was heard of since *heard_since*, in Unix seconds, has `heard`."""
    table, batches = schema.loads, schema.batches
    wanted = (
        select(*(table.c[name] for name in COLUMNS))
        .where(table.c.service == storable_name(service))
        .order_by(table.c.ended.desc(), table.c.id.desc())
    )
    if environment is not None:
        wanted = wanted.where(table.c.environment == storable_name(environment))
    found = pd.DataFrame([tuple(row) for row in snapshot.connection.execute(wanted)], columns=list(COLUMNS))
    heard = (
        select(batches.c.instance, func.max(batches.c.received))
        .where(batches.c.received >= heard_since, batches.c.instance != "")
        .group_by(batches.c.instance)
    )
    last = {instance: at for instance, at in snapshot.connection.execute(heard)}  # noqa: C416 - rows are no tuples to types
    return found.assign(
        started=pd.to_datetime(found["started"].astype("int64"), unit="ns", utc=True),
        ended=pd.to_datetime(found["ended"].astype("int64"), unit="ns", utc=True),
        seconds=found.pop("own").astype("float64") / 1e9,
        heard=pd.to_datetime(found["instance"].map(last).astype("float64"), unit="s", utc=True),
    )
