"""How often `stagelens compare --fail-on p99:+10%` fails for a known difference.

    python benchmarks/gate.py [COMPARISONS]

Both sides are drawn from one distribution, those of B slower by a factor.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np

from stagelens.analysis.comparison import compare_quantile
from stagelens.cli.comparison import evaluate_threshold, read_thresholds
from stagelens.core.histogram import Histogram, bucket_index

LIMIT = "p99:+10%"
COMPARISONS = 1000
REQUESTS = (1000, 10_000)
SLOWER = (0, 20, 50)
_RANDOM = np.random.default_rng(20261122)


def main(comparisons: int = COMPARISONS) -> None:
    print(f"{LIMIT}, of 100 ({comparisons} each)   " + "".join(f"{f'B +{each} %':>24}" for each in SLOWER))
    for name, draw in (("exponential", _exponential), ("a service with 5 % outliers", _service)):
        for requests in REQUESTS:
            rates = (failing(draw, requests, 1 + each / 100, comparisons) for each in SLOWER)
            cells = (f"{sure:.1f} (strict {strict:.1f})" for sure, strict in rates)
            print(f"{name:28}{requests:>8}" + "".join(f"{cell:>24}" for cell in cells), flush=True)


def failing(draw: Callable[[int], np.ndarray], requests: int, factor: float, comparisons: int) -> tuple[float, float]:
    """Return how many of 100 comparisons fail when B truly takes *factor* times as long: as they are, and with --strict."""
    (limit,) = read_thresholds(LIMIT)
    failed = [0, 0]
    for _ in range(comparisons):
        found = compare_quantile(_counted(draw(requests)), _counted(draw(requests) * factor), limit.quantile)
        for place, strict in enumerate((False, True)):
            failed[place] += evaluate_threshold(limit, found, strict=strict) == "failed"
    sure, strict = (100 * each / comparisons for each in failed)
    return sure, strict


def _exponential(requests: int) -> np.ndarray:
    return _RANDOM.exponential(0.1, requests)


def _service(requests: int) -> np.ndarray:
    usual = 0.02 + _RANDOM.gamma(4, 0.005, requests)
    return usual + np.where(_RANDOM.random(requests) < 0.05, _RANDOM.exponential(0.05, requests), 0)


def _counted(seconds: np.ndarray) -> Histogram:
    made = Histogram()
    for second in seconds.tolist():
        index = bucket_index(second, made.scale)
        made.buckets[index] = made.buckets.get(index, 0) + 1
    return made


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
