"""Effects of weekdays on the expected counts, learned from two weeks."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stagelens.analysis.regression.policy import default_tail_policy
from stagelens.analysis.regression.scoring import Reference
from stagelens.analysis.regression.statistic import (
    Expectation,
    ExpectationModel,
    PrefixSums,
    Row,
    TailCounts,
    block_excess,
    fit_model,
)

DAY = 1440
ROWS = (Row("", 0.95, 0, 1.0, 0.05, 0.2),)


def simulated(slower: NDArray[Any], seed: int = 1) -> TailCounts:
    """Return three weeks; *slower* is the log ratio of requests beyond the threshold of each minute."""
    rng = np.random.default_rng(seed)
    minutes = np.arange(21 * DAY)
    requests = 600 * (1 + 0.5 * np.sin(2 * np.pi * minutes / DAY))
    noise = np.repeat(rng.normal(0, 0.05, 21), DAY) + np.repeat(rng.normal(0, 0.1, 21 * 48), 30)
    beyond = rng.poisson(requests * 0.05 * np.exp(slower + noise)).astype(float)
    return TailCounts(0, requests, requests[None], beyond[None])


def first_weeks(counts: TailCounts) -> TailCounts:
    end = 14 * DAY
    return TailCounts(0, counts.requests[:end], counts.n[:, :end], counts.beyond[:, :end])


def learnt(counts: TailCounts, *, week: bool = True) -> ExpectationModel:
    return fit_model(ROWS, first_weeks(counts), (30,), rhythm=True, week=week)


def spread_of_days(counts: TailCounts, model: ExpectationModel) -> float:
    """Return the spread of the mean excess of the days of the third week."""
    ends = np.arange(14 * DAY + 30, 21 * DAY + 1, 30)
    _, logs, _ = block_excess(PrefixSums(counts), Expectation(model, ROWS, [0]), ends, np.full(len(ends), 30))
    return float(logs.reshape(7, 48).mean(axis=1).std())


def pattern(night: int = 0) -> NDArray[Any]:
    """Return a week with slow weekends and a slow Monday; days begin at minute *night*. The epoch was a Thursday."""
    weekday = ((np.arange(21 * DAY) - night) // DAY + 3) % 7
    return np.select([weekday >= 5, weekday == 0], [0.5, 0.25], 0.0)


@pytest.mark.parametrize("seed", range(3))
def test_slow_weekends_and_a_slow_weekday_are_expected(seed: int) -> None:
    counts = simulated(pattern(), seed)

    assert spread_of_days(counts, learnt(counts, week=False)) > 0.15
    assert spread_of_days(counts, learnt(counts)) < 0.09


def test_the_beginning_of_the_day_is_found() -> None:
    assert learnt(simulated(pattern(17 * 60))).night == 17 * 60


def test_without_a_pattern_nothing_is_learnt() -> None:
    counts = [simulated(np.zeros(21 * DAY), seed) for seed in range(5)]
    models = [learnt(each) for each in counts]
    with_, without = (
        np.mean([spread_of_days(each, learnt(each, week=week)) for each in counts]) for week in (True, False)
    )

    assert np.std([model.weekdays for model in models]) < 0.02
    assert with_ < 1.15 * without


def test_one_slow_day_is_no_weekday() -> None:
    slow = np.where(np.arange(21 * DAY) // DAY == 8, 0.6, 0.0)

    assert np.abs(learnt(simulated(slow)).weekdays).max() < 0.06


def test_references_of_older_versions_have_no_weekdays() -> None:
    reference = Reference(14 * DAY, ROWS, learnt(simulated(pattern())), (), ())
    old = json.loads(reference.to_json())
    del old["model"]["weekdays"], old["model"]["night"]
    loaded = Reference.from_json(json.dumps(old))

    assert Reference.from_json(reference.to_json()) == reference
    assert not Expectation(loaded.model, ROWS, [0]).weekdays.any()


def test_the_policy_learns_weekdays_from_its_whole_length() -> None:
    assert default_tail_policy().reference.week == default_tail_policy().reference.length == 14 * DAY
