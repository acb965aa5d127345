"""Two sets of requests beside each other: how much slower at a percentile, by which stage, and whether they are alike at all."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pandas as pd

from ...core.confidence import interval, ratio
from ..points import Snapshot
from ..selection import Selection
from .batches import batches
from .breakdown import Mixture, mixture
from .frames import frame
from .services import series_in

STAGE_COLUMNS = ("stage", "a_seconds", "b_seconds", "delta_seconds", "share")
MIX_COLUMNS = ("dimension", "value", "a_share", "b_share", "change", "distance", "changed")
# What may differ between the requests themselves, beside `batch`. The version is what is compared.
MIXED = ("route", "model", "status", "device")
# A mix has changed when a share has, by at least so much, and by more than so many of its standard errors.
MIN_SHIFT = 0.05
ERRORS = 3.0


def compare(snapshot: Snapshot, a: Selection, b: Selection, quantile: float) -> pd.DataFrame:
    """See `Reader.compare`."""
    before, after = mixture(snapshot, a), mixture(snapshot, b)
    judged = _judged(before, after, quantile)
    change = (judged["b_value"] or 0.0) - (judged["a_value"] or 0.0)
    a_seconds, b_seconds = _seconds(before, quantile), _seconds(after, quantile)
    rows = [
        _row(stage, a_seconds.get(stage, 0.0), b_seconds.get(stage, 0.0), change) for stage in a_seconds | b_seconds
    ]
    made = frame(STAGE_COLUMNS, rows).sort_values("delta_seconds", ascending=False, ignore_index=True)
    made.attrs.update(judged)
    return made


def _seconds(mixed: Mixture | None, quantile: float) -> dict[str, float]:
    return mixed.at(quantile).seconds() if mixed else {}


def _row(stage: str, a_seconds: float, b_seconds: float, change: float) -> dict[str, Any]:
    delta = b_seconds - a_seconds
    values = (stage, a_seconds, b_seconds, delta, delta / change if change else 0.0)
    return dict(zip(STAGE_COLUMNS, values, strict=True))


def _judged(a: Mixture | None, b: Mixture | None, quantile: float) -> dict[str, Any]:
    """Return how many requests there are, how slow they are, and how sure the ratio of that is."""
    a_value, b_value = (interval(one.latency.histogram(), quantile) if one else None for one in (a, b))
    found = ratio(a_value, b_value)
    return {
        "a_value": a_value.value if a_value else None,
        "b_value": b_value.value if b_value else None,
        "ratio": found.value if found else None,
        "ratio_low": found.low if found else None,
        "ratio_high": found.high if found else None,
        "a_n": a.n if a else 0,
        "b_n": b.n if b else 0,
    }


def mix(snapshot: Snapshot, a: Selection, b: Selection) -> pd.DataFrame:
    """See `Reader.mix`."""
    before, after = _mix(snapshot, a), _mix(snapshot, b)
    rows = [_largest(dimension, before[dimension], after[dimension]) for dimension in before]
    return frame(MIX_COLUMNS, [row for row in rows if row is not None])


def _mix(snapshot: Snapshot, selection: Selection) -> dict[str, dict[str, int]]:
    """Return the number of requests by dimension and value."""
    seen = series_in(snapshot, selection)
    found: dict[str, Counter[str]] = {dimension: Counter() for dimension in MIXED}
    for dimension, requests in found.items():
        for value, n in zip(seen[dimension], seen["requests"], strict=True):
            requests[value] += int(n)
    by_band = {band: runs.count for band, runs in batches(snapshot, selection).items()}
    return {**found, "batch": by_band}


def _largest(dimension: str, a: Mapping[str, int], b: Mapping[str, int]) -> dict[str, Any] | None:
    """Return the value whose share differs most; None where one side has no requests that tell."""
    a_n, b_n = sum(a.values()), sum(b.values())
    if not a_n or not b_n:
        return None
    shares = {value: (a.get(value, 0) / a_n, b.get(value, 0) / b_n) for value in sorted({*a, *b})}
    changes = {value: after - before for value, (before, after) in shares.items()}
    value = max(changes, key=lambda each: abs(changes[each]))
    both = (a.get(value, 0) + b.get(value, 0)) / (a_n + b_n)
    noise = ERRORS * math.sqrt(both * (1 - both) * (1 / a_n + 1 / b_n))
    change = changes[value]
    distance = math.fsum(abs(each) for each in changes.values()) / 2
    changed = abs(change) >= MIN_SHIFT and abs(change) > noise
    return dict(zip(MIX_COLUMNS, (dimension, value, *shares[value], change, distance, changed), strict=True))
