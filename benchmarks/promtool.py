"""Burn-rate rules in a real Prometheus: `promtool test rules` evaluates them minute by minute on counters we give it."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import yaml
from numpy.typing import NDArray

from stagelens.alerts.burning.burn import Tier

# What a failed expectation looks like: the time it was asked for, and what there was.
_ASKED = re.compile(r"time: (?P<time>\S+),")
_GOT = re.compile(r'tier="(?P<tier>[^"]+)"')
_UNITS = {"d": 1440, "h": 60, "m": 1, "s": 0}


def firing_minutes(
    tiers: Sequence[Tier], objective: float, total: NDArray[np.float64], bad: NDArray[np.float64]
) -> dict[str, set[int]]:
    """Return the minutes in which each tier fires, by its long window.

    The rules are the workbook's: the ratio of rates over the long window and over the short one, both above the burn rate.

    Args:
        tiers: What to watch for.
        objective: The share of good requests promised. [ratio]
        total: Requests of each minute; shape (n,).
        bad: Bad ones; shape (n,).
    """
    with tempfile.TemporaryDirectory() as folder:
        rules, tests = Path(folder) / "rules.yml", Path(folder) / "tests.yml"
        rules.write_text(yaml.safe_dump({"groups": [{"name": "burn", "rules": _rules(tiers, objective)}]}))
        tests.write_text(yaml.safe_dump(_tests(rules.name, total, bad)))
        said = subprocess.run(["promtool", "test", "rules", tests], capture_output=True, text=True, check=False)
    return _read(said.stdout + said.stderr, [name_of(tier) for tier in tiers])


def name_of(tier: Tier) -> str:
    """Return what a tier is called: its severity and its long window."""
    return f"{tier.severity} {int(tier.long.total_seconds()) // 3600}h"


def _rules(tiers: Iterable[Tier], objective: float) -> list[dict[str, object]]:
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


def _tests(rules: str, total: NDArray[np.float64], bad: NDArray[np.float64]) -> dict[str, object]:
    # Nothing is expected, so that everything that fires is told.
    asked = [
        {"expr": 'ALERTS{alertstate="firing"}', "eval_time": f"{minute}m", "exp_samples": []}
        for minute in range(1, len(total) + 1)
    ]
    series = [
        {"series": name, "values": " ".join(f"{value:.10g}" for value in np.concatenate(([0.0], np.cumsum(counted))))}
        for name, counted in (("requests_total", total), ("bad_total", bad))
    ]
    test = {"interval": "1m", "input_series": series, "promql_expr_test": asked}
    return {"rule_files": [rules], "evaluation_interval": "1m", "tests": [test]}


def _read(said: str, names: Iterable[str]) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {name: set() for name in names}
    minute = 0
    for line in said.splitlines():
        asked = _ASKED.search(line)
        if asked:
            minute = sum(int(number) * _UNITS[unit] for number, unit in re.findall(r"(\d+)([dhms])", asked["time"]))
        for tier in _GOT.findall(line):
            found[tier].add(minute)
    return found
