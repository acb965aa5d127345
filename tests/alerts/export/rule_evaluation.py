"""Evaluation of rules in a real Prometheus: `promtool test rules` runs them minute by minute on given counters."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from tests.support import prometheus_tool

# Format of a failed expectation: the time and the actual alerts.
_ASKED = re.compile(r"time: (?P<time>\S+),")
_ALERT = re.compile(r'\{__name__="ALERTS"[^}]*\}')
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_UNITS = {"d": 1440, "h": 60, "m": 1, "s": 0}


def firing(
    folder: Path, rules: str, series: Mapping[str, Sequence[float]], *names: str
) -> dict[tuple[str, ...], set[int]]:
    """Return the minutes in which alerts fire, by their values of the labels *names*.

    Args:
        folder: Folder for the files of promtool.
        rules: A rule file.
        series: Counters by name and labels, one value per minute, NaN while the counter does not exist; all of equal length.
        names: Names of labels.
    """
    (folder / "rules.yml").write_text(rules)
    minutes = len(next(iter(series.values())))
    # No alert is expected, so that promtool reports all that fire.
    asked = [
        {"expr": 'ALERTS{alertstate="firing"}', "eval_time": f"{minute}m", "exp_samples": []}
        for minute in range(1, minutes)
    ]
    given = [{"series": name, "values": " ".join(map(_written, values))} for name, values in series.items()]
    test = {"interval": "1m", "input_series": given, "promql_expr_test": asked}
    tests = {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": [test]}
    (folder / "tests.yml").write_text(yaml.safe_dump(tests))
    return _read(prometheus_tool.run("test", "rules", folder / "tests.yml")[1], names)


def _written(value: float) -> str:
    return "stale" if math.isnan(value) else f"{value:.12g}"


def _read(output: str, names: Sequence[str]) -> dict[tuple[str, ...], set[int]]:
    found: dict[tuple[str, ...], set[int]] = {}
    minute = 0
    for line in output.splitlines():
        if asked := _ASKED.search(line):
            minute = sum(int(number) * _UNITS[unit] for number, unit in re.findall(r"(\d+)([dhms])", asked["time"]))
        for alert in _ALERT.findall(line):
            labels = dict(_LABEL.findall(alert))
            found.setdefault(tuple(labels[name] for name in names), set()).add(minute)
    return found
