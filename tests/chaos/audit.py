"""Sent requests and the content of a store, in the same words, so that they can be compared to the last request."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from sqlalchemy import select, text

from stagelens.core import names
from stagelens.store import Store, schema

# Later than the start of any bucket. [Unix seconds]
_FOREVER = 4_000_000_000


@dataclass
class Totals:
    """Counts by service; of the stages, by `service/stage`, and by `service/` all of them together."""

    requests: Counter[str] = field(default_factory=Counter[str])
    microseconds: Counter[str] = field(default_factory=Counter[str])
    traces: Counter[str] = field(default_factory=Counter[str])
    dropped: int = 0

    def add(self, service: str, stages_us: dict[str, int]) -> None:
        self.requests[service] += 1
        for stage, spent in {**stages_us, "": sum(stages_us.values())}.items():
            self.microseconds[f"{service}/{stage}"] += spent

    def to_json(self) -> str:
        return json.dumps(vars(self))

    @classmethod
    def from_json(cls, serialized: str) -> Totals:
        document = json.loads(serialized)
        counters = {name: Counter[str](document[name]) for name in ("requests", "microseconds", "traces")}
        return cls(**counters, dropped=document["dropped"])


def added_up(totals: Iterable[Totals]) -> Totals:
    whole = Totals()
    for total in totals:
        whole.requests += total.requests
        whole.microseconds += total.microseconds
        whole.traces += total.traces
        whole.dropped += total.dropped
    return whole


def held(url: str) -> Totals:
    store = Store.open(url)
    totals = Totals()
    try:
        with store.engine.connect() as connection:
            named = connection.execute(select(schema.services.c.id, schema.services.c.name)).all()
            services: dict[int, str] = {row.id: row.name for row in named}
            points = store.points.load(connection, schema.FINEST, 0, _FOREVER)
            columns = (points.service, points.metric, points.stage, points.histograms.count)
            for service_id, metric, stage, count in zip(*(column.tolist() for column in columns), strict=True):
                service = services[service_id]
                if metric == schema.METRIC_CODES[names.REQUEST_DURATION]:
                    totals.requests[service] += count
                elif metric == schema.METRIC_CODES[names.STAGE_TIME]:
                    totals.microseconds[f"{service}/{points.stages[stage]}"] += count
                    totals.microseconds[f"{service}/"] += count
            traces = "SELECT service, count(*) FROM traces JOIN series ON series.id = series_id GROUP BY service"
            for service, count in connection.execute(text(traces)):
                totals.traces[service] += int(count)
            dropped = connection.execute(text("SELECT coalesce(sum(dropped), 0) FROM batches")).scalar_one()
            totals.dropped = int(dropped)
    finally:
        store.close()
    return totals
