"""When burn-rate alerts fire and stop, and how often for nothing: ours beside the workbook's formulas and Prometheus rules.

    python benchmarks/burn.py [--parts tiers,quiet,speed] [--weeks N]

The same counts, minute by minute, go through `alerts.evaluation.backtest` (the functions that judge in production) and through the
workbook's rules in `promtool test rules`.

- tiers: an SLO of 99.9 % over 30 days, 100 requests a second, a clean history, then so many errors for some hours. Detection is
  the time from the first bad minute until each tier fires; reset from the last bad minute until it stops. The formulas are
  (1 - objective) / error ratio * burn * long window, and the short window.
- quiet: a service that keeps its promise: half the errors it may have, at random. Every page is one for nothing.
- speed: how long a preview of 30 days takes for one SLO, of minutes that are already counted.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Iterable
from datetime import timedelta
from itertools import groupby

import numpy as np
from costs.table import Table
from numpy.typing import NDArray
from promtool import firing_minutes, name_of

from stagelens.alerts.evaluation.backtest import replay
from stagelens.alerts.evaluation.slo_status import History
from stagelens.alerts.objectives.slo import Slo
from stagelens.analysis import burn_rate
from stagelens.analysis.burn_rate import AlertTier, Counts
from stagelens.analysis.policies import default_burn_rate_policy

Minutes = NDArray[np.float64]
MONTH, HOUR, WEEK = timedelta(days=30), 60, 7 * 24 * 60
OBJECTIVE = 0.999
POLICY = default_burn_rate_policy()
SLO = Slo("burn", "burn", OBJECTIVE, MONTH)
TIERS = burn_rate.policy_tiers(POLICY, MONTH)
# The workbook's two pages; its ticket looks back for days, and is left to the formula that a test holds.
PAGES = [tier for tier in TIERS if tier.severity == "page" and tier.long < timedelta(days=1)]
RATIOS = (1.0, 0.5, 0.1, 0.05, 0.02, 0.0145, 0.01, 0.005)
CLEAN, BAD, AFTER = 7 * HOUR, 8 * HOUR, 2 * HOUR
PER_MINUTE = 6000.0
NEVER = "-"
# Requests an hour.
TRAFFIC = (10, 36, 360, 3600)
START = 1_795_000_020


def main() -> None:
    """Run the parts that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="tiers,quiet,speed")
    parser.add_argument("--weeks", type=int, default=4, help="of each quiet service")
    options = parser.parse_args()
    if shutil.which("promtool") is None:
        sys.exit("promtool is not installed; `apt-get install prometheus` has it")
    parts = {"tiers": tiers, "quiet": lambda: quiet(options.weeks), "speed": speed}
    for name in options.parts.split(","):
        parts[name]()


def tiers() -> None:
    """Print when each tier fires and stops, for each share of errors."""
    title = "Detection and reset, in minutes: formula, ours, Prometheus"
    columns = [f"{_hours(tier)} {what}" for tier in PAGES for what in ("fires", "stops")]
    table = Table(title, *columns)
    for ratio in RATIOS:
        total = np.full(CLEAN + BAD + AFTER, PER_MINUTE)
        bad = total * np.where((np.arange(len(total)) >= CLEAN) & (np.arange(len(total)) < CLEAN + BAD), ratio, 0.0)
        theirs = firing_minutes(PAGES, OBJECTIVE, total, bad)
        history = history_of(total, bad)
        cells: list[str] = []
        for tier in PAGES:
            expected = burn_rate.time_to_fire(tier, OBJECTIVE, ratio)
            formula = NEVER if expected is None else f"{expected / timedelta(minutes=1):.3g}"
            both = [edges_of(each) for each in (fired(history, tier), theirs[name_of(tier)])]
            cells.append(" ".join([formula, *(fires for fires, _ in both)]))
            cells.append(" ".join([f"{tier.short // timedelta(minutes=1)}", *(stops for _, stops in both)]))
        table.row(f"{100 * ratio:g} % errors", *cells)
    table.print()


def fired(history: History, tier: AlertTier) -> set[int]:
    """Return the minutes at whose end *tier* fires, by our own arithmetic, with its guard."""
    windows = {length: history.windows(length) for length in (tier.long, tier.short)}
    found: set[int] = set()
    for edge in range(history.edges):
        counts = {length: Counts(float(each.total[edge]), float(each.bad[edge])) for length, each in windows.items()}
        if burn_rate.is_firing(tier, counts, OBJECTIVE, POLICY.guard):
            found.add(edge)
    return found


def edges_of(minutes: set[int]) -> tuple[str, str]:
    """Return how long after the first bad minute something fired, and how long after the last one it stopped."""
    if not minutes:
        return NEVER, NEVER
    return str(min(minutes) - CLEAN), str(max(minutes) + 1 - CLEAN - BAD)


def _hours(tier: AlertTier) -> str:
    return f"{tier.long // timedelta(hours=1)}h"


def quiet(weeks: int) -> None:
    """Print how often each pages for a service that keeps its promise."""
    table = Table(f"Pages for nothing in {weeks} weeks: half the errors that are allowed", "ours", "Prometheus")
    for hourly in TRAFFIC:
        rng = np.random.default_rng(hourly)
        ours = theirs = 0
        for _ in range(weeks):
            total = rng.poisson(hourly / HOUR, WEEK).astype(np.float64)
            bad = rng.binomial(total.astype(np.int64), (1 - OBJECTIVE) / 2).astype(np.float64)
            ours += sum(each.finding.severity == "page" for each in replay(history_of(total, bad), SLO, POLICY))
            found = firing_minutes(PAGES, OBJECTIVE, total, bad)
            theirs += episodes(minute for minutes in found.values() for minute in minutes)
        table.row(f"{hourly} requests an hour", str(ours), str(theirs))
    table.print()


def episodes(minutes: Iterable[int]) -> int:
    """Return in how many stretches *minutes* come."""
    ordered = sorted(set(minutes))
    return len(list(groupby(minute - place for place, minute in enumerate(ordered))))


def speed() -> None:
    """Print how long it takes to judge 30 days of minutes, calm and with an outage a day."""
    table = Table("One SLO, 33 days of minutes, in milliseconds", "time")
    days = 33
    total = np.full(days * 24 * HOUR, PER_MINUTE)
    outage = (np.arange(len(total)) % (24 * HOUR)) < HOUR
    for name, bad in (("calm", total * 0.0005), ("an hour of 5 % errors each day", np.where(outage, total * 0.05, 0))):
        history = history_of(total, bad)
        began = time.perf_counter()
        found = replay(history, SLO, POLICY, since=3 * 24 * HOUR)
        table.row(f"{name} ({len(found)} incidents)", f"{1000 * (time.perf_counter() - began):.0f}")
    table.print()


def history_of(total: Minutes, bad: Minutes) -> History:
    """Return counts by the minute as a history."""
    held, held_bad = (np.concatenate(([0.0], np.cumsum(each))) for each in (total, bad))
    return History(START, held, held, held_bad)


if __name__ == "__main__":
    main()
