"""How a burning budget is told."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from .. import formatting
from .finding_parts import Burn


@dataclass(frozen=True, slots=True)
class _Kind:
    """How a kind of SLO speaks.

    Args:
        subject: Its name before "SLO".
        past: What bad ones did.
        unit: What is counted; empty where the number says nothing to people.
        cause: Where the trouble comes from, when no stage of a request can be it; else empty.
    """

    subject: str
    past: str
    unit: str = "requests"
    cause: str = ""


_KINDS = {
    "latency": _Kind("latency", "were too slow or failed"),
    "availability": _Kind("availability", "failed"),
    "ttft": _Kind("TTFT", "waited too long for their first token"),
    "tpot": _Kind("TPOT", "were too slow from token to token"),
    "stage": _Kind("stage", "spent too long in the stage"),
    "coverage": _Kind("coverage", "was explained by no stage", "", "time passes outside of every stage"),
    "freshness": _Kind("freshness", "had no fresh data", "minutes", "data come late, or not at all"),
}


def subject(kind: str, stage: str = "") -> str:
    """Return what burns; *stage* is the name of the stage of the objective, if it has one.

    >>> subject("latency"), subject("ttft"), subject("stage", "queue")
    ('latency SLO', 'TTFT SLO', 'queue SLO')
    """
    return f"{stage or _of(kind).subject} SLO"


def cause(burn: Burn, kind: str, stage: str = "", *, over: bool) -> str:
    """Return where the trouble comes from, when no stage of a request need be looked for; else nothing."""
    share = formatting.percent(formatting.whole(burn.bad / burn.total)) if burn.total else "some"
    if kind == "availability":
        return f"{share} of requests {'failed' if over else 'fail'}"
    if stage:
        return f"{share} of requests {'spent' if over else 'spend'} too long in {stage}"
    return _of(kind).cause


def impact(burn: Burn, kind: str) -> str:
    """Say how much of the short window was bad."""
    said, span = _of(kind), lately(burn.short_seconds)
    share = formatting.percent(formatting.whole(burn.bad / burn.total)) if burn.total else "Some"
    if not said.unit:
        return f"{share} of the time of requests in the {span} {said.past}."
    return f"{share} of {said.unit} in the {span} {said.past}: {formatting.count(burn.bad)} of {formatting.count(burn.total)}."


def lately(seconds: float) -> str:
    """Return a stretch up to now.

    >>> lately(300), lately(3600)
    ('last 5 minutes', 'last hour')
    """
    return f"last {formatting.duration(timedelta(seconds=seconds)).removeprefix('1 ')}"


def rate(burn: Burn, *, over: bool) -> tuple[str, str]:
    """Return the burn rate, as (name, value)."""
    if over:
        return "Burn rate at its worst", formatting.times(burn.rate)
    return (
        "Burn rate",
        f"{formatting.times(burn.rate)} in the {lately(burn.short_seconds)} (alerts from {formatting.times(burn.threshold)})",
    )


def budget(burn: Burn, kind: str, *, over: bool) -> list[tuple[str, str]]:
    """Return what is left, and until when, as (name, value)."""
    window = formatting.duration(timedelta(seconds=burn.window_seconds))
    left = (f"Error budget left of {window}", _left(burn, _of(kind).unit))
    return [left] if over else [left, ("At this pace", _pace(burn))]


def _left(burn: Burn, unit: str) -> str:
    if burn.budget_left <= 0:
        return f"none; {formatting.count(-burn.bad_left)} {unit} over" if unit else "none"
    room = f", room for {formatting.count(burn.bad_left)} more bad {unit}" if unit else ""
    return f"{formatting.percent(burn.budget_left)}{room}"


def _pace(burn: Burn) -> str:
    left = burn.exhausted_in_seconds
    if left is None:
        return "the budget lasts"
    return f"the budget is gone in {formatting.duration(timedelta(seconds=left))}" if left else "the budget is gone"


def _of(kind: str) -> _Kind:
    return _KINDS.get(kind, _KINDS["latency"])
