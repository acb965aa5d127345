"""How requests that do not come any more are told."""

from __future__ import annotations

from datetime import timedelta

from .. import formatting
from .finding_parts import Absence

SUBJECT, IS, WAS = "traffic", "stopped", "was gone"


def cause(absence: Absence) -> str:
    """Say what is missed, in half a sentence."""
    return f"no request in {_span(absence.window_seconds)}"


def impact(absence: Absence) -> str:
    """Say what there should be.

    >>> impact(Absence(usual=1240, before_seconds=86400, window_seconds=900))
    'No request in 15 minutes; 1,240 came in as long a time 1 day before. Nothing else about the service can be judged.'
    """
    missed, before = _span(absence.window_seconds), _span(absence.before_seconds)
    there = f"{formatting.count(absence.usual)} came in as long a time {before} before"
    return f"No request in {missed}; {there}. Nothing else about the service can be judged."


def usual(absence: Absence) -> tuple[str, str]:
    """Return what is usual, as (name, value)."""
    return "Usual", f"{formatting.count(absence.usual)} requests in {_span(absence.window_seconds)}"


def _span(seconds: float) -> str:
    return formatting.duration(timedelta(seconds=seconds))
