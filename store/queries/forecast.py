"""How large the store will be: what each tier holds now, what it gains a day, and what its retention takes away again."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..retention import FULL_SHARE

_DAY_SECONDS = 86_400


@dataclass(frozen=True, slots=True)
class TierUse:
    """What a tier holds.

    Args:
        kept_seconds: How old its oldest row gets.
        slot_seconds: Time in one slot.
        first: Start of its oldest data. [Unix seconds]
        complete: Everything before it is in the tier. [Unix seconds]
        slots: Start of each slot, in Unix seconds, and the bytes it takes.
    """

    kept_seconds: int
    slot_seconds: int
    first: int
    complete: int
    slots: Mapping[int, float]

    @property
    def bytes_per_day(self) -> float:
        """What it gained in the last day, or what it would in a day if it is younger than that."""
        slot = self.slot_seconds
        start = max((self.complete - _DAY_SECONDS) // slot * slot, self.first)
        if self.complete <= start:
            return 0.0
        gained = sum(size for at, size in self.slots.items() if start // slot * slot <= at < self.complete)
        return gained / (self.complete - start) * _DAY_SECONDS

    @property
    def settled_bytes(self) -> float:
        """Its size once as much is forgotten as comes."""
        return self.bytes_per_day * self.kept_seconds / _DAY_SECONDS

    def bytes_after(self, days: float, now: int) -> float:
        """Return its size in so many *days*: what is left by then of what it holds, and what came."""
        oldest = now + days * _DAY_SECONDS - self.kept_seconds
        left = sum(size for at, size in self.slots.items() if at + self.slot_seconds > oldest)
        return left + self.bytes_per_day * min(days, self.kept_seconds / _DAY_SECONDS)


def days_until_full(tiers: Sequence[TierUse], rest_bytes: float, budget_bytes: int, now: int) -> int | None:
    """Return in how many days room has to be made for the first time; None if never.

    Args:
        tiers: What the tiers hold.
        rest_bytes: What everything else takes, which is assumed to stay as it is.
        budget_bytes: What the store may take.
        now: [Unix seconds]
    """
    horizon = max(math.ceil(tier.kept_seconds / _DAY_SECONDS) for tier in tiers) + 1
    for days in range(horizon + 1):
        if rest_bytes + sum(tier.bytes_after(days, now) for tier in tiers) > budget_bytes * FULL_SHARE:
            return days
    return None
