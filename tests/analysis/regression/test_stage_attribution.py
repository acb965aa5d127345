"""Attribution of a regression to stages."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelens.analysis.regression.policy import default_tail_policy
from stagelens.analysis.regression.stage_attribution import (
    StageBaseline,
    learn_stage_baseline,
    mean_stage_seconds,
    rank_suspects,
)
from stagelens.analysis.regression.statistic import StageSeconds, bucket_middles

POLICY = default_tail_policy()
DAY = 1440
STAGES = ("dependency", "forward", "queue")
_STEPS = (("total", 0), ("seconds", 1))


def spent_of(counts: list[int], shares: tuple[float, ...]) -> StageSeconds:
    """Requests by bucket, each of which spends *shares* of its time in the stages."""
    total = np.array(counts).reshape(1, -1)
    index = np.arange(-200, -200 + total.shape[1])
    seconds = np.array([share * total * bucket_middles(index) for share in shares])
    return StageSeconds(0, 10, index, total, STAGES, seconds)


@given(st.lists(st.integers(0, 30), min_size=3, max_size=40).filter(sum), st.floats(0.5, 0.999))
def test_the_stages_of_the_slowest_add_up_to_their_latency(counts: list[int], band: float) -> None:
    means = mean_stage_seconds(band, spent_of(counts, (0.2, 0.5, 0.3)), STAGES)
    values = np.repeat(bucket_middles(np.arange(-200, -200 + len(counts))), counts)
    rank = min(max(1, int(np.ceil(band * len(values) - 1e-9))), len(values))

    assert means is not None
    assert means.sum() == pytest.approx(np.sort(values)[rank - 1 :].mean())


def test_without_requests_no_stage_is_blamed() -> None:
    habits = learn_stage_baseline(POLICY, [])

    assert mean_stage_seconds(0.95, spent_of([0, 0], (1, 0, 0)), STAGES) is None
    assert rank_suspects(POLICY, habits, spent_of([0, 0], (1, 0, 0)), {}) == ()


@pytest.fixture
def habits() -> StageBaseline:
    """The slowest requests usually take 10, 20 and 5 ms; the dependency goes up and down by 10 ms."""
    return StageBaseline(STAGES, ((0.010, 0.020, 0.005),) * 24, (0.010, 0.001, 0.001))


def window(*spent: float) -> StageSeconds:
    """A window whose requests all take so many seconds in the dependency, forward, queue and perhaps load."""
    index = np.array([int(np.ceil(np.log2(sum(spent)) * 32)) - 1])
    seconds = np.array([[[100 * value]] for value in spent])
    return StageSeconds(0, 10, index, np.array([[100]]), (*STAGES, "load")[: len(spent)], seconds)


@pytest.mark.parametrize(
    ("spent", "moved", "suspects", "seconds"),
    [
        # A stage that always moves is not blamed for a large difference.
        ((0.022, 0.028, 0.005), {}, ["forward", "dependency"], 0.008),
        # A queue follows the changed stage, unless it grows alone.
        ((0.010, 0.028, 0.045), {"forward": 1.5, "dependency": 0.1}, ["forward", "queue"], 0.008),
        ((0.011, 0.020, 0.045), {"forward": 0.2, "dependency": 0.1}, ["queue", "dependency"], 0.040),
        # A new stage is blamed for all its time.
        ((0.010, 0.021, 0.005, 0.004), {}, ["load", "forward"], 0.004),
    ],
)
def test_the_stage_that_changed_is_the_first_suspect(
    habits: StageBaseline, spent: tuple[float, ...], moved: dict[str, float], suspects: list[str], seconds: float
) -> None:
    found = rank_suspects(POLICY, habits, window(*spent), moved)

    assert [one.stage for one in found[:2]] == suspects
    assert found[0].seconds == pytest.approx(seconds)
    assert found[0].share == pytest.approx(seconds / (sum(spent) - 0.035))
    assert found[0].z == pytest.approx(seconds / (1e-6 if suspects[0] == "load" else 0.001))


def test_stage_baselines_are_hourly(make_service: Callable[..., Any]) -> None:
    service = make_service()
    nights = [service.spent(day * DAY, 12 * 60) for day in range(3)]
    noons = [service.spent(day * DAY + 12 * 60, 12 * 60, {"forward": 2.0}) for day in range(3)]
    known = learn_stage_baseline(POLICY, [*nights, *noons])
    usual = np.array(known.usual)[:, known.stages.index("forward")]

    assert usual[13] == pytest.approx(2 * usual[3], rel=0.2)
    assert rank_suspects(POLICY, known, service.spent(780, 60, {"forward": 2.0}), {})[0].z < POLICY.blame.sure


def test_a_mostly_absent_stage_is_not_anomalous() -> None:
    rng = np.random.default_rng(3)
    days: list[StageSeconds] = []
    for number in range(300):
        spent = window(0.010, 0.020 * rng.normal(1, 0.02), 0.005, 0.010 if number % 20 == 0 else 0.0)
        days.append(replace(spent, start=number * 30, step=30))
    known = learn_stage_baseline(POLICY, days)

    assert known.spread[known.stages.index("load")] > 0.002


def test_an_incomplete_block_is_not_in_the_baseline() -> None:
    per_block = POLICY.blame.block // 10
    usual, slow = window(0.010, 0.020, 0.005), window(0.010, 0.025, 0.005)

    def day(slow_steps: int) -> StageSeconds:
        steps = [usual] * per_block + [slow] * slow_steps
        total, seconds = (np.concatenate([getattr(step, name) for step in steps], axis) for name, axis in _STEPS)
        return StageSeconds(0, 10, usual.index, total, STAGES, seconds)

    whole, longer, two = (learn_stage_baseline(POLICY, [day(number)]) for number in (0, per_block - 1, per_block))

    assert whole == longer != two
