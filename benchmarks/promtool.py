"""Burn-rate rules in a real Prometheus: `promtool test rules` evaluates them minute by minute on counters we give it."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import yaml
from numpy.typing import NDArray

# The tests evaluate rules the same way.
sys.path.insert(0, str(Path(__file__).parents[1]))

from stagelens.analysis.burn_rate import AlertTier
from tests.alerts.export.rule_evaluation import firing


def firing_minutes(
    tiers: Sequence[AlertTier], objective: float, total: NDArray[np.float64], bad: NDArray[np.float64]
) -> dict[str, set[int]]:
    """Return the minutes in which each tier fires, by its long window.

    The rules are the workbook's: the ratio of rates over the long window and over the short one, both above the burn rate.

    Args:
        tiers: What to watch for.
        objective: The share of good requests promised. [ratio]
        total: Requests of each minute; shape (n,).
        bad: Bad ones; shape (n,).
    """
    rules = yaml.safe_dump({"groups": [{"name": "burn", "rules": _rules(tiers, objective)}]})
    series = {
        name: np.concatenate(([0.0], np.cumsum(counted))).tolist()
        for name, counted in (("requests_total", total), ("bad_total", bad))
    }
    with tempfile.TemporaryDirectory() as folder:
        found = firing(Path(folder), rules, series, "tier")
    return {name_of(tier): found.get((name_of(tier),), set()) for tier in tiers}


def name_of(tier: AlertTier) -> str:
    """Return what a tier is called: its severity and its long window."""
    return f"{tier.severity} {int(tier.long.total_seconds()) // 3600}h"


def _rules(tiers: Iterable[AlertTier], objective: float) -> list[dict[str, object]]:
    def ratio(minutes: int) -> str:
        return f"(sum(rate(bad_total[{minutes}m])) / sum(rate(requests_total[{minutes}m])))"

    return [
        {
            "alert": "Burn",
            "labels": {"tier": name_of(tier)},
            "expr": " and ".join(
                f"{ratio(int(length.total_seconds()) // 60)} > {tier.burn * (1 - objective)!r}"
                for length in (tier.long, tier.short)
            ),
        }
        for tier in tiers
    ]
