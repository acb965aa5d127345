"""Questions to the points in ClickHouse, which adds them up itself, and its answers as columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..columns import Columns, Steps
from ..encoding import Buckets
from ..points import PointQuery
from ..tiers import Segment
from .clickhouse_ddl import listed, text
from .clickhouse_native import Array

# Stands in the place of a bucket's index in the row that tells the totals of a point; no bucket has it, and it sorts first.
_HEAD = -(2**31)


def select(what: str, source: str, where: str = "true", then: str = "") -> str:
    """Return a query. Whatever is put into one here is a number, a quoted name or written in this package.

    >>> select("count()", "points", "tier = 10")
    'SELECT count() FROM points WHERE tier = 10'
    """
    return f"SELECT {what} FROM {source} WHERE {where} {then}".rstrip()  # noqa: S608 - see above


def conditions(question: PointQuery, segment: Segment, services: Sequence[int], numbers: Sequence[int] | None) -> str:
    """Return what rows must fulfil to be in the answer; *services* and *numbers* as from `points.owners`."""
    wanted = [
        f"tier = {segment.tier}",
        f"service_id IN {listed(services)}",
        f"metric IN {listed(question.codes(segment.tier))}",
        f"bucket >= {segment.start} AND bucket < {segment.end}",
    ]
    if numbers is not None:
        wanted.append(f"series_id IN {listed(numbers)}")
    return " AND ".join(wanted)


def place_of(stages: Sequence[str]) -> str:
    """Return the column that tells which of *stages* a row is of, from 1 on."""
    return f"toUInt16(indexOf([{', '.join(map(text, stages))}], stage)) AS place"


def added_up(table: str, where: str, stages: Sequence[str], steps: Steps | None, *, by_series: bool) -> str:
    """Return the query for points added up by step, metric, stage and scale, and by series if asked to.

    The answer has a row for each bucket of a point, and one before them for its totals. All of it is numbers: a name among
    the keys makes adding up take three times as long.

    Args:
        table: Of points.
        where: Which of them, see `conditions`.
        stages: That occur; the answer tells the places they have here, from 1 on.
        steps: See `Points.read`.
        by_series: Whether to tell series apart.
    """
    step = "0"
    if steps is not None and steps.width is not None:
        step = f"greatest(bucket - bucket % {steps.width}, {steps.start})"
    keys = (
        f"toUInt32({step}) AS step, toUInt32({'series_id' if by_series else '0'}) AS owner, metric, "
        f"{place_of(stages)}, scale"
    )
    group = "step, owner, metric, place, scale"
    buckets = select(
        f"{keys}, toInt32(at) AS index, toInt64(sum(amount)) AS held, toFloat64(0) AS total, toUInt32(0) AS last",
        f"{table} ARRAY JOIN arrayCumSum(gaps) AS at, amounts AS amount",
        where,
        f"GROUP BY {group}, index",
    )
    heads = select(
        f"{keys}, toInt32({_HEAD}) AS index, toInt64(sum(zero)) AS held, sum(sum) AS total, max(bucket) AS last",
        table,
        where,
        f"GROUP BY {group}",
    )
    return select("*", f"({buckets} UNION ALL {heads})", then=f"ORDER BY {group}, index")


def columns(answer: Mapping[str, Array], stages: Sequence[str]) -> Columns:
    """Return the *answer* to `added_up`, which has at least one point, sorted by time."""
    index = answer["index"]
    heads = np.flatnonzero(index == _HEAD)
    lengths = np.diff(heads, append=len(index)) - 1
    order = np.argsort(answer["last"][heads], kind="stable")
    heads, lengths = heads[order], lengths[order]
    offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
    filled = np.arange(offsets[-1]) + np.repeat(heads + 1 - offsets[:-1], lengths)
    points = {name: column[heads] for name, column in answer.items()}
    return Columns(
        times=points["last"].astype(np.int64),
        series=points["owner"].astype(np.int64),
        metric=np.abs(points["metric"].astype(np.int64)),
        stage=points["place"].astype(np.int64) - 1,
        stages=tuple(stages),
        scale=points["scale"].astype(np.int64),
        zero=points["held"].astype(np.int64),
        sum=points["total"].astype(np.float64),
        buckets=Buckets(offsets, index[filled].astype(np.int64), answer["held"][filled].astype(np.int64)),
    )
