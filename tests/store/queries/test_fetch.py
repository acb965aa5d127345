"""Evaluation of many steps together equals that of each step alone, bit for bit."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stagelens.core.columns import Buckets, Ints, merge_buckets
from stagelens.store.queries.fetch import add_up_steps
from stagelens.store.queries.latency import Mixture
from stagelens.store.queries.time_series import step_mixtures
from stagelens.store.schema import METRIC_CODES
from stagelens.store.storage import BREAKDOWN_METRICS, Columns, Steps, add_up, sum_points

STAGES = ("forward", "overhead", "queue")
STEPS = Steps(start=1_030, width=60)
REQUESTS, TIMES = (METRIC_CODES[metric] for metric in BREAKDOWN_METRICS)

Point: TypeAlias = tuple[int, int, int, int, int, dict[int, int]]

BUCKETS = st.dictionaries(st.integers(-200, 200), st.integers(1, 40), max_size=12)
# Time, metric, stage, scale, zero count, and the buckets of one point.
POINT = st.tuples(
    st.integers(STEPS.start, STEPS.start + 400),
    st.sampled_from((REQUESTS, TIMES)),
    st.integers(0, len(STAGES) - 1),
    st.sampled_from((5, 5, 5, 3)),
    st.integers(0, 3),
    BUCKETS,
).filter(lambda point: bool(point[4] or point[5]))
POINTS = st.lists(POINT, min_size=1, max_size=40)


def columns_of(points: list[Point]) -> Columns:
    points = sorted(points, key=lambda point: point[0])
    times, metric, stage, scale, zero, buckets = zip(*points, strict=True)
    pairs = np.array([pair for bucket in buckets for pair in sorted(bucket.items())], np.int64).reshape(-1, 2)
    offsets = np.cumsum([0, *map(len, buckets)], dtype=np.int64)
    return Columns(
        times=np.array(times, np.int64),
        series=np.arange(len(points), dtype=np.int64) % 3,
        metric=np.array(metric, np.int64),
        stage=np.array(stage, np.int64),
        stages=STAGES,
        scale=np.array(scale, np.int64),
        zero=np.array(zero, np.int64),
        sum=np.arange(len(points), dtype=np.float64),
        buckets=Buckets(offsets, pairs[:, 0], pairs[:, 1]),
    )


def each_step(columns: Columns) -> list[tuple[int, Columns]]:
    starts: Ints = STEPS.of(columns.times)
    return [(int(at), columns.where(starts == at)) for at in np.unique(starts)]


@given(POINTS, st.sampled_from((0.0, 0.5, 0.99, 1.0)), st.sampled_from((0.0, 0.013, 1.0, 7.3)))
def test_steps_fetched_together_equal_separate_steps(points: list[Point], quantile: float, threshold: float) -> None:
    columns = columns_of(points)
    rows = [
        start
        for counts in add_up_steps(columns, STEPS)
        for start in zip(
            counts.starts.tolist(),
            counts.total.tolist(),
            counts.values_at(quantile).tolist(),
            counts.above(threshold).tolist(),
            strict=True,
        )
    ]

    alone = [(at, add_up(part)) for at, part in each_step(columns)]
    assert rows == [
        (at, counts.total, counts.value_at(quantile).value, counts.histogram().count_above(threshold).value)
        for at, counts in alone
    ]


@given(POINTS, st.sampled_from((0.0, 0.5, 0.99, 1.0)))
@example([(1030, 1, 0, 5, 1, {}), (1030, 3, 0, 5, 0, {0: 1})], 0.0)
def test_mixtures_fetched_together_equal_separate_mixtures(points: list[Point], quantile: float) -> None:
    columns = columns_of(points)
    rows = [row for mixed in step_mixtures(columns, STEPS) for row in mixed.rows(quantile)]
    alone = [(at, Mixture(part)) for at, part in each_step(columns) if len(part.of(BREAKDOWN_METRICS[0]))]
    bands = [(at, mixed.n, mixed.at(quantile)) for at, mixed in alone]

    assert rows == [
        pytest.approx({"at": at, "n": n, "value_seconds": band.value.value, **band.seconds()}) for at, n, band in bands
    ]


@pytest.mark.parametrize("apart", [True, False])
@given(POINTS)
def test_adding_up_points_first_changes_no_result(apart: bool, points: list[Point]) -> None:
    columns = columns_of(points)
    added = sum_points(columns, STEPS, apart=apart)

    assert _quantiles(added) == _quantiles(columns)
    assert (np.diff(STEPS.of(added.times)) >= 0).all()
    assert len(added) <= len(columns)


def _quantiles(columns: Columns) -> list[tuple[int, int, float]]:
    requests = columns.of(BREAKDOWN_METRICS[0])
    return [
        start
        for counts in add_up_steps(requests, STEPS)
        for start in zip(counts.starts.tolist(), counts.total.tolist(), counts.values_at(0.9).tolist(), strict=True)
    ]


def test_a_sparse_table_is_not_allocated() -> None:
    groups = 5_000
    index = np.tile(np.array([-34_000, 32_000]), groups)
    buckets = Buckets(2 * np.arange(groups + 1), index, np.ones_like(index))
    merged = merge_buckets(buckets, np.arange(groups), np.zeros(groups, np.int64), groups)

    assert merged.index.tolist() == index.tolist()
    assert merged.offsets.tolist() == buckets.offsets.tolist()
