"""Points: as they are written, in columns, as rows of `points`, and their sums by key.

Exports of one service repeat the same few identities. An `Identity` is therefore one object, created once and shared by all
points with the same series, metric and stage; points compare by the identity of that object.

The finest tier receives the most points, and a row of the database costs ten times as much as the histogram in it. The relational
database therefore stores the points of one write, service, metric and bucket of time as one row, a *block*. A block has no
series: its `series_id` is 0 or negative, which numbers the blocks of one write. `zero` is its number of points, `count` and `sum`
are sums over its points (`count` at most `MAX_COUNT`), and `histogram` has their columns. Blocks are never split or merged; they expire like other rows.

A block is a format byte and a Zstandard frame: the number of points, of buckets and of bytes of the stages, one letter for the
type of each column, the stages as JSON, then the columns `BLOCK_COLUMNS`, each with the smallest type that holds its values.
Compression divides the size by 2.7, and the time to write by two, because a commit takes 30 ns for each byte.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, NoReturn

import numpy as np
import zstandard
from numpy.typing import NDArray

from ..core.attributes import REPLICA, split_attribute_key
from ..core.columns import MAX_COUNT, SHARED, Bools, Buckets, Columnar, HistogramArrays, Ints, offsets_of
from ..core.errors import StoreError
from ..core.histogram import Histogram
from ..core.names import OPEN_TIME, REPLICA_STAGE_TIME
from .bucket_blobs import decode_buckets, encode_buckets
from .schema import METRIC_CODES, WITHOUT_REPLICAS, WITHOUT_TOTALS
from .series import Series

_WITHOUT_TOTALS = frozenset(METRIC_CODES[name] for name in WITHOUT_TOTALS)
BLOCK_FORMAT = 2
# Columns of a block: one value for each point, and for `gap` and `amount` one for each bucket. The first gap of a point is its
# lowest bucket.
BLOCK_COLUMNS = ("series", "stage", "scale", "zero", "lengths", "sum", "gap", "amount")
_BUCKET_COLUMNS = frozenset({"gap", "amount"})
_HEAD = struct.Struct(f"<III{len(BLOCK_COLUMNS)}s")


@dataclass(slots=True)
class Point:
    """One data point: a histogram of one series, metric and stage."""

    series: Series
    metric: str  # Name of the metric, one of `names.METRICS`
    stage: str  # The stage; for `inference.request.duration` the dominant stage
    at: int  # Time; the store rounds it down to the start of its bucket. [Unix seconds]
    histogram: Histogram  # Counts (or microseconds) by bucket


@dataclass(frozen=True, slots=True, eq=False)
class Identity:
    """Series, metric and stage of points, as in `Point`; compared by identity."""

    series: Series
    metric: str
    stage: str


@dataclass(frozen=True, slots=True)
class PointColumns(Columnar):
    """Points in columns; iterating yields a `Point` for each."""

    identities: Sequence[Identity]  # Identity of each point
    at: Ints  # Time of each point; shape (n,). [Unix seconds]
    histograms: HistogramArrays  # Histogram of each point

    @classmethod
    def of(cls, points: Sequence[Point]) -> PointColumns:
        identities: dict[tuple[Series, str, str], Identity] = {}
        keys = [(point.series, point.metric, point.stage) for point in points]
        return cls(
            [identities.setdefault(key, Identity(*key)) for key in keys],
            np.array([point.at for point in points], np.int64),
            HistogramArrays.of([point.histogram for point in points]),
        )

    def __iter__(self) -> Iterator[Point]:
        for about, at, histogram in zip(self.identities, self.at.tolist(), self.histograms, strict=True):
            yield Point(about.series, about.metric, about.stage, at, histogram)


def as_columns(points: Sequence[Point] | PointColumns) -> PointColumns:
    return points if isinstance(points, PointColumns) else PointColumns.of(points)


class PointRow(NamedTuple):
    """Row of `points`, in the order of the table's columns: a point, or a block of points, see the module.

    Args:
        tier: Width of the bucket of time. [seconds]
        bucket: Start of the bucket of time. [Unix seconds]
        sum: Sum of the values. [seconds]
    """

    tier: int
    service_id: int
    metric: int
    bucket: int
    series_id: int
    stage: str
    part: int
    scale: int
    zero: int
    count: int  # pyright: ignore[reportIncompatibleMethodOverride] - the column has this name, and rows are not searched
    sum: float
    histogram: bytes

    @property
    def is_block(self) -> bool:
        return self.series_id <= 0

    @property
    def points(self) -> int:
        return self.zero if self.is_block else 1

    def in_total(self, total_id: int) -> PointRow | None:
        return None if self.metric in _WITHOUT_TOTALS else self._replace(metric=-self.metric, series_id=total_id)


def is_kind_of_replica(metric: int, stage: str) -> bool:
    """Return whether rows of *metric* and *stage* describe one replica, see `schema.WITHOUT_REPLICAS`."""
    return metric in _WITHOUT_TOTALS and (
        metric in (METRIC_CODES[REPLICA_STAGE_TIME], METRIC_CODES[OPEN_TIME])
        or split_attribute_key(stage)[0] == REPLICA.key
    )


def histograms_of(rows: Sequence[PointRow]) -> HistogramArrays:
    return HistogramArrays(
        np.array([row.scale for row in rows], np.int64),
        np.array([row.zero for row in rows], np.int64),
        np.array([row.sum for row in rows], np.float64),
        decode_buckets([row.histogram for row in rows]),
    )


# Fewer points become rows, which are then cheaper. Readers need little memory for a few dozen blocks.
MIN_BLOCK_POINTS, MAX_BLOCK_POINTS = 8, 1000
_FORMAT_BYTE, _LEVEL = bytes([BLOCK_FORMAT]), 1
_UNSIGNED, _SIGNED, _FLOAT = ("<u1", "<u2", "<u4"), ("<i1", "<i2", "<i4", "<i8"), "<f8"
_TYPES = dict(zip("abcdefgh", map(np.dtype, (*_UNSIGNED, *_SIGNED, _FLOAT)), strict=True))
_LETTERS = {kind: letter for letter, kind in _TYPES.items()}


@dataclass(frozen=True, slots=True)
class PointTable(Columnar):
    """Points of one tier in columns."""

    service: Ints  # Id of the service of each point; shape (n,)
    metric: Ints  # Metric code of each point; shape (n,)
    bucket: Ints  # Start of the bucket of time of each point; shape (n,). [Unix seconds]
    series: Ints  # Id of the series or total of each point; shape (n,)
    stage: Ints  # Position in *stages* of each point; shape (n,)
    histograms: HistogramArrays  # Histogram of each point
    stages: list[str] = field(metadata=SHARED)  # Stages; may contain stages of other points

    @classmethod
    def of(cls, rows: Iterable[PointRow]) -> PointTable:
        plain: list[PointRow] = []
        blocks: list[PointRow] = []
        for row in rows:
            (blocks if row.is_block else plain).append(row)
        stages: dict[str, int] = {}
        tables = [_table_of_rows(plain, stages)] if plain or not blocks else []
        tables += [_table_of_block(row, stages) for row in blocks]
        return replace(PointTable.join(tables), stages=list(stages))

    def of_stages(self, wanted: Callable[[str], bool]) -> Bools:
        """Return a mask of the points whose stage is *wanted*; shape (n,)."""
        present, index = np.unique(self.stage, return_inverse=True)
        return np.array([wanted(self.stages[number]) for number in present.tolist()], np.bool_)[index]

    def added_up(self, width: int) -> PointTable:
        """Return the sums by key in buckets of time of *width* seconds, sorted by service, metric and bucket."""
        keys = (self.service, self.metric, self.bucket - self.bucket % width, self.series, self.stage)
        first, group = _group(keys)
        service, metric, bucket, series, stage = (key[first] for key in keys)
        return PointTable(
            service, metric, bucket, series, stage, self.histograms.added_up(group, len(first)), self.stages
        )

    def rows(self, tier: int, part: int) -> list[PointRow]:
        stages = self.stages
        values = zip(
            self.service.tolist(),
            self.metric.tolist(),
            self.bucket.tolist(),
            self.series.tolist(),
            self.stage.tolist(),
            self.histograms.scale.tolist(),
            self.histograms.zero.tolist(),
            self.histograms.count.tolist(),
            self.histograms.sum.tolist(),
            encode_buckets(self.histograms.buckets),
            strict=True,
        )
        return [
            PointRow(tier, service, metric, bucket, series, stages[stage], part, scale, zero, count, total, blob)
            for service, metric, bucket, series, stage, scale, zero, count, total, blob in values
        ]

    def blocks(self, tier: int, part: int) -> list[PointRow]:
        if not len(self):
            return []
        changed = (np.diff(self.service) != 0) | (np.diff(self.metric) != 0) | (np.diff(self.bucket) != 0)
        edges = np.concatenate(([0], np.flatnonzero(changed) + 1, [len(self)]))
        offsets = self.histograms.buckets.offsets
        few = np.diff(edges) < MIN_BLOCK_POINTS
        rows = self.where(np.repeat(few, np.diff(edges))).rows(tier, part) if few.any() else []
        columns, pack = self._block_columns(), zstandard.ZstdCompressor(level=_LEVEL).compress
        for start, stop in zip(edges[:-1][~few].tolist(), edges[1:][~few].tolist(), strict=True):
            for number, low in enumerate(range(start, stop, MAX_BLOCK_POINTS)):
                points = slice(low, min(low + MAX_BLOCK_POINTS, stop))
                key = (int(self.service[low]), int(self.metric[low]), int(self.bucket[low]), -number, "", part)
                buckets = slice(int(offsets[low]), int(offsets[points.stop]))
                blob = _FORMAT_BYTE + pack(self._encode_block(columns, points, buckets))
                total = float(self.histograms.sum[points].sum())
                rows.append(PointRow(tier, *key, 0, points.stop - low, self._count(points, buckets), total, blob))
        return sorted(rows)

    def _count(self, points: slice, buckets: slice) -> int:
        counts = (self.histograms.zero[points], self.histograms.buckets.amount[buckets])
        is_valid = sum(float(amounts.sum(dtype=np.float64)) for amounts in counts) <= MAX_COUNT
        return sum(int(amounts.sum()) for amounts in counts) if is_valid else MAX_COUNT

    def _block_columns(self) -> Mapping[str, NDArray[np.generic]]:
        buckets = self.histograms.buckets
        return {
            "series": self.series,
            "stage": self.stage,
            "scale": self.histograms.scale,
            "zero": self.histograms.zero,
            "lengths": buckets.lengths,
            "sum": self.histograms.sum,
            "gap": buckets.gaps,
            "amount": buckets.amount,
        }

    def _encode_block(self, columns: Mapping[str, NDArray[np.generic]], points: slice, buckets: slice) -> bytes:
        present, index = np.unique(self.stage[points], return_inverse=True)
        names = json.dumps([self.stages[number] for number in present.tolist()]).encode()
        packed = [
            _smallest(index if name == "stage" else columns[name][buckets if name in _BUCKET_COLUMNS else points])
            for name in BLOCK_COLUMNS
        ]
        letters = "".join(_LETTERS[column.dtype] for column in packed).encode()
        sizes = (points.stop - points.start, buckets.stop - buckets.start)
        head = _HEAD.pack(*sizes, len(names), letters)
        return b"".join((head, names, *(column.tobytes() for column in packed)))


def sum_rows(table: PointTable, width: int, part: int) -> list[PointRow]:
    """Return the sums of *table*: one row for each key and bucket of *width* seconds, with the write number *part*.

    Points that the tier of this width does not hold are left out.
    """
    if width >= WITHOUT_REPLICAS:
        table = table.where(~_is_of_replica(table))
    return table.added_up(width).rows(width, part)


def _is_of_replica(table: PointTable) -> Bools:
    first, group = _group((table.metric, table.stage))
    kinds = zip(table.metric[first].tolist(), table.stage[first].tolist(), strict=True)
    of_replica = [is_kind_of_replica(metric, table.stages[stage]) for metric, stage in kinds]
    return np.array(of_replica, np.bool_)[group]


def _group(keys: Sequence[Ints]) -> tuple[Ints, Ints]:
    order = np.lexsort(keys[::-1])
    differs = np.zeros(len(order), np.bool_)
    differs[:1] = True
    for key in keys:
        differs[1:] |= np.diff(key[order]) != 0
    group = np.empty(len(order), np.int64)
    group[order] = np.cumsum(differs) - 1
    return order[differs], group


def _table_of_rows(rows: Sequence[PointRow], stages: dict[str, int]) -> PointTable:
    numbers = np.array([(row.service_id, row.metric, row.bucket, row.series_id) for row in rows], np.int64)
    service, metric, bucket, series = numbers.reshape(-1, 4).T
    stage = np.array([stages.setdefault(row.stage, len(stages)) for row in rows], np.int64)
    return PointTable(service, metric, bucket, series, stage, histograms_of(rows), [])


def _table_of_block(row: PointRow, stages: dict[str, int]) -> PointTable:
    series, stage, histograms = decode_block(row.histogram, stages)
    same = np.ones(len(series), np.int64)
    return PointTable(row.service_id * same, row.metric * same, row.bucket * same, series, stage, histograms, [])


def decode_block(blob: bytes, stages: dict[str, int]) -> tuple[Ints, Ints, HistogramArrays]:
    """Return the series, the stages and the histograms of the points in the block *blob*.

    Raises:
        StoreError: The block is damaged or has a format that this version does not know.
    """
    if blob[:1] != _FORMAT_BYTE:
        msg = f"stored points have format {blob[:1].hex() or 'none'}, this version reads {BLOCK_FORMAT:02x}; upgrade Stagelens"
        raise StoreError(msg)
    try:
        data = zstandard.decompress(blob[1:])
        points, buckets, size, letters = _HEAD.unpack_from(data)
        at = _HEAD.size + size
        numbers = [stages.setdefault(name, len(stages)) for name in json.loads(data[_HEAD.size : at])]
        columns: dict[str, NDArray[np.generic]] = {}
        for name, letter in zip(BLOCK_COLUMNS, letters.decode(), strict=True):
            kind, count = _TYPES[letter], buckets if name in _BUCKET_COLUMNS else points
            columns[name] = np.frombuffer(data, kind, count, at)
            at += count * kind.itemsize
        lengths = columns["lengths"].astype(np.int64)
        offsets = offsets_of(lengths)
        if offsets[-1] != buckets or at != len(data):
            _raise_damaged()
        stage = np.array(numbers, np.int64)[columns["stage"].astype(np.int64)]
    except (ValueError, IndexError, KeyError, TypeError, struct.error, zstandard.ZstdError) as error:
        _raise_damaged(error)
    histograms = HistogramArrays(
        columns["scale"].astype(np.int64),
        columns["zero"].astype(np.int64),
        columns["sum"].astype(np.float64),
        Buckets.of_gaps(columns["gap"].astype(np.int64), offsets, columns["amount"].astype(np.int64)),
    )
    return columns["series"].astype(np.int64), stage, histograms


def _raise_damaged(error: Exception | None = None) -> NoReturn:
    msg = "stored points are damaged; check the disk, and restore the database from a backup"
    raise StoreError(msg) from error


def _smallest(values: NDArray[np.generic]) -> NDArray[np.generic]:
    if values.dtype.kind == "f":
        return values.astype(_FLOAT)
    low, high = int(values.min(initial=0)), int(values.max(initial=0))
    for kind in map(np.dtype, _UNSIGNED if low >= 0 else _SIGNED):
        limits = np.iinfo(kind)
        if limits.min <= low and high <= limits.max:
            return values.astype(kind)
    return values.astype(_SIGNED[-1])
