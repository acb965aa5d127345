"""The slow replica of a service: its query, and its sentence for pages, the API and notifications."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from ...analysis.comparison import dominant_growth
from ...analysis.replicas import HardwareDifference, ReplicaOutlier, find_outlier, stratified
from ...core import hardware as measures
from ...core.settings.values import format_size
from ...core.stages import label
from ...store import Reader, Selection
from ..formatting import latency, moment_of, percent, times, whole

STEPS = 60
# Replicas are counted once a minute: of a longer window, the last hour is also looked at minute by minute.
_RECENT = timedelta(hours=1)
# Maximum number of routes, and of models, that are compared one by one.
_MAX_PARTS = 6
# Smaller shares of the time are written as never. [ratio]
_NEVER = 0.0005
# Number of measures of the machine in the sentence.
_MAX_MEASURES = 2
_SENTENCES = {
    measures.GPU_CLOCK: "Its GPU runs at {own}, the others at {others}.",
    measures.GPU_HOT: "Its GPU is throttled by heat {own} of the time; the others {others}.",
    measures.GPU_CAPPED: "Its GPU is throttled by its power limit {own} of the time; the others {others}.",
    measures.THROTTLED: "It is throttled by its CPU limit in {own} of the scheduler periods; the others in {others}.",
    measures.HOST_CPU: "The CPUs of its machine are {own} busy, those of the others {others}.",
    measures.GPU: "Its GPU is {own} busy, the others {others}.",
    measures.CPU_SHARE: "It uses {own} of its CPUs, the others {others}.",
    measures.GPU_MEMORY_SHARE: "The memory of its GPU is {own} full, that of the others {others}.",
    measures.MEMORY: "It uses {own} of memory, the others {others}.",
}


def slow_replica(read: Reader, selection: Selection) -> ReplicaOutlier | None:
    """Return the replica that is slower than the others until the end of *selection*; None if there is none.

    With several routes or models, the replica must also be slower within them, because replicas may serve different ones.

    Raises:
        StoreError: The store cannot be read.
    """
    recent = replace(selection, start=max(selection.start, selection.end - _RECENT))
    found = [each for window in dict.fromkeys((selection, recent)) if (each := _found(read, window))]
    # The longer window has the earlier onset.
    return found[0] if found else None


def slow_replica_text(read: Reader, selection: Selection) -> str:
    """Return the sentence about the slow replica of *selection*, with its onset in UTC; "" without one."""
    found = slow_replica(read, selection)
    return outlier_sentence(found, moment_of(found.onset)) if found else ""


def _found(read: Reader, selection: Selection) -> ReplicaOutlier | None:
    table = read.replica_counts(selection, STEPS)
    outlier = find_outlier(table)
    if outlier is None or not _holds_in_parts(read, selection, outlier):
        return None
    return find_outlier(table, read.hardware(selection, (selection.end - selection.start) / STEPS))


def _holds_in_parts(read: Reader, selection: Selection, outlier: ReplicaOutlier) -> bool:
    """Return whether *outlier* is also found if each route, and each model, is compared with itself only."""
    dimensions = read.dimensions(selection)
    for dimension in ("route", "model"):
        values = list(dimensions.get(dimension, {}))[:_MAX_PARTS]
        if len(values) < 2:  # noqa: PLR2004 - one part is the whole
            continue
        parts = [read.replica_counts(replace(selection, **{dimension: value}), STEPS) for value in values]
        found = find_outlier(stratified(parts))
        if found is None or found.place != outlier.place:
            return False
    return True


def outlier_sentence(found: ReplicaOutlier, since: str) -> str:
    """Return *found* as text.

    Args:
        found: The slow replica.
        since: Time of its onset, such as `14:02`.

    >>> slow = ReplicaOutlier("a:1", "a", 11, 0.5, 0.31, 0.1, 900, 0, True, (), ())
    >>> outlier_sentence(slow, "14:02").replace(chr(215), "x")
    'a is 3.1x slower than the other 11 since 14:02.'
    """
    others = f"the other {found.others}" if found.others > 1 else "the other replica"
    factor = times(found.ratio)
    at = f" at p{100 * found.quantile:g}" if found.quantile > 0.5 else ""  # noqa: PLR2004 - the median
    when = f"since {since}" if found.is_dated else f"since {since} or earlier"
    stage = dominant_growth(found.growth)
    why = f": {label(stage.stage)} {latency(stage.seconds, signed=True)}" if stage else ""
    sentences = [hardware_sentence(each) for each in found.hardware[:_MAX_MEASURES]]
    return " ".join([f"{found.name} is {factor} slower than {others}{at} {when}{why}.", *sentences])


def hardware_sentence(found: HardwareDifference) -> str:
    """Return one difference between machines as text.

    >>> hardware_sentence(HardwareDifference(measures.GPU_CLOCK, 1.005e9, 1.755e9))
    'Its GPU runs at 1,005 MHz, the others at 1,755 MHz.'
    >>> hardware_sentence(HardwareDifference(measures.GPU_HOT, 0.9, 0.0))
    'Its GPU is throttled by heat 90 % of the time; the others never.'
    """
    own, others = (_value_text(found.measure, value) for value in (found.own, found.others))
    sentence = _SENTENCES[found.measure].format(own=own, others=others)
    about_it, is_throttled, _ = sentence.partition("; ")
    return f"{about_it}; the others never." if is_throttled and found.others < _NEVER else sentence


def _value_text(measure: measures.Measure, value: float) -> str:
    if measure.unit == "Hz":
        return f"{value / 1e6:,.0f} MHz"
    return format_size(value) if measure.unit == "By" else percent(whole(value))
