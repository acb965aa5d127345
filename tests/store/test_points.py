"""Blocks, the columns of many points in one row, and the encoding of histograms as blobs."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelens.core.columns import Buckets, HistogramArrays
from stagelens.core.errors import StoreError
from stagelens.core.histogram import Histogram
from stagelens.store.bucket_blobs import decode_buckets, encode_buckets
from stagelens.store.points import MAX_BLOCK_POINTS, MIN_BLOCK_POINTS, PointRow, PointTable

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


def test_points_are_unchanged_in_blocks_with_their_sums() -> None:
    points = table(5 * MAX_BLOCK_POINTS)
    blocks = points.blocks(10, 7)

    assert sorted(PointTable.of(blocks).rows(10, 7)) == sorted(points.rows(10, 7))
    assert len({block[: PointRow._fields.index("scale")] for block in blocks}) == len(blocks) == 6
    assert sum(block.points for block in blocks) == len(points)
    assert max(block.points for block in blocks) == MAX_BLOCK_POINTS
    by_row, by_block = (Counter[int](), Counter[int]())
    for counted, rows_of in ((by_row, points.rows(10, 7)), (by_block, blocks)):
        for row in rows_of:
            counted[row.service_id] += row.count
    assert by_row == by_block


def test_few_points_are_rows() -> None:
    points = table(2 * (MIN_BLOCK_POINTS - 1))

    assert not any(row.is_block for row in points.blocks(10, 7))
    assert all(row.is_block for row in table(2 * MIN_BLOCK_POINTS).blocks(10, 7))


def test_a_damaged_or_newer_block_is_reported() -> None:
    (block, _) = table(4 * MIN_BLOCK_POINTS).blocks(10, 7)

    for cut in (slice(0, 10), slice(0, -1), slice(0, 40)):
        with pytest.raises(StoreError, match="damaged"):
            PointTable.of([block._replace(histogram=block.histogram[cut])])
    with pytest.raises(StoreError, match=r"format 63.*upgrade Stagelens"):
        PointTable.of([block._replace(histogram=b"c" + block.histogram[1:])])


# Any bucket index at any scale, and any count of 63 bits.
HISTOGRAMS = st.lists(
    st.dictionaries(st.integers(-34_400, 34_400), st.integers(1, 2**63 - 1), max_size=40), max_size=20
)


def columns(histograms: list[dict[int, int]]) -> Buckets:
    pairs = [pair for one in histograms for pair in sorted(one.items())]
    table = np.array(pairs, np.int64).reshape(-1, 2)
    return Buckets(np.cumsum([0, *map(len, histograms)], dtype=np.int64), table[:, 0], table[:, 1])


def rows(buckets: Buckets) -> list[dict[int, int]]:
    edges = buckets.offsets.tolist()
    index, amount = buckets.index.tolist(), buckets.amount.tolist()
    return [dict(zip(index[low:high], amount[low:high], strict=True)) for low, high in pairwise(edges)]


@given(HISTOGRAMS)
def test_encoded_histograms_round_trip_alone_and_together(histograms: list[dict[int, int]]) -> None:
    together = encode_buckets(columns(histograms))

    assert rows(decode_buckets(together)) == histograms
    assert together == [encode_buckets(columns([one]))[0] for one in histograms]


def test_twenty_requests_take_few_bytes() -> None:
    (blob,) = encode_buckets(columns([{-130 + 3 * step: 1 for step in range(20)}]))

    assert len(blob) < 50


@pytest.mark.parametrize(
    ("blob", "words"),
    [
        (b"", "damaged"),
        (b"\x01\x02", "damaged"),
        (b"\x01\x02\x03\x84", "damaged"),
        (b"\x01" + b"\xff" * 10 + b"\x01\x01", "damaged"),
        (b"\x02\x05", "format 2"),
    ],
)
def test_a_damaged_or_newer_blob_is_refused(blob: bytes, words: str) -> None:
    good = encode_buckets(columns([{1: 1}]))[0]

    with pytest.raises(StoreError, match=words):
        decode_buckets([good, blob, good])
