"""The verdict on two latency histograms: honest intervals, honest silence, and the stage to blame."""

from __future__ import annotations

import math
import random

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelens.analysis.comparison import compare_quantile, rank_stage_growth
from stagelens.core.histogram import Histogram


def sample(rng: random.Random, n: int, *, scale: float = 1.0) -> Histogram:
    """Return latencies as services have them: log-normal with a heavy shoulder."""
    histogram = Histogram()
    for _ in range(n):
        shoulder = 3.0 if rng.random() < 0.05 else 1.0
        histogram.record(scale * shoulder * 0.05 * math.exp(rng.gauss(0, 0.4)))
    return histogram


def test_a_slower_version_is_a_regression() -> None:
    """Twice as slow at p99 is seen, with a ratio near two and an interval around it."""
    rng = random.Random(1)
    found = compare_quantile(sample(rng, 5000), sample(rng, 5000, scale=2.0), 0.99)

    assert found.kind == "regression"
    assert found.ratio is not None
    assert found.ratio_low is not None
    assert found.ratio_high is not None
    assert found.ratio_low < found.ratio < found.ratio_high
    assert found.ratio == pytest.approx(2.0, rel=0.25)


def test_the_mirror_image_is_an_improvement() -> None:
    """What is a regression from A to B is an improvement from B to A."""
    rng = random.Random(2)
    fast, slow = sample(rng, 5000), sample(rng, 5000, scale=2.0)

    assert compare_quantile(slow, fast, 0.99).kind == "improvement"


@pytest.mark.parametrize(("n", "kind"), [(999, "not_enough"), (1000, "regression")])
def test_p99_needs_a_thousand_requests(n: int, kind: str) -> None:
    """Below ten requests beyond the quantile nothing is claimed, however large the difference looks."""
    rng = random.Random(3)

    assert compare_quantile(sample(rng, 5000), sample(rng, n, scale=9.0), 0.99).kind == kind


def test_nothing_is_not_enough() -> None:
    """Without requests there is no value, no ratio and no verdict."""
    found = compare_quantile(Histogram(), Histogram(), 0.99)

    assert (found.kind, found.a_value, found.ratio, found.a_n) == ("not_enough", None, None, 0)


def test_a_difference_nobody_would_act_on_is_the_same() -> None:
    """One percent is the same even when a million requests prove it."""
    a, b = Histogram(), Histogram()
    a.record(0.100, 1_000_000)
    b.record(0.101, 1_000_000)

    assert compare_quantile(a, b, 0.99).kind == "same"


def test_equal_distributions_are_rarely_called_different() -> None:
    """Two samples of one distribution are the same in all but a few of two hundred comparisons."""
    rng = random.Random(4)
    kinds = [compare_quantile(sample(rng, 1500), sample(rng, 1500), 0.99).kind for _ in range(200)]

    assert kinds.count("same") >= 198


@given(
    a=st.lists(st.floats(1e-4, 10), min_size=1, max_size=60), b=st.lists(st.floats(1e-4, 10), min_size=1, max_size=60)
)
def test_the_verdict_is_antisymmetric(a: list[float], b: list[float]) -> None:
    """Exchanging A and B inverts the ratio and its interval."""
    left, right = Histogram(), Histogram()
    for value in a:
        left.record(value)
    for value in b:
        right.record(value)
    there, back = compare_quantile(left, right, 0.9), compare_quantile(right, left, 0.9)
    assert there.ratio is not None
    assert back.ratio is not None

    assert there.ratio * back.ratio == pytest.approx(1)
    assert (there.kind == "regression") <= (back.kind != "regression")


def test_blame_orders_stages_by_what_they_added() -> None:
    """The stage that grew most comes first, and its share may exceed one where another got faster."""
    compared = pd.DataFrame(
        {"stage": ["queue", "forward", "preprocess"], "delta_seconds": [0.02, -0.03, 0.11], "share": 0.0}
    )
    stages = rank_stage_growth(compared)

    assert [row.stage for row in stages] == ["preprocess", "queue"]
    assert stages[0].share == pytest.approx(1.1)


def test_nothing_is_blamed_when_nothing_grew() -> None:
    """A faster whole has no culprit."""
    compared = pd.DataFrame({"stage": ["queue", "forward"], "delta_seconds": [0.01, -0.03], "share": 0.0})

    assert rank_stage_growth(compared) == ()
