"""The policy of the search for regressions."""

import math

import pytest

from stagelens.analysis.regression.policy import StageEase, Window, default_tail_policy

POLICY = default_tail_policy()


def test_every_window_has_a_requirement_per_statistic() -> None:
    assert [len(window.required) for window in POLICY.windows] == [len(POLICY.at)] * len(POLICY.windows)
    assert all(len(window.required) == len(POLICY.stage_key.at) for window in POLICY.stage_key.windows)


@pytest.mark.parametrize("window", POLICY.windows, ids=[f"{window.length}m" for window in POLICY.windows])
def test_a_short_spike_of_ten_minutes_is_ignored(window: Window) -> None:
    touched = math.ceil(10 / window.block) + (1 if window.block > 2 else 0)
    clean = window.blocks - touched

    assert clean >= window.blocks - window.drop or window.min_duration > 10 or window.only_released


def test_stage_changes_lower_the_required_score_within_bounds() -> None:
    ease = StageEase(start=1.15, by=0.35, least=0.3, one_stage=0.5)

    assert [ease.needed(key) for key in (0.0, 0.3, 1.0, 9.0)] == pytest.approx([1.0, 1.0, 0.8, 0.3])
