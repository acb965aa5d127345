"""Capacity: a latency curve fitted to observed load, and the request rate that a latency threshold allows.

A latency percentile at the request rate r is modelled as `a + b·rho/(1-rho)` with rho = r / saturation: a is the latency
without waiting, b is how strongly waiting grows with load, and at the saturation rate the latency is unbounded.

Source: Kleinrock, "Queueing Systems", vol. 1 (1975), 3.2: in an M/M/1 queue the mean time follows this formula with a = b. With
both free it is the heavy-traffic form of Kingman, "The single server queue in heavy traffic" (1961). Waiting times are exponential
there, so a percentile of them grows as their mean does. A service that runs out of memory or sheds load is not modelled.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Requirements of a fit.
MIN_STEPS = 20
MIN_RATE_RANGE = 1.5
# Values further than this beyond the highest observed rate count as extrapolation.
SEEN_TIMES = 1.5
# F(2, 17) at 1 %: required improvement of the fit over a constant, for two more parameters and the fewest steps.
_MIN_F = 6.11
_PARAMETERS = 3
# Candidate saturation rates: from just above the highest observed rate to where the curve is almost straight.
_SATURATIONS = 1 + np.geomspace(0.005, 19.0, 80)
_REWEIGHTED = 2
_RESAMPLED = 100
# A single step may be fast by chance; the median of this many steps with neighbouring rates is robust.
_NEIGHBOURS = 5
_LEVEL = (0.025, 0.975)
# A knee is reported when the ends of its confidence interval differ by at most this factor.
_SURE_TIMES = 1.5


@dataclass(frozen=True, slots=True)
class Curve:
    """Latency curve fitted to time steps: `a + b·rho/(1-rho)`, with base a and growth b in seconds and rates in requests/s.

    *residual* is the root mean squared relative distance of the steps, *draws* (a, b, saturation) of each bootstrap sample of them.
    """

    base: float
    growth: float
    saturation: float
    residual: float
    highest_rate: float
    draws: Floats

    def at(self, rate: Floats | float) -> Floats:
        """Return the latency [seconds] at *rate*, which must be below the saturation rate."""
        rho = np.asarray(rate, dtype=float) / self.saturation
        return self.base + self.growth * rho / (1 - rho)

    @property
    def knee(self) -> float:
        """Request rate with the best ratio of throughput to latency; beyond it latency grows faster than throughput [requests/s].

        Source: Kleinrock, "Power and deterministic rules of thumb for probabilistic problems in computer communications" (ICC 1979).
        For this curve: rho = 1 / (1 + sqrt(b / a)), a half for M/M/1.
        """
        return float(_knees(np.array([[self.base, self.growth, self.saturation]]))[0])

    @property
    def knee_is_sure(self) -> bool:
        """Whether the observed steps determine the knee; steps far below the knee fit almost any value."""
        low, high = np.quantile(_knees(self.draws), _LEVEL)
        return bool(0 < high <= _SURE_TIMES * low)

    def crossing(self, threshold: float) -> float:
        """Return the request rate at which the curve reaches *threshold* seconds; 0 if it is exceeded without load."""
        return float(_crossings(np.array([[self.base, self.growth, self.saturation]]), threshold)[0])

    def interval(self, threshold: float) -> tuple[float, float]:
        """Return the 95 % confidence bounds of the rate [requests/s] at which the curve reaches *threshold* seconds."""
        low, high = np.quantile(_crossings(self.draws, threshold), _LEVEL)
        return float(low), float(high)


@dataclass(frozen=True, slots=True)
class Capacity:
    """Request rate that a latency threshold allows; at least *served*, the highest observed rate whose steps met it.

    *beyond* is whether it is far above every observed rate, and therefore only an extrapolation.
    """

    rate: float
    low: float
    high: float
    served: float
    beyond: bool


@dataclass(frozen=True, slots=True)
class Refusal:
    """Reason, in words, why no curve was fitted."""

    text: str


def fit_curve(rate: Floats, latency: Floats) -> Curve | Refusal:
    """Fit the latency curve to the rate [requests/s] and a latency percentile [seconds] of time steps; shape (n,).

    For each saturation rate of a grid, the best a, b >= 0 follow from linear least squares; the rate with the smallest
    relative squared error is selected. Errors are relative to the curve, because latency scatters in proportion to its value.
    """
    if len(rate) < MIN_STEPS:
        return Refusal(f"a curve needs {MIN_STEPS} time steps with data, this window has {len(rate)}")
    low, high = float(rate.min()), float(rate.max())
    if low <= 0 or high < MIN_RATE_RANGE * low:
        return Refusal(f"the rate hardly changed: the highest is {high / max(low, 1e-12):.2f} times the lowest, a curve needs {MIN_RATE_RANGE:g} times")  # fmt: skip
    once = np.ones((1, len(rate)))
    fit, error, constant = _best_fit(rate, latency, once)
    n = len(rate)
    if (constant[0] - error[0]) / 2 < _MIN_F * max(error[0], 1e-30) / (n - _PARAMETERS):
        return Refusal("not enough load variation: latency does not grow with the rate")
    random = np.random.default_rng(n)
    drawn = random.multinomial(n, np.full(n, 1 / n), size=_RESAMPLED).astype(float)
    draws, _, _ = _best_fit(rate, latency, drawn)
    base, growth, saturation = (float(parameter) for parameter in fit[0])
    return Curve(base, growth, saturation, sqrt(error[0] / n), high, draws)


def capacity_at(curve: Curve, rate: Floats, latency: Floats, threshold: float) -> Capacity:
    """Return the request rate at which latency stays within *threshold* seconds, at least the highest at which most steps were."""
    served = _highest_rate_within(rate, latency, threshold)
    low, high = curve.interval(threshold)
    limit = max(curve.crossing(threshold), served)
    return Capacity(limit, min(low, limit), max(high, limit), served, limit > SEEN_TIMES * curve.highest_rate)


def _highest_rate_within(rate: Floats, latency: Floats, threshold: float) -> float:
    order = rate.argsort()
    usual = pd.Series(latency[order]).rolling(_NEIGHBOURS, center=True, min_periods=_NEIGHBOURS // 2 + 1).median()
    inside = rate[order][usual.to_numpy() <= threshold]
    return float(inside[-1]) if len(inside) else 0.0


def _best_fit(rate: Floats, latency: Floats, repeats: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the best (a, b, saturation) for each row of *repeats* (draws, n), its error, and the error of a constant latency.

    Errors are sums of squared relative distances; each row of *repeats* has the weights of the steps in one bootstrap sample.
    """
    saturations = _SATURATIONS * rate.max()
    load = rate[:, None] / saturations
    waiting = load / (1 - load)
    fit, expected = _closest_fit(waiting, latency, repeats / np.median(latency) ** 2)
    for _ in range(_REWEIGHTED):
        fit, expected = _closest_fit(waiting, latency, repeats / expected**2)
    weight = repeats / expected**2
    mean = (weight * latency).sum(axis=1) / weight.sum(axis=1)
    constant = (weight * (latency - mean[:, None]) ** 2).sum(axis=1)
    left = (weight * (latency - expected) ** 2).sum(axis=1)
    base, growth, chosen = fit
    return np.column_stack([base, growth, saturations[chosen.astype(int)]]), left, constant


def _closest_fit(waiting: Floats, latency: Floats, weight: Floats) -> tuple[tuple[Floats, Floats, Floats], Floats]:
    """Return a, b and saturation index with the smallest error, and the fitted latency, for each row of *weight*."""
    base, growth, error = _least_squares(waiting, latency, weight)
    chosen = error.argmin(axis=1)
    rows = np.arange(len(weight))
    a, b = base[rows, chosen], growth[rows, chosen]
    return (a, b, chosen.astype(float)), np.maximum(a[:, None] + b[:, None] * waiting[:, chosen].T, 1e-12)


def _least_squares(x: Floats, y: Floats, weight: Floats) -> tuple[Floats, Floats, Floats]:
    """Return a, b >= 0 that minimize the squared error of `a + b x` against *y*, and that error; each of shape (draws, curves).

    *x* has the shape (n, curves), *weight* (draws, n). If the optimum of one parameter is negative, it is 0 and the other is fitted.
    """
    # Not `@`: for tables this small, starting BLAS threads takes longer than they save.
    s, sy, syy = (np.einsum("dn,n->d", weight, power)[:, None] for power in (np.ones_like(y), y, y**2))
    sx, sxx, sxy = (np.einsum("dn,nk->dk", weight, power) for power in (x, x**2, x * y[:, None]))
    b = (s * sxy - sx * sy) / np.maximum(s * sxx - sx**2, 1e-300)
    a = (sy - b * sx) / s
    b = np.where(a < 0, sxy / sxx, np.maximum(b, 0))
    a = np.where(a < 0, 0.0, np.where(b == 0, sy / s, a))
    error = syy - 2 * a * sy - 2 * b * sxy + a**2 * s + 2 * a * b * sx + b**2 * sxx
    return a, b, error


def _knees(curves: Floats) -> Floats:
    base, growth, saturation = curves.T
    return saturation * np.sqrt(base) / (np.sqrt(base) + np.sqrt(growth))


def _crossings(curves: Floats, threshold: float) -> Floats:
    """Return the rate at which each row (a, b, saturation) of *curves* reaches *threshold*; 0 if it starts above."""
    base, growth, saturation = curves.T
    waiting = np.maximum(threshold - base, 0.0) / np.maximum(growth, 1e-12)
    return saturation * waiting / (1 + waiting)
