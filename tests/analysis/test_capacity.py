"""The curve of latency over load: what is fitted, what is refused, and that it never denies what was served."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagelens.analysis.capacity import SEEN_TIMES, Capacity, Curve, Refusal, capacity_at, fit_curve

STEPS = 120


def made(
    base: float, growth: float, saturation: float, top: float = 0.9, *, noise: float = 0.0, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Return rates up to *top* of the saturation, and the latency of the model with *noise*."""
    random = np.random.default_rng(seed)
    rate = random.uniform(0.3 * top, top, STEPS) * saturation
    rho = rate / saturation
    return rate, (base + growth * rho / (1 - rho)) * random.lognormal(0, noise, STEPS)


def fitted(rate: np.ndarray, latency: np.ndarray) -> Curve:
    found = fit_curve(rate, latency)
    assert isinstance(found, Curve)
    return found


def allowed(rate: np.ndarray, latency: np.ndarray, threshold: float) -> Capacity:
    return capacity_at(fitted(rate, latency), rate, latency, threshold)


@given(st.floats(0.005, 0.5), st.floats(0.3, 3), st.floats(5, 5000), st.floats(0.6, 0.95), st.floats(0.5, 0.95))
@settings(max_examples=20, deadline=None)
def test_capacity_of_model_data_is_recovered(
    base: float, strength: float, saturation: float, top: float, at: float
) -> None:
    rate, latency = made(base, base * strength, saturation, top)
    rho = min(at, top)
    threshold = base + base * strength * rho / (1 - rho)

    assert allowed(rate, latency, threshold).rate == pytest.approx(rho * saturation, rel=0.03)


def test_capacity_of_noisy_data_is_within_its_interval() -> None:
    truth, threshold = 80.0, 0.05 + 0.03 * 0.8 / 0.2
    found = [allowed(*made(0.05, 0.03, 100.0, noise=0.1, seed=seed), threshold) for seed in range(30)]

    assert all(abs(each.rate - truth) < 0.12 * truth for each in found)
    assert sum(each.low <= truth <= each.high for each in found) >= 25


@given(st.integers(0, 10_000), st.floats(0, 0.5), st.floats(0.02, 2))
@settings(max_examples=20, deadline=None)
def test_a_rate_served_within_the_objective_is_within_the_capacity(seed: int, noise: float, threshold: float) -> None:
    rate, latency = made(0.04, 0.05, 200.0, noise=noise, seed=seed)
    curve = fit_curve(rate, latency)
    if isinstance(curve, Refusal):
        return
    found = capacity_at(curve, rate, latency, threshold)
    order = rate.argsort()
    inside = (latency <= threshold)[order]
    served = [rate[order][at] for at in range(2, STEPS - 2) if inside[at - 2 : at + 3].all()]

    assert found.rate >= max(served, default=0)
    assert found.low <= found.rate <= found.high


def test_a_latency_above_the_objective_without_any_load_leaves_no_capacity() -> None:
    found = allowed(*made(0.2, 0.1, 100.0), 0.1)

    assert found.rate == 0


def test_a_capacity_far_beyond_the_data_is_marked_as_extrapolated() -> None:
    rate, latency = made(0.05, 0.03, 100.0, top=0.4)
    found = allowed(rate, latency, 0.05 + 0.03 * 0.9 / 0.1)

    assert found.rate > SEEN_TIMES * rate.max()
    assert found.beyond
    assert not allowed(*made(0.05, 0.03, 100.0, top=0.9), 0.15).beyond


@given(st.floats(0.001, 1), st.floats(0.05, 20))
def test_the_knee_maximizes_rate_over_latency(base: float, strength: float) -> None:
    curve = Curve(base, base * strength, 100.0, 0.0, 90.0, np.zeros((0, 3)))
    rates = np.linspace(0.1, 99.9, 999)
    power = rates / curve.at(rates)

    assert curve.knee / float(curve.at(curve.knee)) >= power.max() * (1 - 1e-9)
    assert Curve(base, base, 100.0, 0.0, 90.0, np.zeros((0, 3))).knee == pytest.approx(50)


@given(st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_a_reported_knee_is_accurate(seed: int) -> None:
    curve = fitted(*made(0.05, 0.03, 80.0, top=0.75, noise=0.06, seed=seed))

    assert curve.knee_is_sure
    assert curve.knee == pytest.approx(80 / (1 + 0.6**0.5), rel=0.15)


def test_steps_far_below_the_knee_report_none() -> None:
    found = [fit_curve(*made(0.05, 0.01, 80.0, top=0.5, noise=0.1, seed=seed)) for seed in range(20)]
    reported = [each.knee for each in found if isinstance(each, Curve) and each.knee_is_sure]
    silent = [each.knee for each in found if isinstance(each, Curve) and not each.knee_is_sure]

    assert len(silent) > 3 * len(reported)
    assert max(silent) > 2 * 80 / (1 + 0.2**0.5)


def test_equal_rates_are_refused_with_a_reason() -> None:
    found = fit_curve(np.linspace(100, 140, STEPS), np.linspace(0.1, 0.2, STEPS))

    assert isinstance(found, Refusal)
    assert found.text.startswith("the rate hardly changed: the highest is 1.40 times the lowest")


@pytest.mark.parametrize("slope", [0.0, -0.3])
def test_a_latency_independent_of_the_rate_is_refused_with_a_reason(slope: float) -> None:
    random = np.random.default_rng(4)
    rate = random.uniform(20, 100, STEPS)
    found = fit_curve(rate, (0.1 + slope * rate / 1000) * random.lognormal(0, 0.1, STEPS))

    assert isinstance(found, Refusal)
    assert "not enough load variation" in found.text
