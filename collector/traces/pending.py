"""What goes back into the inbox after a fold: what still waits, and the roots of the requests that were counted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...store.inbox import Delivery, Parcel
from .assembly import Fate, Joined
from .batching import Bools, Ints, gather, subset
from .columns import Spans, decode, encode, streams_of

# Of what is left of a minute, pieces up to this size become one. [bytes]
_SMALL_BYTES = 256 * 1024
_MINUTE = 60


@dataclass(frozen=True, slots=True)
class Patience:
    """How long is waited for what.

    Args:
        hold_seconds: After the root of a request, for the rest of it.
        orphan_seconds: For the root of what has come.
        remember_seconds: For what comes after a request was counted.
        remember_bytes: How much is remembered of such requests at most; the oldest are forgotten first.
        carry_bytes: How much may wait for a root at most; the oldest is given up first.
        due_bytes: How much becomes requests at once, more than *carry_bytes*; it takes about eight times as much memory.
    """

    hold_seconds: int = 10
    orphan_seconds: int = 900
    remember_seconds: int = 900
    remember_bytes: int = 8 * 1024**2
    carry_bytes: int = 4 * 1024**2
    due_bytes: int = 6 * 1024**2


def left(
    fate: Ints,
    parcels: Sequence[Parcel],
    is_due: Bools,
    spans: Sequence[Spans],
    rows: Sequence[Ints],
) -> tuple[list[int], list[Parcel]]:
    """Return the parcels that leave the inbox, and what of them goes back in."""
    first = np.cumsum([0, *map(len, rows)])
    stays: list[Ints] = []
    for place, (each, chosen) in enumerate(zip(spans, rows, strict=True)):
        here = np.ones(len(each.rows), np.bool_)
        here[chosen] = fate[first[place] : first[place + 1]] == Fate.WAITING
        stays.append(np.flatnonzero(here))
    # What waits for a root, of one minute, is put together: else there would be a parcel for each fold.
    alike: defaultdict[tuple[bool, int], list[int]] = defaultdict(list)
    for place, parcel in enumerate(parcels):
        is_whole, due = len(stays[place]) == len(spans[place].rows) > 0, bool(is_due[place])
        if not parcel.counted and (not is_whole or (due and len(parcel.spans) < _SMALL_BYTES)):
            alike[due, parcel.received // _MINUTE if due else parcel.received].append(place)
    taken, left = list[int](), list[Parcel]()
    for places in alike.values():
        if len(places) == 1 and len(stays[places[0]]) == len(spans[places[0]].rows) > 0:
            continue
        taken += [parcels[place].id for place in places]
        received = max(parcels[place].received for place in places)
        rest = gather([subset(spans[place], stays[place]) for place in places])
        left += [Parcel(received, counted=False, spans=encode(each)) for each in rest.spans()]
    return taken, left


def remembered(joined: Joined, delivery: Delivery, patience: Patience) -> tuple[list[int], list[Parcel]]:
    """Return the parcels of counted requests that are forgotten or replaced, and those that are new."""
    room = patience.remember_bytes
    taken: list[int] = []
    recent: list[Parcel] = []
    for parcel in reversed(delivery.counted):
        room -= parcel.size_bytes
        if room < 0 or parcel.received < delivery.now - patience.remember_seconds:
            taken.append(parcel.id)
        elif (
            len(joined.roots)
            and parcel.received // _MINUTE == delivery.now // _MINUTE
            and parcel.size_bytes < _SMALL_BYTES
        ):
            taken.append(parcel.id)
            recent.append(parcel)
    if not len(joined.roots):
        return taken, []
    merged = [decode(parcel.spans) for parcel in delivery.load(recent)]
    merged += (replace(each, streams=streams_of({})) for each in joined.gathered.chosen(joined.roots).spans())
    return taken, [Parcel(delivery.now, counted=True, spans=encode(each)) for each in gather(merged).spans()]
