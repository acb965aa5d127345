"""Results of the rounds: medians of ratios, and their confidence intervals."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelens.instrumentors.bench.rounds import change, changes

TIMES = st.floats(1e-6, 1e6)
PAIRS = st.lists(st.tuples(TIMES, TIMES), min_size=6, max_size=30)


@given(PAIRS)
def test_the_interval_contains_the_median_and_stays_within_the_rounds(pairs: list[tuple[float, float]]) -> None:
    found = change(pairs)
    ratios = [with_ / without for without, with_ in pairs]
    assert found.low is not None
    assert found.high is not None

    assert min(ratios) <= found.low <= found.ratio <= found.high <= max(ratios)


@given(PAIRS, st.floats(1.5, 10))
def test_drift_between_rounds_does_not_change_the_ratio(pairs: list[tuple[float, float]], factor: float) -> None:
    slowed = [(a * factor**place, b * factor**place) for place, (a, b) in enumerate(pairs)]

    assert math.isclose(change(slowed).ratio, change(pairs).ratio, rel_tol=1e-9)


def test_an_effect_is_distinguished_from_noise() -> None:
    more = change([(100.0, 105.0 + place) for place in range(10)])
    both = change([(100.0, 95.0 + place) for place in range(10)])

    assert (more.is_noise, both.is_noise) == (False, True)
    assert more.ratio == pytest.approx(1.095)


def test_five_rounds_are_not_significant() -> None:
    found = change([(1.0, 2.0)] * 5)

    assert (found.low, found.high, found.is_noise) == (None, None, True)


def test_a_measure_with_a_zero_is_omitted() -> None:
    rounds = [({"p50": 1.0, "CPU time": 0.01 * place}, {"p50": 2.0, "CPU time": 0.02}) for place in range(6)]

    assert list(changes(rounds)) == ["p50"]
