"""How sure a difference is, by simulation with a fixed seed; what becomes of a threshold then; and how thresholds are written."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelens.analysis.comparison import compare_quantile
from stagelens.cli.comparison import evaluate_threshold, read_thresholds
from stagelens.core.errors import ConfigError
from stagelens.core.histogram import Histogram

ROUNDS = 400


def sample(random_: random.Random) -> Histogram:
    made = Histogram()
    for _ in range(600):
        made.count_one(random_.expovariate(10))
    return made


@pytest.mark.parametrize("quantile", [0.5, 0.99])
def test_equal_runs_break_no_threshold_more_often_than_is_documented(quantile: float) -> None:
    (limit,) = read_thresholds(f"p{quantile * 100:g}:+0%")
    random_ = random.Random(20261122)
    pairs = ((sample(random_), sample(random_)) for _ in range(ROUNDS))

    found = [evaluate_threshold(limit, compare_quantile(a, b, quantile), strict=False) for a, b in pairs]

    assert "unknown" not in found
    assert found.count("failed") <= 0.0075 * ROUNDS


def values(count: int, seconds: float) -> Histogram:
    made = Histogram()
    made.record(seconds, count)
    return made


@pytest.mark.parametrize(
    ("counts", "seconds", "limit", "outcome", "strict"),
    [
        ((1000, 1000), (0.1, 0.2), "p99:+10%", "failed", "failed"),
        ((1000, 1000), (0.1, 0.2), "p99:+150%", "passed", "passed"),
        ((1000, 1000), (0.1, 0.2), "p99:+50ms", "failed", "failed"),
        ((1000, 1000), (0.2, 0.1), "p99:+0%", "passed", "passed"),
        ((1000, 1000), (0.0, 0.1), "stage:queue:+10%", "failed", "failed"),
        ((1000, 1000), (0.1, 0.101), "p99:+0%", "passed", "failed"),  # buckets side by side
        ((100, 1000), (0.1, 0.2), "p99:+10%", "unknown", "failed"),
        ((1000, 2), (0.1, 0.2), "p50:+10%", "unknown", "failed"),
    ],
)
def test_a_threshold_breaks_only_beyond_chance(
    counts: tuple[int, int], seconds: tuple[float, float], limit: str, outcome: str, strict: str
) -> None:
    (threshold,) = read_thresholds(limit)
    found = compare_quantile(values(counts[0], seconds[0]), values(counts[1], seconds[1]), threshold.quantile)

    assert evaluate_threshold(threshold, found, strict=False) == outcome
    assert evaluate_threshold(threshold, found, strict=True) == strict


@pytest.mark.parametrize(
    ("text", "about", "quantile", "limit", "is_relative"),
    [
        ("p99:+10%", ("", ""), 0.99, 0.1, True),
        ("p99.9:+1.5s", ("", ""), 0.999, 1.5, False),
        (" stage:queue:+5ms ", ("queue", ""), 0.99, 0.005, False),
        ("stage:our rerank:p50:+250us", ("our rerank", ""), 0.5, 0.00025, False),
        ("ttft:+5ms", ("", "ttft"), 0.99, 0.005, False),
        ("tpot:p50:+5%", ("", "tpot"), 0.5, 0.05, True),
    ],
)
def test_thresholds_are_parsed(
    text: str, about: tuple[str, str], quantile: float, limit: float, is_relative: bool
) -> None:
    (found,) = read_thresholds(text)

    assert (found.stage, found.measure, found.is_relative) == (*about, is_relative)
    assert (found.quantile, found.limit) == (pytest.approx(quantile), pytest.approx(limit))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("p99", "it has no measure"),
        ("p99:10%", "'10%' is not a limit"),
        ("p99:-10%", "'-10%' is not a limit"),
        ("p99:+10", "'+10' is not a limit"),
        ("p100:+10%", "'p100' is not a percentile"),
        ("p0:+10%", "'p0' is not a percentile"),
        ("p0.99:+10%", "write p99"),
        ("mean:+10%", "'mean' is not a percentile"),
        ("stage:+5ms", "it has no stage"),
        ("p50:p99:+5ms", "is not a percentile"),
        ("p99:+nan%", "is not a limit"),
    ],
)
def test_an_invalid_threshold_is_named_with_the_allowed_form(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match="such as p99") as raised:
        read_thresholds(f"p50:+1%,{text}")

    assert why in str(raised.value)
    assert repr(text) in str(raised.value)


@given(st.text(alphabet="p0919.:+-%msu,stage: queue", max_size=30))
def test_any_threshold_text_is_parsed_or_refused(text: str) -> None:
    try:
        found = read_thresholds(text)
    except ConfigError:
        return
    assert all(0 < each.quantile < 1 and each.limit >= 0 for each in found)
