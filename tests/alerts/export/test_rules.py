"""Prometheus rules made from an SLO file: valid for promtool, and firing together with Stagelens' own evaluation."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
import yaml

from stagelens.alerts.evaluation.slo_status import History, tiers_of
from stagelens.alerts.export import rules
from stagelens.alerts.export.rules import HistogramExpressions, prometheus_duration
from stagelens.alerts.objectives.maintenance import MaintenanceCalendar, OneTimeWindow
from stagelens.alerts.objectives.slo import Slo
from stagelens.analysis import burn_rate
from stagelens.analysis.burn_rate import AlertTier, Counts
from stagelens.analysis.policies import default_burn_rate_policy
from tests.alerts.export.rule_evaluation import firing
from tests.support import prometheus_tool

pytestmark = pytest.mark.stacks

POLICY = default_burn_rate_policy()
MONTH, MINUTE = timedelta(days=30), timedelta(minutes=1)
REQUESTS = "stagelens_request_duration_seconds"
LATENCY = Slo("checkout", "shop", 0.99, MONTH, timedelta(milliseconds=250))
AVAILABILITY = Slo("up", "shop", 0.999, MONTH)
STAGE = Slo("waiting", "shop", 0.99, MONTH, timedelta(milliseconds=500), watched="stage", stage="queue")
FRESH = Slo("fresh", "shop", 0.999, MONTH, timedelta(minutes=5), watched="freshness")
KINDS = (
    LATENCY,
    AVAILABILITY,
    STAGE,
    Slo("first", "chat", 0.95, MONTH, timedelta(milliseconds=300), watched="ttft", definition="engine"),
    Slo("each", "chat", 0.95, MONTH, timedelta(milliseconds=50), watched="tpot"),
    Slo("explained", "shop", 0.9, MONTH, watched="coverage"),
    replace(LATENCY, name='a "quoted" {{name}}', route='/a"b\\c', version="2", environment="prod", model="m"),
)


@pytest.mark.parametrize("native", [False, True])
def test_promtool_accepts_the_rules_of_every_kind(tmp_path: Path, *, native: bool) -> None:
    file = tmp_path / "rules.yml"
    file.write_text(rules.write_rules([*KINDS, FRESH], POLICY, HistogramExpressions(native)))
    code, output = prometheus_tool.run("check", "rules", file)
    groups = yaml.safe_load(file.read_text())["groups"]

    assert code == 0, output
    assert [group["name"] for group in groups] == [f"stagelens-slo-{slo.name}" for slo in KINDS]


def test_an_empty_slo_file_makes_an_empty_rule_file(tmp_path: Path) -> None:
    file = tmp_path / "rules.yml"
    file.write_text(rules.write_rules([], POLICY, HistogramExpressions()))

    assert prometheus_tool.run("check", "rules", file)[0] == 0


def test_inexpressible_rules_are_commented() -> None:
    work = MaintenanceCalendar((OneTimeWindow(datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)),))
    slo = replace(
        LATENCY, objective=0.9, maintenance=work, reset=datetime(2026, 1, 3, tzinfo=UTC), budgets=(("queue", MINUTE),)
    )
    text = rules.write_rules([slo, FRESH], POLICY, HistogramExpressions())

    for sentence in (
        "add them to Alertmanager",
        "Its reset at 2026-01-03T00:00:00+00:00 is not included",
        "Stage budgets are not included",
        "Skipped: page over 1h: the burn rate cannot reach 14.4",
        "Skipped: a rule cannot count minutes without new data",
    ):
        assert sentence in text


def test_missing_collector_labels_are_named() -> None:
    route = replace(LATENCY, route="/pay", threshold=timedelta(milliseconds=300))
    needed = "#   prometheus: {labels: [version, environment, route], buckets: [0.3]}"

    assert needed in rules.write_rules([route], POLICY, HistogramExpressions())
    assert "prometheus: {" not in rules.write_rules([LATENCY], POLICY, HistogramExpressions())


def outage(ratio: float, *, minutes: int = 120, clean: int, after: int, hourly: float = 6000) -> np.ndarray:
    total = np.full(clean + minutes + after, hourly / 60)
    bad = np.zeros_like(total)
    bad[clean : clean + minutes] = total[0] * ratio
    return np.array([total, bad])


def by_chance(hourly: float, ratio: float, *, minutes: int = 900) -> np.ndarray:
    rng = np.random.default_rng(int(hourly))
    total = rng.poisson(hourly / 60, minutes)
    return np.array([total, rng.binomial(total, ratio)], np.float64)


TRAFFIC = {
    "all fail": outage(1.0, minutes=20, clean=100, after=100),
    "a tenth": outage(0.11, clean=200, after=160),
    "few requests": by_chance(20, 0.1, minutes=400),
    "some requests": by_chance(300, 0.08, minutes=400),
    "nothing wrong": outage(0.0, minutes=1, clean=50, after=1),
}


@pytest.mark.parametrize("name", TRAFFIC)
def test_rules_and_evaluator_fire_in_the_same_minutes(tmp_path: Path, name: str) -> None:
    """Rules and the evaluation in Stagelens fire in the same minutes on the same counts; rules fire two minutes longer.

    Of the bad requests, those of every other minute fail immediately and the others are slow; the collector restarts half-way.
    """
    total, bad = TRAFFIC[name]
    failed = bad * (np.arange(len(bad)) % 2)
    served, failing = (f'service_name="shop",status="{each}",instance="a"' for each in ("ok", "error"))
    series = {
        f"{REQUESTS}_count{{{served}}}": counter(total - failed),
        f'{REQUESTS}_bucket{{{served},le="0.25"}}': counter(total - bad),
        f'{REQUESTS}_bucket{{{served},le="0.5"}}': counter(total - failed),
        f"{REQUESTS}_count{{{failing}}}": counter(failed),
        f'{REQUESTS}_bucket{{{failing},le="0.25"}}': counter(failed),
    }
    slos = {LATENCY: bad, replace(AVAILABILITY, objective=0.99): failed}
    theirs = firing(
        tmp_path, rules.write_rules([*slos], POLICY, HistogramExpressions()), series, "slo", "severity", "window"
    )
    quiet = POLICY.hysteresis.quiet // MINUTE

    for slo, broke in slos.items():
        for tier in tiers_of(slo, POLICY):
            ours = fired(slo, tier, total, broke)
            expected = {minute + more for minute in ours for more in range(quiet + 1)} & set(range(len(total) + 1))
            assert theirs.get((slo.name, tier.severity, prometheus_duration(tier.long)), set()) == expected, (
                slo.name,
                tier,
            )


def counter(each: np.ndarray) -> list[float]:
    whole, again = np.concatenate(([0.0], np.cumsum(each))), len(each) // 2
    whole[again:] -= whole[again - 1]
    return whole.tolist()


def test_a_service_with_failures_only_fires(tmp_path: Path) -> None:
    failed = np.arange(0, 10_000, 100.0).tolist()
    series = {f'{REQUESTS}_count{{service_name="shop",status="error"}}': failed}
    found = firing(
        tmp_path, rules.write_rules([LATENCY, AVAILABILITY], POLICY, HistogramExpressions()), series, "slo", "window"
    )

    assert {("checkout", "1h"), ("up", "1h")} <= set(found)


def test_a_service_without_failures_has_a_burn_rate_of_zero(tmp_path: Path) -> None:
    served = np.arange(0, 10_000, 100.0).tolist()
    series = {f'{REQUESTS}_count{{service_name="shop",status="ok"}}': served}

    assert firing(tmp_path, rules.write_rules([AVAILABILITY], POLICY, HistogramExpressions()), series, "slo") == {}


def fired(slo: Slo, tier: AlertTier, total: np.ndarray, bad: np.ndarray) -> set[int]:
    held, held_bad = (np.concatenate(([0.0], np.cumsum(each))) for each in (total, bad))
    history = History(1_795_000_020, held, held, held_bad)
    windows = {length: history.windows(length) for length in burn_rate.needed_windows(POLICY, [tier])}
    found: set[int] = set()
    for edge in range(history.edges):
        counts = {length: Counts(float(each.total[edge]), float(each.bad[edge])) for length, each in windows.items()}
        if burn_rate.firing_tiers([tier], counts, slo.objective, POLICY):
            found.add(edge)
    return found
