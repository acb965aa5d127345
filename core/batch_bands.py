"""Batch sizes in bands, a doubling each: how many items a model ran at once is told apart no finer, and in bounded number."""

from __future__ import annotations

_DOUBLINGS = 10
# Named by their bounds, both inclusive: 1, 2-3, 4-7, …, 512-1023, 1024+.
BANDS = ("1", *(f"{1 << power}-{(2 << power) - 1}" for power in range(1, _DOUBLINGS)), f"{1 << _DOUBLINGS}+")


def band(size: int) -> str:
    """Return the band of a batch of *size* items, at least one.

    >>> band(1), band(3), band(32), band(5000)
    ('1', '2-3', '32-63', '1024+')
    """
    return BANDS[min(size.bit_length(), len(BANDS)) - 1]


def position(name: str) -> int:
    """Return where band *name* stands, smallest first; what is no band stands last."""
    return BANDS.index(name) if name in BANDS else len(BANDS)
