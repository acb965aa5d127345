"""How latency grows with load, fitted to what was seen, and how much load an objective allows.

A percentile of the latency at the rate r is taken to be `a + b·rho/(1-rho)`, rho = r / saturation: a stands for the time
without waiting, b for how strongly waiting grows, and at the saturation rate it grows without end.

Source: Kleinrock, "Queueing Systems", vol. 1 (1975), 3.2: in an M/M/1 queue the mean time is exactly that with a = b. With
both free it is the heavy-traffic form of Kingman, "The single server queue in heavy traffic" (1961), where b also holds how
bursty arrivals and service are. Waiting times are exponential there, so a percentile of them grows as their mean does.

Left out: what a service does when it runs out of memory or sheds load; a curve that was never near its bend says nothing of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# What a fit needs.
MIN_STEPS = 20
MIN_RATE_RANGE = 1.5
# Values further than this beyond the highest observed rate count as extrapolation.
SEEN_TIMES = 1.5
# F(2, 17) at 1 %: how much better than a constant the fit has to be, for two more parameters and the fewest steps.
_MIN_F = 6.11
_PARAMETERS = 3
# Saturation rates that are tried: from just above the highest rate seen to where the curve is all but straight.
_SATURATIONS = 1 + np.geomspace(0.005, 19.0, 80)
_REWEIGHTED = 2
_RESAMPLED = 100
# A single step may be fast by chance; the median of this many neighbours in rate is not.
_NEIGHBOURS = 5
_LEVEL = (0.025, 0.975)
# A knee is reported when the ends of its confidence interval differ by at most this factor.
_SURE_TIMES = 1.5


@dataclass(frozen=True, slots=True)
class Curve:
    """Latency curve fitted to time steps: `a + b·rho/(1-rho)`.

    Args:
        base: The latency without waiting, a. [seconds]
        growth: How strongly waiting grows, b. [seconds]
        saturation: The rate at which it would grow without end. [requests/s]
        residual: How far steps lie from the curve: the root of their mean squared relative distance. [ratio]
        highest_rate: The highest rate that was seen. [requests/s]
        draws: The same three of samples of the steps drawn again with repetition (bootstrap); shape (draws, 3).
    """

    base: float
    growth: float
    saturation: float
    residual: float
    highest_rate: float
    draws: Floats

    def at(self, rate: Floats | float) -> Floats:
        """Return the latency [seconds] at *rate*, which lies below the saturation."""
        rho = np.asarray(rate, dtype=float) / self.saturation
        return self.base + self.growth * rho / (1 - rho)

    @property
    def knee(self) -> float:
        """Rate with the best ratio of throughput to latency; beyond it latency grows faster than throughput.

        Source: Kleinrock, "Power and deterministic rules of thumb for probabilistic problems in computer communications"
        (ICC 1979): the knee is where power, rate over latency, is highest, which is where a line from the origin touches the
        curve. For this curve: rho = 1 / (1 + sqrt(b / a)), a half for M/M/1. [requests/s]
        """
        return float(_knees(np.array([[self.base, self.growth, self.saturation]]))[0])

    @property
    def knee_is_sure(self) -> bool:
        """Whether the steps determine the knee; steps far below it fit nearly any."""
        low, high = np.quantile(_knees(self.draws), _LEVEL)
        return bool(0 < high <= _SURE_TIMES * low)

    def crossing(self, threshold: float) -> float:
        """Return the rate at which the curve reaches *threshold* seconds; 0 where it is above it without any load."""
        return float(_crossings(np.array([[self.base, self.growth, self.saturation]]), threshold)[0])

    def interval(self, threshold: float) -> tuple[float, float]:
        """Return the 95 % confidence bounds of that rate [requests/s]."""
        low, high = np.quantile(_crossings(self.draws, threshold), _LEVEL)
        return float(low), float(high)


@dataclass(frozen=True, slots=True)
class Capacity:
    """Request rate that a latency threshold allows.

    Args:
        rate: The capacity. [requests/s]
        low: Not less, at 95 %. [requests/s]
        high: Not more, at 95 %. [requests/s]
        served: The highest rate at which steps stayed inside; the capacity is never less. [requests/s]
        beyond: Whether it lies so far above every rate seen that it is only an extrapolation.
    """

    rate: float
    low: float
    high: float
    served: float
    beyond: bool


@dataclass(frozen=True, slots=True)
class Refusal:
    """Reason in words why no curve was fitted."""

    text: str


def fit_curve(rate: Floats, latency: Floats) -> Curve | Refusal:
    """Fit the curve to steps of time.

    For each of a grid of saturation rates the best a, b >= 0 follow from linear least squares; the one with the least
    relative squared error is taken. Errors are relative to the curve, because latency scatters in proportion to itself.

    Args:
        rate: Requests a second in each step; shape (n,).
        latency: A percentile of the latency in the same steps. [seconds]; shape (n,)

    Returns:
        The curve, or why there is none: too few steps, rates too much alike, or no better than a constant.
    """
    if len(rate) < MIN_STEPS:
        return Refusal(f"{len(rate)} steps of time have data, and a curve needs {MIN_STEPS}")
    low, high = float(rate.min()), float(rate.max())
    if low <= 0 or high < MIN_RATE_RANGE * low:
        return Refusal(f"the rate hardly changed: the highest is {high / max(low, 1e-12):.2f} times the lowest, and a curve needs {MIN_RATE_RANGE:g} times")  # fmt: skip
    once = np.ones((1, len(rate)))
    found, error, constant = _best_fit(rate, latency, once)
    n = len(rate)
    if (constant[0] - error[0]) / 2 < _MIN_F * max(error[0], 1e-30) / (n - _PARAMETERS):
        return Refusal("not enough load variation: latency does not grow with the rate")
    random = np.random.default_rng(n)
    drawn = random.multinomial(n, np.full(n, 1 / n), size=_RESAMPLED).astype(float)
    draws, _, _ = _best_fit(rate, latency, drawn)
    base, growth, saturation = (float(each) for each in found[0])
    return Curve(base, growth, saturation, sqrt(error[0] / n), high, draws)


def capacity_at(curve: Curve, rate: Floats, latency: Floats, threshold: float) -> Capacity:
    """Return the request rate that stays within *threshold* seconds.

    The capacity is at least the highest observed rate around which most steps were within *threshold*, whatever the curve
    says.
    """
    served = _highest_rate_within(rate, latency, threshold)
    low, high = curve.interval(threshold)
    found = max(curve.crossing(threshold), served)
    return Capacity(found, min(low, found), max(high, found), served, found > SEEN_TIMES * curve.highest_rate)


def _highest_rate_within(rate: Floats, latency: Floats, threshold: float) -> float:
    """Return the highest rate around which the median of the neighbouring steps is inside *threshold*; 0 if none is."""
    order = rate.argsort()
    usual = pd.Series(latency[order]).rolling(_NEIGHBOURS, center=True, min_periods=_NEIGHBOURS // 2 + 1).median()
    inside = rate[order][usual.to_numpy() <= threshold]
    return float(inside[-1]) if len(inside) else 0.0


def _best_fit(rate: Floats, latency: Floats, repeats: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the best (a, b, saturation) for each row of *repeats*, its error, and that of a constant.

    Args:
        rate: Shape (n,).
        latency: Shape (n,).
        repeats: How often each step counts; shape (draws, n).

    Returns:
        Shapes (draws, 3), (draws,), (draws,); errors are sums of squared relative distances.
    """
    saturations = _SATURATIONS * rate.max()
    load = rate[:, None] / saturations
    waiting = load / (1 - load)
    found, expected = _closest_fit(waiting, latency, repeats / np.median(latency) ** 2)
    for _ in range(_REWEIGHTED):
        found, expected = _closest_fit(waiting, latency, repeats / expected**2)
    weight = repeats / expected**2
    mean = (weight * latency).sum(axis=1) / weight.sum(axis=1)
    constant = (weight * (latency - mean[:, None]) ** 2).sum(axis=1)
    left = (weight * (latency - expected) ** 2).sum(axis=1)
    base, growth, chosen = found
    return np.column_stack([base, growth, saturations[chosen.astype(int)]]), left, constant


def _closest_fit(waiting: Floats, latency: Floats, weight: Floats) -> tuple[tuple[Floats, Floats, Floats], Floats]:
    """Return a, b and the place of the saturation that leave the least error, and the latency they say; rows as *weight*."""
    base, growth, error = _least_squares(waiting, latency, weight)
    chosen = error.argmin(axis=1)
    rows = np.arange(len(weight))
    a, b = base[rows, chosen], growth[rows, chosen]
    return (a, b, chosen.astype(float)), np.maximum(a[:, None] + b[:, None] * waiting[:, chosen].T, 1e-12)


def _least_squares(x: Floats, y: Floats, weight: Floats) -> tuple[Floats, Floats, Floats]:
    """Return a, b >= 0 that bring `a + b x` closest to *y*, and the weighted sum of squares that is left.

    Where one would be negative the best lies on that side of the border, so it is 0 and the other is fitted alone.

    Args:
        x: Shape (n, curves).
        y: Shape (n,).
        weight: Shape (draws, n).

    Returns:
        Three arrays of shape (draws, curves).
    """
    # Not `@`: for tables this small the BLAS threads cost more than they save.
    s, sy, syy = (np.einsum("dn,n->d", weight, each)[:, None] for each in (np.ones_like(y), y, y**2))
    sx, sxx, sxy = (np.einsum("dn,nk->dk", weight, each) for each in (x, x**2, x * y[:, None]))
    b = (s * sxy - sx * sy) / np.maximum(s * sxx - sx**2, 1e-300)
    a = (sy - b * sx) / s
    b = np.where(a < 0, sxy / sxx, np.maximum(b, 0))
    a = np.where(a < 0, 0.0, np.where(b == 0, sy / s, a))
    error = syy - 2 * a * sy - 2 * b * sxy + a**2 * s + 2 * a * b * sx + b**2 * sxx
    return a, b, error


def _knees(curves: Floats) -> Floats:
    """Return the knee of each row (a, b, saturation) of *curves*."""
    base, growth, saturation = curves.T
    return saturation * np.sqrt(base) / (np.sqrt(base) + np.sqrt(growth))


def _crossings(curves: Floats, threshold: float) -> Floats:
    """Return where each row (a, b, saturation) of *curves* reaches *threshold*; 0 where it begins above it."""
    base, growth, saturation = curves.T
    waiting = np.maximum(threshold - base, 0.0) / np.maximum(growth, 1e-12)
    return saturation * waiting / (1 + waiting)
