"""Blocks: the columns of many points in one row."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from stagelens.core.columns import HistogramArrays
from stagelens.core.errors import StoreError
from stagelens.core.histogram import Histogram
from stagelens.store.point_table import MAX_BLOCK_POINTS, MIN_BLOCK_POINTS, PointTable
from stagelens.store.points import PointRow

FORWARD = Histogram(5, {-3000: 1, -2999: 2**40, 7: 3}, zero=2, sum=0.25)
EMPTY = Histogram(-10, {}, zero=2**50)


def table(n: int, metric: int = 1, bucket: int = 1_000_000) -> PointTable:
    number = np.arange(n)
    return PointTable(
        service=number % 2 + 1,
        metric=np.full(n, metric),
        bucket=np.full(n, bucket),
        series=number + 300,
        stage=number % 3,
        stages=["queue", "forward", "a\nb"],
        histograms=HistogramArrays.of([(FORWARD, EMPTY)[each % 2] for each in range(n)]),
    ).added_up(10)


def test_points_are_unchanged_in_blocks() -> None:
    points = table(5 * MAX_BLOCK_POINTS)

    blocks = points.blocks(10, 7)

    assert sorted(PointTable.of(blocks).rows(10, 7)) == sorted(points.rows(10, 7))


def test_a_block_has_the_sums_of_its_points() -> None:
    points = table(5 * MAX_BLOCK_POINTS)

    blocks = points.blocks(10, 7)

    assert len({block[: PointRow._fields.index("scale")] for block in blocks}) == len(blocks) == 6
    assert sum(block.points for block in blocks) == len(points)
    assert max(block.points for block in blocks) == MAX_BLOCK_POINTS
    requests: Counter[int] = Counter()
    for row in points.rows(10, 7):
        requests[row.service_id] += row.count
    for block in blocks:
        requests[block.service_id] -= block.count
    assert not any(requests.values())


def test_few_points_are_rows() -> None:
    points = table(2 * (MIN_BLOCK_POINTS - 1))

    assert not any(row.is_block for row in points.blocks(10, 7))
    assert all(row.is_block for row in table(2 * MIN_BLOCK_POINTS).blocks(10, 7))


@pytest.mark.parametrize("cut", [slice(0, 10), slice(0, -1), slice(0, 40)])
def test_a_damaged_block_is_reported(cut: slice) -> None:
    (block, _) = table(4 * MIN_BLOCK_POINTS).blocks(10, 7)

    with pytest.raises(StoreError, match="damaged"):
        PointTable.of([block._replace(histogram=block.histogram[cut])])


def test_a_block_of_a_newer_version_is_refused() -> None:
    (block, _) = table(4 * MIN_BLOCK_POINTS).blocks(10, 7)

    with pytest.raises(StoreError, match=r"format 63.*upgrade Stagelens"):
        PointTable.of([block._replace(histogram=b"c" + block.histogram[1:])])
