"""Tables of `regressions.py`, with the goals beside the measured values."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from .evaluation import OURS, Found, Outcome

# Goals: false alarms a series and week, recall and median delay by true growth, canaries, stage, cost.
MAX_QUIET, MAX_FALSE = 0.005, 0.02
MIN_RECALL = {0.10: 0.92, 0.15: 0.98, 0.20: 1.0, 0.30: 1.0, 0.50: 1.0, 1.00: 1.0}
MAX_DELAY = {0.20: 25, 0.30: 25, 0.50: 12, 1.00: 6}
MAX_EQUAL, MAX_CANARY_DELAY, MIN_CANARY_RECALL = 1 / 500, 10, 7 / 9
MIN_STAGE, MAX_COST = 0.995, 0.01
# Smallest size, sizes that count for delays and canaries, and rate of the goal of canaries. [ratio, requests/s]
SMALLEST, LARGE, SLOWEST = 0.10, 0.20, 1.0
MINUTE, DAY_SECONDS, THOUSAND = 60, 86_400, 1000


def report(outcomes: Sequence[Outcome], *, listed: bool = False) -> bool:
    """Print the tables of one model, and with *listed* each mistake; return whether every goal is met."""
    print(f"{outcomes[0].model} model: {len(outcomes)} series of {outcomes[0].seed} to {outcomes[-1].seed}")
    met = _summary(outcomes)
    _by_size(outcomes)
    _by_rate(outcomes)
    _by_kind(outcomes)
    if listed:
        _mistakes(outcomes)
    print("all goals are met\n" if met else "not all goals are met\n")
    return met


def _summary(outcomes: Sequence[Outcome]) -> bool:
    found, harmless, canaries = (
        [each for outcome in outcomes for each in getattr(outcome, name)] for name in ("found", "harmless", "canaries")
    )
    events = [event for outcome in outcomes for event in outcome.events]
    quiet, weeks = events.count(""), len(outcomes)
    alarmed, equal = _alarmed(harmless), [each for each in canaries if not each.size]
    large = [each for each in canaries if each.size >= LARGE]
    slowest = [each for each in large if each.rate <= SLOWEST]
    evaluating, learning, state = (
        float(np.median([getattr(outcome, name) for outcome in outcomes]))
        for name in ("evaluating", "learning", "state")
    )
    cost = THOUSAND * (evaluating / MINUTE + learning / DAY_SECONDS)
    rows = [
        ("false alarms a week, quiet hours", f"{quiet / weeks:.3f}", f"{MAX_QUIET}", quiet / weeks <= MAX_QUIET),
        ("false alarms a week, all", f"{len(events) / weeks:.3f}", f"{MAX_FALSE}", len(events) / weeks <= MAX_FALSE),
        ("must-not-alert episodes", f"{len(alarmed)} of {len(harmless)}", "0", not alarmed),
        ("stage right first", _percent(_right(found)), f"{MIN_STAGE:.1%}", _right(found) >= MIN_STAGE),
        (
            "equal canaries that alarm",
            f"{len(_alarmed(equal))} of {len(equal)}",
            "1 of 500",
            len(_alarmed(equal)) <= MAX_EQUAL * len(equal),
        ),
        (
            f"canaries from +{LARGE:.0%}, median",
            _minutes(_delay(large)),
            f"{MAX_CANARY_DELAY} min",
            _delay(large) <= MAX_CANARY_DELAY,
        ),
        (
            f"canaries from +{LARGE:.0%} at {SLOWEST:g}/s",
            f"{len(_alarmed(slowest))} of {len(slowest)}",
            "7 of 9",
            not slowest or _recall(slowest) >= MIN_CANARY_RECALL,
        ),
        ("cost of 1,000 series, of a core", f"{cost:.2%}", f"{MAX_COST:.0%}", cost <= MAX_COST),
    ]
    print(f"\n{'':<36}{'measured':>12}{'goal':>10}")
    for name, value, goal, met in rows:
        print(f"{name:<36}{value:>12}{goal:>10}{'' if met else '  missed'}")
    print(f"false alarms by event: {_counted(event or 'quiet' for event in events)}; state: {state:.0f} bytes")
    sizes = [
        _recall(these) >= MIN_RECALL[size] and _delay(these) <= MAX_DELAY.get(size, math.inf)
        for size, these in _groups(found, lambda each: each.size)
    ]
    return all(met for _, _, _, met in rows) and all(sizes)


def _by_size(outcomes: Sequence[Outcome]) -> None:
    found = [each for outcome in outcomes for each in outcome.found]
    names = list(outcomes[0].false)
    print(f"\n{'':<26}" + "".join(f"{name:>27}" for name in ("goal", *names)) + f"{'canaries':>27}")
    print(f"{'true growth':<14}{'n':>5}{'stage':>7}" + f"{'recall  median   p90':>27}" * (2 + len(names)))
    canaries = {size: list(each) for size, each in _groups(_canaries(outcomes), lambda each: each.size)}
    for size, these in _groups(found, lambda each: each.size):
        goal = f"{MIN_RECALL[size]:>14.0%}{MAX_DELAY.get(size, '-'):>8}{'-':>5}"
        cells = "".join(_cell(these, name) for name in names)
        print(f"+{size:<13.0%}{len(these):>5}{_percent(_right(these)):>7}{goal}{cells}{_cell(canaries.get(size, []))}")
    print(f"{'false alarms a week':<53}" + "".join(f"{_false(outcomes, name):>27.2f}" for name in names))
    harmless = [each for outcome in outcomes for each in outcome.harmless]
    print(f"{'must-not-alert episodes':<53}" + "".join(f"{len(_alarmed(harmless, name)):>27}" for name in names))


def _by_rate(outcomes: Sequence[Outcome]) -> None:
    print(
        f"\n{'':<20}{'false/week':>16}{'must not':>11}{'recall':>16}{'median':>8}{'equal':>12}{'canaries':>12}{'':>8}"
    )
    print(
        f"{'requests/s':<12}{'series':>8}{'quiet':>8}{'all':>8}{'alert':>11}{'+10 %':>8}{'+15 %..':>8}{'+20 %..':>8}"
        f"{'canaries':>12}{'+20 %..':>12}{'median':>8}"
    )
    for rate in sorted({outcome.rate for outcome in outcomes}):
        these = [outcome for outcome in outcomes if outcome.rate == rate]
        found = [each for outcome in these for each in outcome.found]
        harmless = [each for outcome in these for each in outcome.harmless]
        equal = [each for each in _canaries(these) if not each.size]
        large = [each for each in _canaries(these) if each.size >= LARGE]
        events = [event for outcome in these for event in outcome.events]
        recalls = (
            _recall([each for each in found if each.size == SMALLEST]),
            _recall([each for each in found if each.size > SMALLEST]),
        )
        print(
            f"{rate:<12g}{len(these):>8}{events.count('') / len(these):>8.2f}{len(events) / len(these):>8.2f}"
            f"{_share(harmless):>11}{''.join(f'{_percent(recall):>8}' for recall in recalls)}"
            f"{_minutes(_delay([each for each in found if each.size >= LARGE])):>8}"
            f"{_share(equal):>12}{_share(large):>12}{_minutes(_delay(large)):>8}"
        )


def _by_kind(outcomes: Sequence[Outcome]) -> None:
    found = [each for outcome in outcomes for each in outcome.found]
    print(f"\n{'change':<16}{'n':>5}{'stage':>8}{'recall':>9}{'median':>8}{'p90':>6}")
    for kind, these in _groups(found, lambda each: each.kind):
        print(
            f"{kind:<16}{len(these):>5}{_percent(_right(these)):>8}{_percent(_recall(these)):>9}"
            f"{_minutes(_delay(these)):>8}{_minutes(_delay(these, quantile=0.9)):>6}"
        )
    harmless = [each for outcome in outcomes for each in outcome.harmless]
    kinds = ", ".join(f"{kind} {_share(these)}" for kind, these in _groups(harmless, lambda each: each.kind))
    print(f"must-not-alert episodes with an alarm: {kinds}")


def _mistakes(outcomes: Sequence[Outcome]) -> None:
    print()
    for outcome in outcomes:
        where = f"series {outcome.seed}, {outcome.rate:g}/s"
        if outcome.events:
            print(f"false     {where}: {_counted(event or 'quiet' for event in outcome.events)}")
        for each in outcome.harmless:
            if each.alarm[OURS] is not None:
                print(f"must not  {where}: {each.what}, after {each.alarm[OURS]} min")
        for each in outcome.found:
            if each.alarm[OURS] is None:
                print(f"missed    {where}: +{each.size:.0%}, {each.what}")
            elif each.blamed[:1] != (each.stage,):
                print(f"stage     {where}: +{each.size:.0%}, {each.what}, blamed {', '.join(each.blamed[:2])}")
        for each in outcome.canaries:
            if each.alarm[OURS] is None if each.size >= LARGE else not each.size and each.alarm[OURS] is not None:
                print(f"canary    {where}: +{each.size:.0%} {each.kind} {each.stage}: {each.alarm[OURS]}")


def _groups(found: Iterable[Found], key: Callable[[Found], float | str]) -> list[tuple[Any, list[Found]]]:
    groups: dict[Any, list[Found]] = {}
    for each in found:
        groups.setdefault(key(each), []).append(each)
    return sorted(groups.items())


def _canaries(outcomes: Sequence[Outcome]) -> list[Found]:
    return [each for outcome in outcomes for each in outcome.canaries]


def _cell(found: Sequence[Found], name: str = OURS) -> str:
    return (
        f"{_percent(_recall(found, name)):>14}{_minutes(_delay(found, name)):>8}"
        f"{_minutes(_delay(found, name, quantile=0.9)):>5}"
    )


def _false(outcomes: Sequence[Outcome], name: str) -> float:
    return sum(outcome.false[name] for outcome in outcomes) / len(outcomes)


def _alarmed(found: Sequence[Found], name: str = OURS) -> list[Found]:
    return [each for each in found if each.alarm[name] is not None]


def _recall(found: Sequence[Found], name: str = OURS) -> float:
    return len(_alarmed(found, name)) / len(found) if found else math.nan


def _delay(found: Sequence[Found], name: str = OURS, *, quantile: float = 0.5) -> float:
    """Return a quantile of the delays in minutes; infinite if it is not reached, NaN without episodes."""
    delays = [math.inf if each.alarm[name] is None else float(each.alarm[name] or 0) for each in found]
    return float(np.quantile(delays, quantile, method="higher")) if delays else math.nan


def _right(found: Sequence[Found]) -> float:
    named = [each.blamed[0] == each.stage for each in found if each.blamed]
    return float(np.mean(named)) if named else math.nan


def _share(found: Sequence[Found]) -> str:
    return f"{len(_alarmed(found))} of {len(found)}"


def _counted(names: Iterable[str]) -> str:
    return ", ".join(f"{name} {n}" for name, n in Counter(names).most_common()) or "none"


def _percent(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.1%}" if 0.99 <= value < 1 else f"{value:.0%}"


def _minutes(value: float) -> str:
    return f"{value:.0f}" if math.isfinite(value) else "-"
