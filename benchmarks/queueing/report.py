"""Tables of `regressions.py`, with the goals beside the measured values."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from tables import Table

from .detector import Outcome, Result

# Goals: false alarms a series and week, recall and median delay by true growth, canaries, stage, cost.
MAX_QUIET, MAX_FALSE = 0.005, 0.02
MIN_RECALL = {0.10: 0.92, 0.15: 0.98, 0.20: 1.0, 0.30: 1.0, 0.50: 1.0, 1.00: 1.0}
MAX_DELAY = {0.20: 25, 0.30: 25, 0.50: 12, 1.00: 6}
MAX_EQUAL, MAX_CANARY_DELAY, MIN_STAGE, MAX_COST = 1 / 500, 10, 0.995, 0.01
# Sizes that count for the delay of canaries. [ratio]
LARGE = 0.20
MINUTE, DAY_SECONDS, THOUSAND = 60, 86_400, 1000


def report(outcomes: Sequence[Outcome], *, listed: bool = False) -> bool:
    """Print the tables, and with *listed* each mistake; return whether every goal is met."""
    regressions, harmless, canaries = (
        [result for outcome in outcomes for result in getattr(outcome, name)]
        for name in ("regressions", "harmless", "canaries")
    )
    print(f"{len(outcomes)} series of {outcomes[0].seed} to {outcomes[-1].seed}")
    met = _summary(outcomes, regressions, harmless, canaries)
    table = Table("true growth", "n", "stage first", "recall", "goal", "median", "goal", "p90", "canaries", "median")
    for size in sorted(MIN_RECALL):
        these = [regression for regression in regressions if regression.size == size]
        versions = [canary for canary in canaries if canary.size == size]
        if not these:
            continue
        table.row(
            f"+{size:.0%}",
            str(len(these)),
            _percent(_right(these)),
            _percent(_recall(these)),
            _percent(MIN_RECALL[size]),
            _minutes(_delay(these)),
            str(MAX_DELAY.get(size, "-")),
            _minutes(_delay(these, quantile=0.9)),
            _percent(_recall(versions)),
            _minutes(_delay(versions)),
        )
        met &= _recall(these) >= MIN_RECALL[size] and _delay(these) <= MAX_DELAY.get(size, math.inf)
    table.print()
    kinds = Table("by kind", "n", "alarms", "median")
    for name, results in (("", regressions), ("harmless: ", harmless)):
        for kind in sorted({each.kind for each in results}):
            these = [each for each in results if each.kind == kind]
            kinds.row(f"{name}{kind}", str(len(these)), str(len(_alarmed(these))), _minutes(_delay(these)))
    kinds.print()
    for outcome in outcomes if listed else ():
        _list_mistakes(outcome)
    print("all goals are met" if met else "not all goals are met")
    return met


def _summary(
    outcomes: Sequence[Outcome], regressions: list[Result], harmless: list[Result], canaries: list[Result]
) -> bool:
    events = [event for outcome in outcomes for event in outcome.events]
    quiet, weeks, alarmed = events.count(""), len(outcomes), len(_alarmed(harmless))
    equal = [canary for canary in canaries if not canary.size]
    large = [canary for canary in canaries if canary.size >= LARGE]
    evaluating, learning = (
        float(np.median([getattr(outcome, name) for outcome in outcomes])) for name in ("evaluating", "learning")
    )
    cost = THOUSAND * (evaluating / MINUTE + learning / DAY_SECONDS)
    false_canaries = len(_alarmed(equal))
    rows = [
        ("false alarms a week, quiet hours", f"{quiet / weeks:.3f}", f"{MAX_QUIET}", quiet / weeks <= MAX_QUIET),
        ("false alarms a week, all", f"{len(events) / weeks:.3f}", f"{MAX_FALSE}", len(events) / weeks <= MAX_FALSE),
        ("must-not-alert episodes", f"{alarmed} of {len(harmless)}", "0", not alarmed),
        ("stage right first", _percent(_right(regressions)), f"{MIN_STAGE:.1%}", _right(regressions) >= MIN_STAGE),
        (
            "equal canaries that alarm",
            f"{false_canaries} of {len(equal)}",
            "1 of 500",
            false_canaries <= MAX_EQUAL * len(equal),
        ),
        (
            f"canaries from +{LARGE:.0%}, median",
            _minutes(_delay(large)),
            f"{MAX_CANARY_DELAY} min",
            _delay(large) <= MAX_CANARY_DELAY,
        ),
        ("cost of 1,000 series, of a core", f"{cost:.2%}", f"{MAX_COST:.0%}", cost <= MAX_COST),
    ]
    table = Table("", "measured", "goal", "")
    for name, value, goal, met in rows:
        table.row(name, value, goal, "" if met else "missed")
    table.print()
    print(f"false alarms by event: {_counted(events)}\n")
    return all(met for _, _, _, met in rows)


def _list_mistakes(outcome: Outcome) -> None:
    if outcome.events:
        print(f"false     series {outcome.seed}: {_counted(outcome.events)}")
    for each in _alarmed(outcome.harmless):
        print(f"must not  series {outcome.seed}: {each.what}, {each.alarm}")
    for regression in outcome.regressions:
        if regression.alarm is None or regression.alarm.stages[:1] != (regression.stage,):
            print(
                f"mistake   series {outcome.seed}: +{regression.size:.0%}, {regression.what}, {regression.alarm or 'missed'}"
            )
    for canary in outcome.canaries:
        if canary.alarm is None if canary.size >= LARGE else not canary.size and canary.alarm is not None:
            print(f"canary    series {outcome.seed}: +{canary.size:.0%} {canary.kind} {canary.stage}: {canary.alarm}")


def _alarmed(results: Sequence[Result]) -> list[Result]:
    return [each for each in results if each.alarm is not None]


def _recall(results: Sequence[Result]) -> float:
    return len(_alarmed(results)) / len(results) if results else math.nan


def _delay(results: Sequence[Result], *, quantile: float = 0.5) -> float:
    """Return a quantile of the delays in minutes; infinite if it is not reached, NaN without episodes."""
    delays = [math.inf if each.alarm is None else float(each.alarm.after) for each in results]
    return float(np.quantile(delays, quantile, method="higher")) if delays else math.nan


def _right(results: Sequence[Result]) -> float:
    named = [each.alarm.stages[0] == each.stage for each in results if each.alarm and each.alarm.stages]
    return float(np.mean(named)) if named else math.nan


def _counted(events: Iterable[str]) -> str:
    return ", ".join(f"{event or 'quiet'} {n}" for event, n in Counter(events).most_common()) or "none"


def _percent(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.1%}" if 0.99 <= value < 1 else f"{value:.0%}"


def _minutes(value: float) -> str:
    return f"{value:.0f}" if math.isfinite(value) else "-"
