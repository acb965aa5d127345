"""What a comparison says, in words and cells that a terminal and a pull request share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime

from ..core.confidence import FailureDifference
from ..core.names import DEFINITIONS
from ..core.stages import label
from ..dashboard.format import UNKNOWN, duration, percent, percentile, portion, several, signed_change, whole
from .answers import Answers
from .comparison import QUANTILES, Contrast, Judged, Side, StageChange
from .difference import Difference, needed
from .words import plain

LATENCY_HEAD = ("Latency", "A", "B", "B is slower by", "", "at 95 % between")
# TTFT: time to first token; TPOT: time per output token.
ANSWERS_HEAD = ("Tokens", *LATENCY_HEAD[1:])
_OUTCOMES = {"passed": "passed", "failed": "FAILED", "unknown": "cannot tell"}


def latency_row(found: Difference) -> tuple[str, ...]:
    """Return the cells of `LATENCY_HEAD`."""
    return (percentile(found.quantile), *_values(found))


def answers_rows(contrast: Contrast) -> list[tuple[tuple[str, ...], Difference]]:
    """Return the cells of `ANSWERS_HEAD`, each row with what it tells."""
    return [
        ((f"{measure.upper()} {percentile(quantile)}", *_values(found)), found)
        for measure, each in contrast.answers.items()
        for quantile in QUANTILES
        if (found := each.at(quantile))
    ]


def stage_head(contrast: Contrast) -> tuple[str, ...]:
    """Return the titles of `stage_row`."""
    at = percentile(contrast.quantile)
    return (f"Stages in {at}", "A", "B", "more", "of the change", f"its own {at}: slower by", "at 95 % between")


def stage_row(contrast: Contrast, found: StageChange) -> tuple[str, ...]:
    """Return the cells of `stage_head`; shares of a change that is none are left out."""
    more = found.b_seconds - found.a_seconds
    return (
        label(found.stage),
        *(plain(duration(each)) for each in (found.a_seconds, found.b_seconds)),
        plain(duration(more, sign=True)),
        plain(percent(round(found.share, 2) or 0.0)) if contrast.at.is_clear else UNKNOWN,
        plain(duration(found.own.value, sign=True)),
        between(found.own),
    )


def between(found: Difference) -> str:
    """Say what the difference lies between, as far as that is known."""
    low, high = (plain(duration(each, sign=True)) for each in (found.low, found.high))
    if math.isinf(found.low) and math.isinf(found.high):
        return f"needs {plain(whole(needed(found.quantile)))} requests"
    if math.isinf(found.high):
        return f"{low} and more"
    return f"{high} and less" if math.isinf(found.low) else f"{low} and {high}"


def verdict(contrast: Contrast) -> str:
    """Say in a sentence whether B is slower, and by which stage; or which limits it exceeds all the same."""
    at, where = contrast.at, percentile(contrast.quantile)
    if math.isinf(at.low) and math.isinf(at.high):
        return f"Too few requests to compare {where}: it takes {plain(whole(needed(contrast.quantile)))} on both sides."
    if not at.is_clear:
        exceeded = ", ".join(_exceeded(each) for each in contrast.judged if each.outcome == "failed")
        return (
            f"No difference at {where} beyond what chance explains{exceeded and f', but over the limit: {exceeded}'}."
        )
    word = "slower" if at.value > 0 else "faster"
    size = plain(f"{duration(abs(at.value))} ({signed_change(at.ratio)})")
    blamed = contrast.blamed
    why = f"; {plain(portion(blamed.share))} of it is {label(blamed.stage)}" if blamed and blamed.share > 0 else ""
    return f"B is {word} at {where} by {size}{why}."


def judgement(found: Judged) -> tuple[str, str, str]:
    """Return a threshold, what became of it, and why."""
    difference = found.difference
    if isinstance(difference, FailureDifference):
        why = _failed(difference)
        if found.outcome == "passed" and difference.value > found.threshold.limit:
            why += ": it may be chance"
        return found.threshold.text, _OUTCOMES[found.outcome], why
    if difference is None:
        return (
            found.threshold.text,
            _OUTCOMES[found.outcome],
            f"the two sides have no {found.threshold.subject} in common",
        )
    measured = plain(f"{duration(difference.value, sign=True)}, {signed_change(difference.ratio)}")
    why = f"{found.threshold.subject} {measured}, between {between(difference)}"
    if found.outcome == "unknown":
        why = f"{found.threshold.subject} {measured}: {_too_few(difference)}"
    elif found.outcome == "passed" and difference.value > found.threshold.allowed(difference.a.value):
        why += ": it may be chance"
    return found.threshold.text, _OUTCOMES[found.outcome], why


def _exceeded(found: Judged) -> str:
    if not isinstance(found.difference, Difference):
        return found.threshold.subject
    return f"{found.threshold.subject} ({plain(duration(found.difference.value, sign=True))})"


def warnings(contrast: Contrast) -> Sequence[str]:
    """Say what speaks against the comparison."""
    said = [f"B fails more: {_failed(contrast.failures)}."] if contrast.failures.are_more else []
    said += [
        plain(
            f"The requests themselves differ: {dimension} {value or 'none'} is {percent(a)} of A and {percent(b)} of B."
        )
        for dimension, value, a, b in contrast.mixes
        if not (said and dimension == "status")
    ]
    said += [_otherwise(each) for each in contrast.answers.values() if any(each.otherwise)]
    if contrast.too_few:
        wanted = plain(whole(contrast.min_requests))
        said.append(f"A side has fewer than {wanted} requests: nothing is judged.")
    return said


def counted(contrast: Contrast) -> tuple[str, str]:
    """Return how many requests each side has, and of a store from when to when in UTC."""
    a, b = (_counted(side) for side in (contrast.a, contrast.b))
    return a, b


def _counted(side: Side) -> str:
    selection = side.selection
    said = f"{plain(several(side.requests, 'request'))} of {selection.service}"
    return f"{said}, {_moment(selection.start)} to {_moment(selection.end)} UTC" if side.has_window else said


def _moment(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def _failed(found: FailureDifference) -> str:
    shares = (percent(share, 2) for share in (found.a, found.b))
    return plain(
        "{} of A, {} of B, between {:+.2f} and {:+.2f} points".format(*shares, found.low * 100, found.high * 100)
    )


def _otherwise(found: Answers) -> str:
    """Say what is left out because it was measured in another way."""
    of_a, of_b = (plain(several(each, "request")) for each in found.otherwise)
    compared = (
        f"is compared as measured {DEFINITIONS.get(found.definition, found.definition)}"
        if found.definition
        else "is not compared"
    )
    return f"{found.measure.upper()} {compared}: that of {of_a} of A and {of_b} of B was measured in another way."


def _values(found: Difference) -> tuple[str, ...]:
    times = (plain(duration(each)) for each in (found.a.value, found.b.value))
    change = plain(signed_change(found.ratio)) if found.ratio is not None else UNKNOWN
    return (*times, plain(duration(found.value, sign=True)), change, between(found))


def _too_few(found: Difference) -> str:
    return f"it takes {plain(whole(needed(found.quantile)))} requests on both sides to tell"
