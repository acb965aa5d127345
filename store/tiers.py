"""Tiers: how far each is rolled up, from when it is kept, and which tiers to read for a stretch of time.

A tier holds everything in `[kept_from, watermark)`; the finest is always complete up to now. A stretch of time is read
from the coarsest tier that fits; its ragged edges and the part that is not rolled up yet come from finer ones. A bucket belongs
to the stretch in which it starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, select

from . import schema


@dataclass(frozen=True, slots=True)
class Tier:
    """State of one tier.

    Args:
        seconds: Width of its buckets. [seconds]
        watermark: Everything before it is in the tier. [Unix seconds]
        kept_from: Everything before it was deleted. [Unix seconds]
    """

    seconds: int
    watermark: int
    kept_from: int


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of time `[start, end)` to read from one tier; in Unix seconds."""

    tier: int
    start: int
    end: int


def floor_to(at: int, width: int) -> int:
    """Return the start of the bucket of *width* seconds that contains *at*."""
    return at - at % width


def ceil_to(at: int, width: int) -> int:
    """Return the first start of a bucket of *width* seconds at or after *at*."""
    return -(-at // width) * width


def read_tiers(connection: Connection) -> list[Tier]:
    """Return the tiers, finest first."""
    table = schema.rollups
    rows = connection.execute(select(table.c.tier, table.c.watermark, table.c.kept_from).order_by(table.c.tier))
    return [Tier(*row) for row in rows]


def plan_segments(tiers: Sequence[Tier], start: int, end: int, widest: int = schema.COARSEST) -> list[Segment]:
    """Return the tier to read for each part of `[start, end)`, in order of time.

    Args:
        tiers: Finest first.
        start: [Unix seconds]
        end: [Unix seconds]
        widest: Maximum width of a bucket, unless nothing finer is kept. [seconds]
    """
    segments: list[Segment] = []
    start = max(start, tiers[-1].kept_from)
    # From the oldest part, which only the coarsest tier has, to the newest, which all tiers have.
    for finest in reversed(range(len(tiers))):
        until = tiers[finest - 1].kept_from if finest else end
        stop = min(end, max(until, start))
        fitting = [tier for tier in tiers[finest:] if tier.seconds <= widest] or [tiers[finest]]
        segments += _cover(start, stop, fitting)
        start = stop
    return segments


def finest_kept(tiers: Sequence[Tier], start: int) -> int:
    """Return the width of the finest buckets still kept at *start*, in seconds."""
    return next((tier.seconds for tier in tiers if tier.kept_from <= start), tiers[-1].seconds)


def whole_buckets(tiers: Sequence[Tier], start: int, end: int) -> tuple[int, int]:
    """Return `[start, end)` extended to whole buckets of the tiers kept at its ends, in Unix seconds.

    A bucket belongs to the stretch in which it starts, so a window that begins within one would miss all of it.
    """
    return floor_to(start, finest_kept(tiers, start)), ceil_to(end, finest_kept(tiers, end))


def _cover(start: int, end: int, tiers: Sequence[Tier]) -> list[Segment]:
    if start >= end:
        return []
    *finer, widest = tiers
    if not finer:
        return [Segment(widest.seconds, start, end)]
    low = ceil_to(start, widest.seconds)
    high = floor_to(min(end, widest.watermark), widest.seconds)
    if low >= high:
        return _cover(start, end, finer)
    return [*_cover(start, low, finer), Segment(widest.seconds, low, high), *_cover(high, end, finer)]
