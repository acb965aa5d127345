"""Slow growth of a latency over weeks, on days of simulated requests."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stagelens.analysis.regression.drift import Drift, default_drift_policy, find_drift, stage_growth, weekly_latency
from stagelens.analysis.regression.statistic import StageSeconds

DAY, DAYS, LOW, WIDTH = 1440, 28, -420, 420
POLICY = default_drift_policy()
AT = np.arange(DAYS)


def simulated(growth: NDArray[Any], seed: int = 1, requests: int | NDArray[Any] = 5000) -> StageSeconds:
    """Return days whose stage `preprocess` takes *growth* times its usual time; days have a common noise of 2 %."""
    rng = np.random.default_rng(seed)
    counts = np.broadcast_to(requests, DAYS)
    total, seconds = np.zeros((DAYS, WIDTH), int), np.zeros((2, DAYS, WIDTH))
    for day, n in enumerate(counts.tolist()):
        common = rng.lognormal(0, 0.02)
        forward = common * 0.005 * rng.lognormal(0, 0.2, n)
        preprocess = common * growth[day] * 0.030 * rng.lognormal(0, 0.5, n)
        place = np.ceil(np.log2(forward + preprocess) * 32).astype(int) - 1 - LOW
        total[day] = np.bincount(place, minlength=WIDTH)
        seconds[:, day] = [np.bincount(place, stage, WIDTH) for stage in (forward, preprocess)]
    return StageSeconds(0, DAY, np.arange(LOW, LOW + WIDTH), total, ("forward", "preprocess"), seconds)


def found(growth: NDArray[Any], **more: int) -> Drift | None:
    return find_drift(POLICY, simulated(growth, **more))


@pytest.mark.parametrize("seed", range(5))
def test_a_growth_of_1_5_percent_a_day_is_found(seed: int) -> None:
    days = simulated(1.015**AT, seed)
    drift = find_drift(POLICY, days)
    assert drift is not None
    first, *_ = stage_growth(days.between(0, 7 * DAY), days.between(21 * DAY, 28 * DAY), drift.at)

    assert drift.after / drift.before == pytest.approx(1.015**21, rel=0.1)
    assert drift.low < drift.after / drift.before < drift.high
    assert weekly_latency(days, drift.at) == pytest.approx(drift.after)
    assert (first.stage, first.share) == ("preprocess", pytest.approx(1, abs=0.05))


def test_a_growth_within_ten_days_is_found() -> None:
    assert found(1.025 ** np.clip(AT - 9, 0, 10)) is not None


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(
    "growth",
    [
        lambda: np.ones(DAYS),
        lambda: np.where(AT % 7 >= 5, 1.3, 1.0),
        lambda: 1.002**AT,
        lambda: 1.015 ** np.minimum(AT, DAYS - 1 - AT),
        lambda: 1 + 0.3 * (AT == 25),
    ],
    ids=["noise", "weekends", "0.2 % a day", "grows and shrinks", "one slow day"],
)
def test_other_changes_are_no_drift(growth: Callable[[], NDArray[Any]], seed: int) -> None:
    assert found(growth(), seed=seed) is None


@pytest.mark.parametrize("day", range(1, DAYS))
def test_a_sudden_rise_on_any_day_is_no_drift(day: int) -> None:
    assert found(np.where(day <= AT, 1.5, 1.0)) is None


def test_more_requests_at_the_same_latency_are_no_drift() -> None:
    assert find_drift(POLICY, simulated(np.ones(DAYS), requests=(1000 * 1.1**AT).astype(int))) is None


def test_days_with_few_requests_are_left_out() -> None:
    rest = np.where(AT % 7 >= 5, 20, 5000)
    seldom = np.where(AT % 7 >= 3, 3, 5000)

    assert find_drift(POLICY, simulated(1.015**AT, requests=rest)) is not None
    assert find_drift(POLICY, simulated(1.015**AT, requests=seldom)) is None
    assert weekly_latency(simulated(np.ones(DAYS), requests=seldom), 0.5) is None


def test_the_growth_is_certain_beyond_the_minimum() -> None:
    drifts = [found(1.006**AT, seed=seed) for seed in range(10)]

    assert all(drift is None or drift.low >= 1 + POLICY.growth for drift in drifts)
    assert not any(drift is not None and math.isnan(drift.z) for drift in drifts)
