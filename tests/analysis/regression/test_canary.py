"""Comparison of two versions that serve at the same time."""

from dataclasses import replace
from datetime import timedelta
from math import comb
from typing import Any

import numpy as np
import pytest

from stagelens.analysis.regression import canary, scoring
from stagelens.analysis.regression.policy import default_tail_policy, default_watch_policy
from stagelens.analysis.regression.scoring import Reference, TailScore
from stagelens.analysis.regression.stage_attribution import learn_stage_baseline
from stagelens.analysis.regression.statistic import (
    MinuteHistograms,
    StageSeconds,
    count_beyond,
    join_tallies,
)

POLICY = default_tail_policy()
RULES = scoring.AlarmRules.of_canary(POLICY)
COLD = POLICY.canary.cold
DAY = 1440


def first_alarm(reference: Reference, old: MinuteHistograms, new: MinuteHistograms) -> tuple[int, TailScore] | None:
    """Return the minutes until the alarm, and the score at that time; None without an alarm."""
    a, b = count_beyond(reference.rows, old), count_beyond(reference.rows, new)
    progress = scoring.AlarmState()
    for at in range(1, len(a) + 1):
        sides = (
            replace(side, requests=side.requests[:at], n=side.n[:, :at], beyond=side.beyond[:, :at]).last(120)
            for side in (a, b)
        )
        judged = canary.compare_versions(POLICY, reference.rows, *sides, cold=COLD)
        progress, turn = scoring.advance_alarm(RULES, progress, at, judged)
        if turn == "fired":
            return at, judged
    return None


def test_a_slower_canary_is_detected_within_10_minutes(service: Any, reference: Reference) -> None:
    slower = {"forward": 1.5}
    old, new = service.minutes(0, 60, share=0.9), service.minutes(0, 60, slower, share=0.1)
    found = first_alarm(reference, old, new)
    habits = learn_stage_baseline(POLICY, [service.spent(0, DAY)])

    assert found is not None
    assert found[0] <= 10
    blamed = canary.rank_canary_suspects(
        POLICY, habits, service.spent(0, 20), service.spent(0, 20, slower), found[1].moved
    )
    assert blamed[0].stage == "forward"


@pytest.mark.parametrize("slower", [{}, {"preprocess": 2.0}])
def test_an_equal_canary_causes_no_alarm(service: Any, reference: Reference, slower: dict[str, float]) -> None:
    old, new = service.minutes(0, 180, slower, share=0.7), service.minutes(0, 180, slower, share=0.3)

    assert first_alarm(reference, old, new) is None


def test_a_cold_start_of_the_canary_causes_no_alarm(service: Any, reference: Reference) -> None:
    cold = service.minutes(0, 3, {"forward": 4.0}, share=0.3)
    warm = service.minutes(3, 87, share=0.3)
    a = count_beyond(reference.rows, service.minutes(0, 90, share=0.7))
    b = join_tallies(*(count_beyond(reference.rows, part) for part in (cold, warm)))
    progress = scoring.AlarmState()
    turns: list[str] = []
    for at in range(1, 91):
        sides = (replace(s, requests=s.requests[:at], n=s.n[:, :at], beyond=s.beyond[:, :at]) for s in (a, b))
        progress, turn = scoring.advance_alarm(
            RULES, progress, at, canary.compare_versions(POLICY, reference.rows, *sides, cold=COLD)
        )
        turns += [turn] if turn else []

    assert turns == []


def test_both_versions_must_cover_the_same_minutes(service: Any, reference: Reference) -> None:
    old, new = (
        count_beyond(reference.rows, service.minutes(0, 30)),
        count_beyond(reference.rows, service.minutes(5, 30)),
    )

    with pytest.raises(ValueError, match="same minutes, got 30 from 0, 30 from 5"):
        canary.compare_versions(POLICY, reference.rows, old, new)


def test_several_stages_that_grew_alike_must_last(service: Any, reference: Reference) -> None:
    slower = {"forward": 1.25, "preprocess": 1.25}
    old, new = service.minutes(0, 100, share=0.7), service.minutes(0, 100, slower, share=0.3)
    found = first_alarm(reference, old, new)

    assert found is not None
    assert found[0] >= POLICY.canary.shared_for


def test_equal_versions_reach_the_evidence_rarely_at_any_look() -> None:
    rng = np.random.default_rng(5)
    n, other_n = np.full((2000, 100), 12.0), np.full((2000, 100), 50.0)
    beyond, other = rng.binomial(12, 0.3, n.shape).astype(float), rng.binomial(50, 0.3, n.shape).astype(float)
    mean, variance = canary.conditional_moments(beyond, n, other, other_n, np.ones((2000, 1)))
    excess, variance = np.cumsum(beyond - mean, axis=1), np.cumsum(variance, axis=1)
    highest = np.max([canary.log_evidence(excess[:, at], variance[:, at], 0.7) for at in range(100)], axis=0)

    for error in (0.2, 0.05, 0.01):
        assert (highest >= np.log(1 / error)).mean() <= error


@pytest.mark.parametrize("odds", [1.0, 1.3, 4.0])
def test_the_moments_are_those_of_the_noncentral_hypergeometric_distribution(odds: float) -> None:
    n, other_n, both = 40, 100, 30
    k = np.arange(both + 1)
    weights = np.array([comb(n, each) * comb(other_n, both - each) * odds**each for each in k.tolist()], float)
    share = weights / weights.sum()
    exact = (share @ k, share @ (k - share @ k) ** 2)
    conditional_moments = canary.conditional_moments(*(np.array([each], float) for each in (10, n, 20, other_n, odds)))

    assert [float(moment[0]) for moment in conditional_moments] == pytest.approx(exact, rel=0.03)


def test_cold_starts_are_not_blamed(service: Any) -> None:
    habits = learn_stage_baseline(POLICY, [service.spent(0, DAY)])
    new = with_cold_requests(service.spent(0, 20, {"forward": 1.3}), 0.06)
    blamed = canary.rank_canary_suspects(POLICY, habits, service.spent(0, 20), new, {"forward": 1.2, "preprocess": 0.1})

    assert blamed[0].stage == "forward"
    assert blamed[0].seconds == pytest.approx(0.3 * 0.020, rel=0.15)


def with_cold_requests(spent: StageSeconds, share: float) -> StageSeconds:
    """Return *spent* plus slow requests that have the mean of every stage and the remaining time in `load`."""
    n, bucket = share * spent.total.sum(axis=1), spent.total.shape[1] - 1
    means = spent.seconds.sum(axis=(1, 2)) / spent.total.sum()
    total = spent.total + 0
    total[:, bucket] += n.astype(int)
    seconds = np.concatenate((spent.seconds, np.zeros((1, *total.shape))))
    seconds[:-1, :, bucket] += means[:, None] * n
    seconds[-1, :, bucket] += (0.1 - means.sum()) * n
    return replace(spent, total=total, stages=(*spent.stages, "load"), seconds=seconds)


@pytest.mark.parametrize(("minutes", "serves"), [(8, True), (7, False), (0, False)])
def test_a_version_serves_if_enough_minutes_have_requests(minutes: int, serves: bool) -> None:
    policy = replace(default_watch_policy(), together=timedelta(minutes=10), share=0.75)
    requests = np.r_[np.full(30, 5.0), np.zeros(10)]
    requests[30 : 30 + minutes] = 1

    assert canary.is_serving(policy, requests) is serves
    # One request is needed, however small the share.
    assert not canary.is_serving(replace(policy, share=0.0), np.zeros(60))


def test_a_version_without_requests_is_not_compared() -> None:
    assert canary.versions_to_compare({"1", "unknown"}, {"1": 0}) is None
