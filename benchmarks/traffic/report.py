"""The tables of `regressions.py`, with the goals beside what was reached."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from .judging import OURS, Found, Outcome

MAX_FALSE, MIN_RECALL, RECALL_FROM = 0.05, 0.95, 0.15
MAX_DELAYS = {0.20: 45, 1.00: 15}
MAX_CANARY_DELAY, CANARY_FROM = 15, 0.50
MIN_BLAMED, MAX_COST = 0.98, 0.01
MINUTE, DAY_SECONDS, THOUSAND = 60, 86_400, 1000


def report(outcomes: Sequence[Outcome]) -> bool:
    """Print all tables, and say whether every goal is met."""
    names = list(outcomes[0].false)
    met = _recall([found for outcome in outcomes for found in outcome.found], names)
    met &= _false(outcomes, names)
    _by_rate(outcomes)
    met &= _blame([found for outcome in outcomes for found in outcome.found])
    met &= _canaries([found for outcome in outcomes for found in outcome.canaries])
    met &= _cost(outcomes)
    print("all goals are met" if met else "not all goals are met")
    return met


def _recall(found: Sequence[Found], names: Sequence[str]) -> bool:
    print(f"{'true growth':<12}{'n':>5}   " + "".join(f"{name:>28}" for name in names))
    print(f"{'':<20}" + "".join(f"{'recall   median  p90 [min]':>28}" for _ in names))
    met = True
    for size in sorted({each.size for each in found}):
        these = [each for each in found if each.size == size]
        print(f"+{size:<11.0%}{len(these):>5}   " + "".join(_cell(these, name) for name in names))
        met &= size < RECALL_FROM or _recall_of(these, OURS) >= MIN_RECALL
        met &= _median(these, OURS) <= MAX_DELAYS.get(size, math.inf)
    for each in found:
        if each.alarm[OURS] is None and each.size >= RECALL_FROM:
            print(f"  missed: +{each.size:.0%} at {each.rate:g} requests/s: {each.what}")
    return met


def _cell(found: Sequence[Found], name: str) -> str:
    delays = _delays(found, name)
    late = (
        f"{np.quantile(delays, 0.9, method='higher'):.0f}"
        if math.isfinite(np.quantile(delays, 0.9, method="higher"))
        else "-"
    )
    median = _median(found, name)
    return f"{_recall_of(found, name):>15.0%}{f'{median:.0f}' if math.isfinite(median) else '-':>8}{late:>5}"


def _false(outcomes: Sequence[Outcome], names: Sequence[str]) -> bool:
    harmless = [found for outcome in outcomes for found in outcome.harmless]
    print(f"\nfalse alarms a series and week, of {len(outcomes)}; harmless episodes that alarmed, of {len(harmless)}")
    for name in names:
        false = sum(outcome.false[name] for outcome in outcomes) / len(outcomes)
        woken = sum(found.alarm[name] is not None for found in harmless)
        print(f"  {name:<28}{false:>8.2f}{woken:>8}")
    neighbours = sum(outcome.in_episodes for outcome in outcomes)
    print(f"  of ours {neighbours} in episodes of noisy neighbours")
    for outcome in outcomes:
        if outcome.false[OURS]:
            print(f"  false: series {outcome.seed}, {outcome.rate:g} requests/s: {outcome.false[OURS]}")
    for found in harmless:
        if found.alarm[OURS] is not None:
            print(f"  harmless: {found.what} at {found.rate:g} requests/s, {found.alarm[OURS]} min")
    ours = sum(outcome.false[OURS] for outcome in outcomes) / len(outcomes)
    return ours <= MAX_FALSE and all(found.alarm[OURS] is None for found in harmless)


def _by_rate(outcomes: Sequence[Outcome]) -> None:
    print(f"\n{'requests/s':<12}{'series':>8}{'false a week':>14}{f'recall from +{RECALL_FROM:.0%}':>20}")
    for rate in sorted({outcome.rate for outcome in outcomes}):
        these = [outcome for outcome in outcomes if outcome.rate == rate]
        found = [each for outcome in these for each in outcome.found if each.size >= RECALL_FROM]
        false = sum(outcome.false[OURS] for outcome in these) / len(these)
        print(f"{rate:<12g}{len(these):>8}{false:>14.2f}{_recall_of(found, OURS):>20.0%}")


def _blame(found: Sequence[Found]) -> bool:
    named = [each for each in found if each.blamed]
    if not named:
        print("\nno stage was named: nothing was found")
        return False
    first = np.mean([each.blamed[0] == each.stage for each in named])
    second = np.mean([each.stage in each.blamed[:2] for each in named])
    print(f"\nright stage named first {first:.1%}, in the first two {second:.1%}, of {len(named)}")
    for each in named:
        if each.blamed[0] != each.stage:
            print(f"  blamed {each.blamed[0]}, then {each.blamed[1]}: +{each.size:.0%}, {each.what}")
    return bool(first >= MIN_BLAMED)


def _canaries(found: Sequence[Found]) -> bool:
    good = [each for each in found if not each.size]
    print(f"\ncanaries: {sum(each.alarm[OURS] is not None for each in good)} of {len(good)} good ones alarmed")
    print(f"{'true growth':<12}{'n':>5}{'recall':>9}{'median [min]':>14}{'stage':>8}")
    for size in sorted({each.size for each in found if each.size}):
        these = [each for each in found if each.size == size]
        named = [each.blamed[0] == each.stage for each in these if each.blamed]
        median = _median(these, OURS)
        shown = f"{median:.0f}" if math.isfinite(median) else "-"
        print(
            f"+{size:<11.0%}{len(these):>5}{_recall_of(these, OURS):>9.0%}{shown:>14}{np.mean(named) if named else 0:>8.0%}"
        )
    large = [each for each in found if each.size >= CANARY_FROM]
    return not any(each.alarm[OURS] is not None for each in good) and _median(large, OURS) <= MAX_CANARY_DELAY


def _cost(outcomes: Sequence[Outcome]) -> bool:
    judging = np.median([outcome.judging for outcome in outcomes])
    learning = np.median([outcome.learning for outcome in outcomes])
    share = THOUSAND * (judging / MINUTE + learning / DAY_SECONDS)
    print(
        f"\n1,000 series cost {share:.2%} of a core: {judging * THOUSAND * 1000:.0f} ms a minute to count and judge 1,000,"
    )
    print(
        f"{learning * 1000:.0f} ms a series and day to learn; its state is {np.median([o.state for o in outcomes]):.0f} bytes"
    )
    return bool(share <= MAX_COST)


def _delays(found: Sequence[Found], name: str) -> list[float]:
    after = [each.alarm[name] for each in found]
    return [math.inf if delay is None else float(delay) for delay in after]


def _median(found: Sequence[Found], name: str) -> float:
    return float(np.quantile(_delays(found, name), 0.5, method="higher")) if found else math.inf


def _recall_of(found: Sequence[Found], name: str) -> float:
    return float(np.mean([each.alarm[name] is not None for each in found]))
