"""What a store says of its requests, to be compared with what another one says of the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from sqlalchemy import select

from . import schema, tiers
from .points import PointQuery, Snapshot
from .queries import fetch
from .selection import Selection

_EVER = Selection(datetime(1970, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC))
_QUANTILES = (0.5, 0.99)


@dataclass(frozen=True, slots=True)
class Contents:
    """What is in a store.

    Args:
        counts: Sum of the counts by tier (its width in seconds), service and metric; totals are metrics of their own.
        quantiles: p50 and p99 of each service over all that is kept; in seconds, None without requests.
    """

    counts: dict[tuple[int, str, str], int]
    quantiles: dict[str, tuple[float | None, ...]]


def read(snapshot: Snapshot) -> Contents:
    """Return what is in *snapshot*."""
    names = snapshot.connection.scalars(select(schema.services.c.name).order_by(schema.services.c.name)).all()
    counts: Counter[tuple[int, str, str]] = Counter()
    for key, count in _counts(snapshot):
        counts[key] += count
    return Contents(dict(counts), {name: _quantiles(snapshot, name) for name in names})


def _counts(snapshot: Snapshot) -> Iterator[tuple[tuple[int, str, str], int]]:
    series = schema.series
    rows = snapshot.connection.execute(select(series.c.id, series.c.total_id, series.c.service)).all()
    owners = {row.id: row.service for row in rows} | {row.total_id: row.service for row in rows}
    for tier in tiers.read(snapshot.connection):
        segment = tiers.Segment(tier.seconds, tier.kept_from, _EVER.seconds[1])
        kinds: tuple[Literal["series", "total"], ...] = ("series",)
        if tier.seconds != schema.FINEST:
            kinds = ("series", "total")
        for metric in schema.METRIC_CODES:
            for by in kinds:
                question = PointQuery(_EVER, (metric,), by=by)
                for seen in snapshot.points.seen(snapshot.connection, question, segment):
                    name = metric if by == "series" else f"{metric} (totals)"
                    yield (tier.seconds, owners.get(seen.series_id, ""), name), seen.requests


def _quantiles(snapshot: Snapshot, service: str) -> tuple[float | None, ...]:
    found = fetch.request_latency(snapshot, Selection(_EVER.start, _EVER.end, service=service))
    return tuple(None if (said := found.quantile(each)) is None else said.value for each in _QUANTILES)


def differences(expected: Contents, actual: Contents) -> list[str]:
    """Return in words what *actual* says otherwise than *expected*."""
    said = [
        f"{metric} of {service or 'no service'} in the {tier} s tier counts {there}, not {here}"
        for (tier, service, metric) in sorted(expected.counts.keys() | actual.counts.keys())
        if (here := expected.counts.get((tier, service, metric), 0))
        != (there := actual.counts.get((tier, service, metric), 0))
    ]
    for service in sorted(expected.quantiles.keys() | actual.quantiles.keys()):
        here, there = expected.quantiles.get(service), actual.quantiles.get(service)
        if here != there:
            said.append(f"p50 and p99 of {service} are {there}, not {here} seconds")
    return said
