"""Texts about a retained request: names and notes of its spans, stalls, and process counters around it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...core.names import AROUND, BATCH_SIZE, DEVICE, MODEL, PART, SERVER, STALL_PREFIX, TIMING
from ...core.stages import STALL_CAUSES, label, position, split_stall_key, stall_key
from .format import duration

_NS = 1e9
# Stalls below this share of the latency are omitted. [ratio]
_NOTICED = 0.01
# Labels of the counters in `names.AROUND`; its duration has none.
_HAPPENED = ("Switches", "Page faults", "Allocator retries")
_TIMED = {
    "reported": "reported by its server",
    "averaged": "reported by its server, on average",
    "launch": "launch only",
    "sampled": "sampled",
}
_PARTS = {"body": "reading the response", "rest": "rest of the call"}


def stalls_by_cause(seconds: Mapping[str, float], whole: float) -> dict[str, dict[str, float]]:
    """Return stall seconds by cause and stage, worst cause first, without negligible shares of the latency *whole*."""
    causes: dict[str, dict[str, float]] = {}
    for name, spent in seconds.items():
        cause, stage = split_stall_key(name)
        if cause in STALL_CAUSES and stage and spent > 0:
            causes.setdefault(cause, {})[stage] = spent
    worst = sorted(causes, key=lambda cause: -sum(causes[cause].values()))
    return {cause: causes[cause] for cause in worst if sum(causes[cause].values()) >= _NOTICED * whole}


def stall_sentence(seconds: Mapping[str, float], whole: float, named: str) -> str:
    r"""Return one sentence for each cause of stalls; "" without stalls.

    >>> stall_sentence({"gc:forward": 0.048, "gc:queue": 0.013}, 0.5, "p99")
    'Garbage collection took 61.0\u202fms of p99, 48.0\u202fms of it in Forward.'
    >>> stall_sentence({"cpu:queue": 0.071}, 0.5, "p99"), stall_sentence({"gc:forward": 0.001}, 0.5, "p99")
    ('The event loop waited 71.0\u202fms of p99 for a CPU, in Queue.', '')
    """
    return " ".join(_cause_sentence(cause, stages, named) for cause, stages in stalls_by_cause(seconds, whole).items())


def _cause_sentence(cause: str, stages: Mapping[str, float], named: str) -> str:
    most = min(stages, key=lambda stage: (-stages[stage], position(stage)))
    whole, most_of_it = duration(sum(stages.values())), duration(stages[most])
    part = "" if whole == most_of_it else f"{most_of_it} of it "
    return f"{STALL_CAUSES[cause].sentence.format(f'{whole} of {named}')}, {part}in {label(most)}."


def stalls_of_trace(attributes: Mapping[str, object]) -> dict[str, float]:
    """Return the stall times [seconds] in the root span *attributes* of a request, by key as for `stalls_by_cause`.

    >>> stalls_of_trace({"stagelens.stall.gc": 3_000_000, "stagelens.stall.gc.forward": 3_000_000, "stagelens.stall.": "odd"})
    {'gc:forward': 0.003}
    """
    seconds_of: dict[str, float] = {}
    for key, spent in attributes.items():
        cause, _, stage = key.removeprefix(STALL_PREFIX).partition(".")
        if key.startswith(STALL_PREFIX) and stage and isinstance(spent, int):
            seconds_of[stall_key(cause, stage)] = spent / _NS
    return seconds_of


def process_counters(attributes: Mapping[str, object]) -> dict[str, str]:
    r"""Return the process counters in the root span *attributes* of a request, by label.

    >>> process_counters({"stagelens.around": 1_000_000_000, "stagelens.around.switches": 340})
    {'Switches': '340 of the process in 1.00\u202fs'}
    """
    length, *counts = (attributes.get(key) for key in AROUND)
    if not isinstance(length, int):
        return {}
    pairs = zip(_HAPPENED, counts, strict=True)
    return {name: f"{n} of the process in {duration(length / _NS)}" for name, n in pairs if isinstance(n, int)}


def span_stalls(attributes: Mapping[str, object]) -> list[str]:
    r"""Return the stalls in the *attributes* of a span, as text.

    >>> span_stalls({"stagelens.stall.gc": 3_000_000})
    ['GC pause 3.00\u202fms']
    """
    met = {cause: attributes.get(STALL_PREFIX + key) for key, cause in STALL_CAUSES.items()}
    return [f"{cause.label} {duration(spent / _NS)}" for cause, spent in met.items() if isinstance(spent, int)]


def span_name(span: Mapping[str, Any]) -> str:
    """Return the name of a span: its stage, followed by its own name if that is different."""
    stage, name = str(span["stage"]), str(span["name"])
    return " · ".join(dict.fromkeys(part for part in (label(stage), name if name != stage else "") if part))


def span_note(span: Mapping[str, Any]) -> str:
    """Return the note of a span: stalls, part of a call, model, batch, device, and the kind of timing."""
    attributes = dict(span.get("attributes") or {})
    timed = [_TIMED.get(str(attributes[TIMING]), f"timed by {attributes[TIMING]}")] if TIMING in attributes else []
    facts = [
        str(value) if key in {MODEL, SERVER} else f"{key.split('.')[1]} {value}"
        for key, value in attributes.items()
        if key in {MODEL, SERVER, BATCH_SIZE, DEVICE}
    ]
    named = str(attributes.get(PART, ""))
    part = filter(None, [_PARTS.get(named, named)])
    return " · ".join([*span_stalls(attributes), *part, *facts, *timed])
