"""Encoding of histogram buckets as blobs of varints, many rows at a time.

A blob is a format byte, then for each bucket in ascending order the distance to the previous bucket and its count, both as
varints (7 bits a byte, least significant first). The first distance is the bucket index itself, zigzag-encoded. Twenty
requests in ten seconds take about 36 bytes. numpy processes whole columns, about 0.3 µs a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ..core.errors import StoreError

Ints = NDArray[np.int64]

FORMAT = 1
_FORMAT_BYTE = bytes([FORMAT])
_CONTINUES = 0x80
_BITS = 0x7F
# Rows decoded at once: their columns stay in the CPU cache, which makes decoding three times as fast.
_BLOCK = 1024


@dataclass(frozen=True, slots=True)
class Buckets:
    """Buckets of many histograms, concatenated.

    Args:
        offsets: Start of each histogram's buckets, and the end of the last; shape (n + 1,).
        index: Bucket indices, ascending within a histogram; shape (m,).
        amount: Their counts, all above zero; shape (m,).
    """

    offsets: Ints
    index: Ints
    amount: Ints

    @property
    def lengths(self) -> Ints:
        """Number of buckets of each histogram; shape (n,)."""
        return np.diff(self.offsets)

    def between(self, low: int, high: int) -> Buckets:
        """Return the buckets of histograms number *low* to *high*, exclusive."""
        first, last = self.offsets[low], self.offsets[high]
        return Buckets(self.offsets[low : high + 1] - first, self.index[first:last], self.amount[first:last])


def encode(buckets: Buckets) -> list[bytes]:
    r"""Return one blob for each histogram.

    >>> encode(Buckets(np.array([0, 2]), np.array([-1, 3]), np.array([5, 300])))
    [b'\x01\x01\x05\x04\xac\x02']
    """
    gap = np.diff(buckets.index, prepend=0)
    first = buckets.offsets[:-1][buckets.lengths > 0]
    gap[first] = _zigzag(buckets.index[first])
    values = np.empty(2 * len(gap), np.uint64)
    values[0::2] = gap
    values[1::2] = buckets.amount
    data, ends = _varints(values)
    edges = np.concatenate((np.zeros(1, np.int64), ends))[2 * buckets.offsets].tolist()
    return [_FORMAT_BYTE + data[low:high] for low, high in pairwise(edges)]


def decode(blobs: Sequence[bytes]) -> Buckets:
    r"""Return the buckets of each blob.

    Raises:
        StoreError: A blob is damaged or written in a format this version does not know.

    >>> decode([b'\x01\x01\x05\x04\xac\x02']).amount.tolist()
    [5, 300]
    """
    blocks = [_decode_block(blobs[start : start + _BLOCK]) for start in range(0, len(blobs), _BLOCK)]
    if not blocks:
        return Buckets(np.zeros(1, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64))
    lengths = np.concatenate([block.lengths for block in blocks])
    return Buckets(
        offsets=np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths))),
        index=np.concatenate([block.index for block in blocks]),
        amount=np.concatenate([block.amount for block in blocks]),
    )


def _decode_block(blobs: Sequence[bytes]) -> Buckets:
    size = np.fromiter(map(len, blobs), np.int64, len(blobs))
    data = np.frombuffer(b"".join(blobs), np.uint8)
    _check(data, size)
    values, starts = _values(data)
    # The format byte decodes as a varint of its own: one value more than two for each bucket.
    heads = np.searchsorted(starts, np.cumsum(size) - size)
    body = np.ones(len(values), bool)
    body[heads] = False
    pairs = values[body].view(np.int64)
    length = np.diff(heads, append=len(values)) - 1
    if np.any(length % 2):
        _raise_damaged()
    offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(length // 2)))
    return Buckets(offsets, _undo_gaps(pairs[0::2], offsets), pairs[1::2])


def _check(data: NDArray[np.uint8], size: Ints) -> None:
    ends = np.cumsum(size)
    if np.any(size == 0) or np.any(data[ends - 1] & _CONTINUES):
        _raise_damaged()
    formats = data[ends - size]
    if np.any(formats != FORMAT):
        msg = f"a stored histogram has format {int(formats[formats != FORMAT][0])}, this version reads {FORMAT}; upgrade Stagelens"
        raise StoreError(msg)


def _raise_damaged() -> None:
    msg = "a stored histogram is damaged; check the disk, and restore the database from a backup"
    raise StoreError(msg)


def _undo_gaps(gap: Ints, offsets: Ints) -> Ints:
    lengths = np.diff(offsets)
    first = offsets[:-1][lengths > 0]
    gap = gap.copy()
    gap[first] = (gap[first] >> 1) ^ -(gap[first] & 1)
    running = np.cumsum(gap)
    return running - np.repeat(running[first] - gap[first], lengths[lengths > 0])


def _zigzag(values: Ints) -> Ints:
    return (values << 1) ^ (values >> 63)


def _varints(values: NDArray[np.uint64]) -> tuple[bytes, Ints]:
    """Return *values* as varints, and the end of each."""
    size = np.ones(len(values), np.int64)
    for bits in range(7, 64, 7):
        size += values >= np.uint64(1 << bits)
    ends = np.cumsum(size)
    starts = ends - size
    data = np.empty(int(ends[-1]) if len(ends) else 0, np.uint8)
    for place in range(int(size.max(initial=0))):
        here = np.flatnonzero(size > place)
        byte = (values[here] >> np.uint64(7 * place)) & np.uint64(_BITS)
        more = np.where(size[here] > place + 1, _CONTINUES, 0).astype(np.uint64)
        data[starts[here] + place] = byte | more
    return data.tobytes(), ends


def read_varints(data: bytes) -> NDArray[np.uint64]:
    r"""Return the varints in *data*, which must contain at least one.

    >>> read_varints(b'\x05\xac\x02').tolist()
    [5, 300]
    """
    return _values(np.frombuffer(data, np.uint8))[0]


def _values(data: NDArray[np.uint8]) -> tuple[NDArray[np.uint64], Ints]:
    """Return the varints in *data*, and the start of each."""
    last = np.flatnonzero(data < _CONTINUES)
    starts = np.concatenate((np.zeros(1, np.int64), last[:-1] + 1))
    size = last - starts + 1
    if size.max() > 10:  # noqa: PLR2004 - ten bytes hold 64 bits
        _raise_damaged()
    values = (data[starts] & _BITS).astype(np.uint64)
    for place in range(1, int(size.max())):
        here = np.flatnonzero(size > place)
        byte = (data[starts[here] + place] & _BITS).astype(np.uint64)
        values[here] |= byte << np.uint64(7 * place)
    return values, starts
