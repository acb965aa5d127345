"""Buckets for sizes of batches, prompts and outputs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelens.core.histogram import BATCH_SIZES, TOKEN_COUNTS, SizeBuckets

KINDS = pytest.mark.parametrize("buckets", [BATCH_SIZES, TOKEN_COUNTS])


def bounds(name: str) -> tuple[int, int | None]:
    """Return the smallest and the largest size in bucket *name*; None for no upper bound."""
    low, _, high = name.partition("-")
    return int(low.rstrip("+")), None if low.endswith("+") else int(high or low)


@KINDS
@given(size=st.integers(1, 2**40))
def test_a_size_is_in_the_bucket_named_by_its_bounds(buckets: SizeBuckets, size: int) -> None:
    low, high = bounds(buckets.bucket_of(size))

    assert low <= size
    assert high is None or size <= high


@KINDS
def test_size_buckets_have_no_gaps(buckets: SizeBuckets) -> None:
    edges = [bounds(name) for name in buckets.names]

    assert [low for low, _ in edges] == [1, *(high + 1 for _, high in edges[:-1] if high)]
    assert edges[-1][1] is None


def test_size_buckets_sort_by_size() -> None:
    assert sorted(["1024+", "8-15", "1", "__other__", "128-255"], key=BATCH_SIZES.position) == [
        "1",
        "8-15",
        "128-255",
        "1024+",
        "__other__",
    ]
