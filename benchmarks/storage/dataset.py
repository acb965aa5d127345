"""The data of the benchmark: who sends, from when to when, and the rows in the order the writer and the roll-ups write them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from stagelens.core.histogram import SCALE
from stagelens.store import Series
from stagelens.store.point_table import PointTable, sum_rows
from stagelens.store.points import Ints, PointRow
from stagelens.store.schema import TIERS, floor_to
from stagelens.store.series import SeriesNumbers

from .pool import KINDS, Pool

MINUTE, HOUR, DAY = 60, 3600, 86_400
# The end of the data: nothing is aligned to it. 2026-11-20 13:37:40 UTC
NOW = 1_795_181_860
SERVICES, VERSIONS, STATUSES = 5, 2, ("ok", "error")
# How much is written at once: what the roll-up to minutes writes in one transaction. [seconds]
CHUNK = 300
# Coarser tiers keep all there is.
_KEPT_SECONDS = {tier: DAY if tier < MINUTE else 8 * DAY for tier in TIERS if tier < HOUR}


@dataclass(frozen=True)
class Shape:
    """How much data there is.

    Args:
        n_series: Rows of one bucket.
        days: Days before the day of `NOW`; at most 8 of them by the minute and one in steps of 10 s.
    """

    n_series: int
    days: int

    @property
    def name(self) -> str:
        """Of its database."""
        return f"{self.n_series}x{self.days}d"

    @cached_property
    def streams(self) -> list[Series]:
        """The streams of requests: rows of one bucket are `KINDS` for each of them."""
        routes = self.n_series // (len(KINDS) * SERVICES * VERSIONS * len(STATUSES))
        return [
            Series(
                f"service-{service}", f"v{version}", "production", "model", "1", f"/predict/{route}", "cuda:0", status
            )
            for service in range(SERVICES)
            for version in range(VERSIONS)
            for route in range(routes)
            for status in STATUSES
        ]

    def kept_from(self, tier: int) -> int:
        """Return the first moment that is kept at *tier*."""
        first = floor_to(NOW, DAY) - self.days * DAY
        return max(first, floor_to(NOW - _KEPT_SECONDS[tier], HOUR)) if tier in _KEPT_SECONDS else first

    def watermark(self, tier: int) -> int:
        """Return the end of what is rolled up to *tier*."""
        return floor_to(NOW - MINUTE, tier)


class Rows:
    """The rows of a dataset.

    Args:
        shape: How many.
        pools: What they are taken from, by tier.
        owners: The numbers of each stream.
    """

    def __init__(self, shape: Shape, pools: dict[int, Pool], owners: list[SeriesNumbers]) -> None:
        self._shape, self._pools = shape, pools
        self._totals = {owner.series_id: owner.total_id for owner in owners}
        slots = sorted(
            (owner.service_id, metric, owner.series_id, stage, stream, kind)
            for stream, owner in enumerate(owners)
            for kind, (metric, stage) in enumerate(KINDS)
        )
        self._keys = [(service, metric, series, stage) for service, metric, series, stage, _, _ in slots]
        self._stream = np.array([slot[4] for slot in slots])
        self._kind = np.array([slot[5] for slot in slots])

    def chunks(self) -> Iterator[tuple[int, range]]:
        """Yield what is written together: a tier and the buckets of it; finer tiers of a moment before the coarser."""
        shape = self._shape
        for at in range(shape.kept_from(TIERS[-1]), NOW, CHUNK):
            end = min(at + CHUNK, NOW)
            if end > shape.kept_from(TIERS[0]):
                yield TIERS[0], range(at, floor_to(end, 10), 10)
            if end > shape.kept_from(MINUTE):
                yield MINUTE, range(at, min(end, shape.watermark(MINUTE)), MINUTE)
            for tier in TIERS[2:]:
                if (at + CHUNK) % tier == 0 and shape.kept_from(tier) <= at < shape.watermark(tier):
                    yield tier, range(at + CHUNK - tier, at + CHUNK, tier)

    def rows(self, tier: int, buckets: range, part: int) -> list[PointRow]:
        """Return the rows of *buckets*: of the finest tier bucket by bucket, of others with their totals, in the order of the key."""
        pool = self._pools[tier]
        made: list[PointRow] = []
        for bucket in buckets:
            row = (self._draws(tier, bucket)[self._stream] * len(KINDS) + self._kind).tolist()
            total = pool.sum[row].tolist()
            made += [
                PointRow(
                    tier,
                    service,
                    metric,
                    bucket,
                    series,
                    stage,
                    part,
                    SCALE,
                    0,
                    pool.count[at],
                    seconds,
                    pool.blobs[at],
                )
                for (service, metric, series, stage), at, seconds in zip(self._keys, row, total, strict=True)
            ]
        return made if tier == TIERS[0] else sorted(made + sum_rows(PointTable.of(self._in_totals(made)), tier, part))

    def _in_totals(self, rows: list[PointRow]) -> list[PointRow]:
        return [row._replace(metric=-row.metric, series_id=self._totals[row.series_id]) for row in rows]

    def _draws(self, tier: int, bucket: int) -> Ints:
        """Return the draw of each stream: a day is drawn, its parts are what was added up to it."""
        random = np.random.default_rng(floor_to(bucket, DAY))
        found = random.integers(self._pools[TIERS[-1]].draws, size=len(self._shape.streams))
        for fine, coarse in reversed([*pairwise(TIERS)]):
            if coarse > tier:
                found = self._pools[coarse].parts[found, bucket % coarse // fine]
        return found
