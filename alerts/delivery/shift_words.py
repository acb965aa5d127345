"""How a tail that became slower is told."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from .. import formatting
from .finding_parts import Shift


def subject(shift: Shift, where: Mapping[str, str] | None = None) -> str:
    """Return what became slower, in which part of the service and where it is deployed.

    >>> subject(Shift(0.999, 0.1, 0.2, 1.8, 2.1, 5000, 1800.0, 9.0), {"environment": "prod", "route": "/search"})
    'p99.9 of route /search in prod'
    >>> subject(Shift("mean", 0.1, 0.2, 1.8, 2.1, 5000, 1800.0, 9.0))
    'mean latency'
    """
    what = "mean latency" if shift.at == "mean" else f"p{100 * shift.at:g}"
    parts = dict(where or {})
    place = parts.pop("environment", "")
    part = ", ".join(f"{dimension} {value}" for dimension, value in parts.items())
    return what + (f" of {part}" if part else "") + (f" in {place}" if place else "")


def change(shift: Shift) -> str:
    """Say from what to what, and slower than what.

    >>> change(Shift(0.99, 0.252, 0.312, 1.2, 1.3, 5000, 1800.0, 9.0))
    'slower than on the days before: 252 ms → 312 ms (+24 %)'
    """
    before, after = formatting.latency(shift.before_seconds), formatting.latency(shift.after_seconds)
    than = f" than that of version {shift.against}" if shift.against else " than on the days before"
    return f"slower{than}: {before} → {after} ({_growth(shift.ratio)})"


def basis(shift: Shift) -> str:
    """Return what the stages were compared to."""
    if shift.against:
        return f"a request against one of version {shift.against}, on average"
    which = "a request" if shift.at == "mean" else "a request of the slowest 5 %"
    return f"{which} against one of the days before, on average"


def impact(shift: Shift) -> str:
    """Say how sure it is, and on what."""
    span = formatting.duration(timedelta(seconds=shift.window_seconds))
    sure = f"{_growth(shift.low)} to {_growth(shift.high)} is likely, from {formatting.count(shift.requests)} requests in {span}."
    return f"{sure} But the traffic changed too: {shift.mix}." if shift.mix else sure


def facts(shift: Shift) -> list[tuple[str, str]]:
    """Return the numbers worth a line each, as (name, value)."""
    before, after = formatting.latency(shift.before_seconds), formatting.latency(shift.after_seconds)
    return [
        (subject(shift), f"{before} → {after} ({_growth(shift.ratio)})"),
        ("How unusual", f"{shift.z:.1f} times the usual variation"),
    ]


def _growth(ratio: float) -> str:
    sign = "+" if ratio >= 1 else ""
    return f"{sign}{formatting.percent(ratio - 1)}"
