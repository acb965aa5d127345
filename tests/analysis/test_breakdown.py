"""Requests at a percentile: their stage shares against known truth, and p50 and p99 with enough requests."""

from __future__ import annotations

from functools import cache
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelens.analysis.breakdown import NO_REQUESTS, Measures, RankWindow, measures_of, share_bounds
from stagelens.core.histogram import bucket_index, rank_of

QUANTILES = (0.5, 0.9, 0.99)
MARGIN = 1e-3


def requests_of(kind: str, n: int, seed: int) -> np.ndarray:
    """Return the seconds of forward, preprocess, queue and load of *n* requests, whose stages depend on each other."""
    random = np.random.default_rng(seed)
    if kind == "sizes":
        # The size of the input drives two stages.
        size = random.lognormal(0, 0.5, n)
        parts = (
            0.02 * size**0.3 * random.lognormal(0, 0.1, n),
            0.006 * size * random.lognormal(0, 0.2, n),
            0.003 * random.exponential(1, n) * random.lognormal(0, 1.3, n),
            np.where(random.random(n) < 0.004, random.lognormal(np.log(0.08), 0.3, n), 0),
        )
    elif kind == "images":
        # One request of twelve has a large image; other slow requests have a queue or a load.
        large = random.random(n) < 0.08
        parts = (
            random.lognormal(np.log(0.009), 0.15, n),
            np.where(large, random.lognormal(np.log(0.06), 0.4, n), random.lognormal(np.log(0.005), 0.6, n)),
            random.exponential(0.002, n) * np.where(random.random(n) < 0.05, 15, 1),
            np.where(random.random(n) < 0.01, random.lognormal(np.log(0.03), 0.2, n), 0),
        )
    else:
        # Half of the requests hit a cache: the stages change at once a little above the median.
        parts = (
            np.where(random.random(n) < 0.52, 0.0, random.lognormal(np.log(0.03), 0.2, n)),
            random.lognormal(np.log(0.002), 0.3, n),
            random.exponential(0.0015, n),
            np.where(random.random(n) < 0.012, random.lognormal(np.log(0.15), 0.3, n), 0),
        )
    return np.stack(parts, axis=1)


@cache
def true_shares(kind: str, quantile: float) -> np.ndarray:
    """Return the mean shares of the requests at the percentile of all requests that could be drawn."""
    spent = requests_of(kind, 1_500_000, 99)
    total = spent.sum(axis=1)
    number = max(int(len(total) * min(0.002, (1 - quantile) * 0.05)), 50)
    near = np.argpartition(np.abs(total - np.quantile(total, quantile)), number)[:number]
    return (spent[near] / total[near, None]).mean(axis=0)


def by_bucket(spent: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the requests and the mean shares of each bucket of the latency."""
    _, place = np.unique([bucket_index(each) for each in spent.sum(axis=1).tolist()], return_inverse=True)
    time = np.stack([np.bincount(place, stage) for stage in spent.T], axis=1)
    return np.bincount(place), time / time.sum(axis=1, keepdims=True)


def nearest_eight(counts: np.ndarray, shares: np.ndarray, quantile: float) -> np.ndarray:
    """Return the mean shares of the buckets around a percentile that have eight requests: the estimate without windows."""
    at = int(np.searchsorted(np.cumsum(counts), rank_of(quantile, int(counts.sum()))))
    reach = next(index for index in range(len(counts)) if counts[max(at - index, 0) : at + index + 1].sum() >= 8)
    chosen = slice(max(at - reach, 0), at + reach + 1)
    return counts[chosen] @ shares[chosen] / counts[chosen].sum()


@pytest.mark.parametrize(("requests", "runs"), [(300, 80), (1500, 80), (50_000, 10)])
def test_shares_are_close_to_the_truth_and_their_intervals_contain_it(requests: int, runs: int) -> None:
    kinds = ("sizes", "images", "cache")
    quantiles = [quantile for quantile in QUANTILES if requests * (1 - quantile) >= 10]
    missed: list[float] = []
    errors: list[tuple[float, float]] = []
    for kind, run in product(kinds, range(runs)):
        counts, shares = by_bucket(requests_of(kind, requests, run))
        window = RankWindow.of(quantiles, [requests] * len(quantiles), [0] * len(quantiles))
        found, (low, high) = window.weights(counts) @ shares, share_bounds(window, counts, shares)
        truth = np.array([true_shares(kind, quantile) for quantile in quantiles])
        plain = np.array([nearest_eight(counts, shares, quantile) for quantile in quantiles])
        missed.append(float(((truth < low - MARGIN) | (truth > high + MARGIN)).mean()))
        errors.append((float(((found - truth) ** 2).mean()), float(((plain - truth) ** 2).mean())))

    ours, others = np.sqrt(np.mean(errors, axis=0))
    assert np.mean(missed) <= 0.06
    assert ours <= 0.9 * others


@given(counts=st.lists(st.integers(1, 10_000), min_size=1, max_size=40), quantile=st.floats(0, 1), data=st.data())
def test_shares_are_between_those_of_the_buckets_and_within_their_interval(
    counts: list[int], quantile: float, data: st.DataObject
) -> None:
    parts = np.array([[data.draw(st.floats(0, 1))] for _ in counts])
    shares, held = np.concatenate((parts, 1 - parts), axis=1), np.array(counts)
    window = RankWindow.of([quantile], [int(held.sum())], [0])
    weights = window.weights(held)
    low, high = share_bounds(window, held, shares)
    found = weights @ shares

    assert weights.sum() == pytest.approx(1)
    assert weights[0, np.searchsorted(np.cumsum(held), rank_of(quantile, int(held.sum())))] > 0
    assert (shares.min(axis=0) <= found + 1e-9).all()
    assert (found <= shares.max(axis=0) + 1e-9).all()
    assert (low <= found + 1e-9).all()
    assert (found <= high + 1e-9).all()


def test_an_edge_of_many_requests_stays_an_edge() -> None:
    counts, shares = np.full(40, 5000), np.repeat([[1.0, 0.0], [0.0, 1.0]], 20, axis=0)
    window = RankWindow.of([0.45, 0.55], [200_000] * 2, [0, 0])

    assert (window.weights(counts) @ shares)[:, 0].tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("requests", "p50", "p99", "tail"),
    [(19, None, None, {}), (20, 0.1, None, {}), (999, 0.1, None, {}), (1000, 0.1, 0.4, {"queue": 0.3, "forward": 0.1})],
)
def test_a_percentile_is_known_with_ten_requests_beyond_it(
    requests: int, p50: float | None, p99: float | None, tail: dict[str, float]
) -> None:
    found = measures_of(requests, 4, (0.1, 0.4), ({"forward": 0.1}, {"queue": 0.3, "forward": 0.1}))

    assert (found.p50, found.p99, found.tail_stages) == (p50, p99, tail)
    assert found.median_stages == {"forward": 0.1}
    assert found.waiting_share == (pytest.approx(0.75) if tail else None)
    assert found.error_ratio == 4 / requests


def test_without_requests_no_share_is_known() -> None:
    assert (NO_REQUESTS.error_ratio, NO_REQUESTS.waiting_share) == (None, None)


def test_the_tail_wait_is_a_waiting_stage_that_is_large_at_p99_only() -> None:
    median = {"forward": 0.1, "queue": 0.01}

    def wait(tail: dict[str, float], stages: dict[str, float] = median) -> str | None:
        return Measures(2000, 0, sum(stages.values()), sum(tail.values()), stages, tail).tail_wait

    assert wait({"forward": 0.1, "queue": 0.4}) == "queue"
    assert wait({"forward": 0.4, "queue": 0.1}) is None
    assert wait({"forward": 0.1, "queue": 0.3}) is None
    assert wait({"forward": 0.1, "queue": 0.6}, {"forward": 0.1, "queue": 0.03}) is None
    assert wait({}) is None


def test_a_stage_that_is_all_of_the_time_has_an_interval() -> None:
    counts = np.array([3, 7, 11, 5, 2, 9, 1])
    for n in range(1, len(counts) + 1):
        window = RankWindow.of((0.5, 0.9, 0.99), (100,) * 3, (0,) * 3)
        low, high = share_bounds(window, counts[:n], np.full((n, 1), np.nextafter(1.0, 2.0)))
        assert np.isfinite([low, high]).all()
        assert (high == 1).all()
