"""Encoding of histograms as blobs."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelens.core.columns import Buckets
from stagelens.core.errors import StoreError
from stagelens.store.bucket_blobs import decode_buckets, encode_buckets

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
def test_encoded_histograms_round_trip(histograms: list[dict[int, int]]) -> None:
    assert rows(decode_buckets(encode_buckets(columns(histograms)))) == histograms


@given(HISTOGRAMS)
def test_a_blob_does_not_depend_on_rows_encoded_with_it(histograms: list[dict[int, int]]) -> None:
    together = encode_buckets(columns(histograms))

    assert together == [encode_buckets(columns([one]))[0] for one in histograms]


def test_twenty_requests_take_few_bytes() -> None:
    (blob,) = encode_buckets(columns([{-130 + 3 * step: 1 for step in range(20)}]))

    assert len(blob) < 50


@pytest.mark.parametrize("blob", [b"", b"\x01\x02", b"\x01\x02\x03\x84", b"\x01" + b"\xff" * 10 + b"\x01\x01"])
def test_a_damaged_blob_is_refused(blob: bytes) -> None:
    good = encode_buckets(columns([{1: 1}]))[0]

    with pytest.raises(StoreError, match="damaged"):
        decode_buckets([good, blob, good])


def test_a_blob_of_a_later_format_is_refused() -> None:
    with pytest.raises(StoreError, match="format 2"):
        decode_buckets([b"\x02\x05"])
