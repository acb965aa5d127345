"""Reading of gzip files."""

from __future__ import annotations

import gzip
import io

from hypothesis import given
from hypothesis import strategies as st

from stagelens.collector.imports.gunzip import TolerantGunzip


@given(st.lists(st.binary(max_size=300).map(lambda data: data * 700), min_size=1, max_size=3), st.integers(1, 100_000))
def test_decompression_returns_the_original_for_any_read_sizes(members: list[bytes], most: int) -> None:
    raw = TolerantGunzip(io.BytesIO(b"".join(map(gzip.compress, members))))
    file, found = io.BufferedReader(raw), b""
    while piece := file.read(most):
        found += piece

    assert found == b"".join(members)
    assert file.read(most) == b""
    assert raw.broken == ""


@given(st.binary(min_size=1, max_size=2000), st.data())
def test_a_truncated_gzip_returns_its_start_and_an_error(data: bytes, draw: st.DataObject) -> None:
    whole = gzip.compress(data)
    raw = TolerantGunzip(io.BytesIO(whole[: draw.draw(st.integers(2, len(whole) - 1))]))

    assert data.startswith(io.BufferedReader(raw).read())
    assert "cut off" in raw.broken
