"""Verdict on a latency regression: size, onset, release, traffic changes, and latency on a common mix."""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelens.analysis.attributes import AttributeCounts
from stagelens.analysis.regression.policy import Window, default_tail_policy, default_watch_policy
from stagelens.analysis.regression.scoring import Reference, TailScore, WindowScore
from stagelens.analysis.regression.statistic import END_TO_END, MEAN, Row, count_beyond, join_tallies
from stagelens.analysis.regression.verdict import (
    TrafficShift,
    load_shift,
    make_verdict,
    on_common_mix,
    regression_onset,
    release_at_onset,
    share_explained_by_traffic,
    strongest_window,
    traffic_shifts,
)
from stagelens.core.histogram import Histogram

POLICY = default_tail_policy().confounders
CELL = WindowScore(0, 8.5, 1.4, 0.6)
ROW = Row(END_TO_END, 0.95, -100, 1.0, 0.05, 0.3)


def drawn(factor: float) -> Histogram:
    made = Histogram()
    for value in np.random.default_rng(4).lognormal(-3, 0.4, 5000) * factor:
        made.record(float(value))
    return made


def test_a_verdict_has_latency_before_and_after_with_error_bounds() -> None:
    verdict = make_verdict(ROW, CELL, drawn(1.0), drawn(1.5))

    assert verdict.before
    assert verdict.after
    assert verdict.change
    assert verdict.change.low < 1.5 < verdict.change.high
    assert verdict.change.value == pytest.approx(1.5, rel=0.03)
    assert (verdict.requests, verdict.z, verdict.at) == (5000, 8.5, 0.95)
    assert (verdict.shifts, verdict.on_common_mix) == ((), None)


@pytest.mark.parametrize(("mixed", "ratio"), [((0.1, 0.102), 1.02), ((0.0, 0.1), None), (None, None)])
def test_a_changed_mix_comes_with_the_change_on_the_common_mix(
    mixed: tuple[float, float] | None, ratio: float | None
) -> None:
    shift = TrafficShift("route", "/slow", 0.1, 0.3)
    verdict = make_verdict(ROW, CELL, drawn(1), drawn(1.5), shifts=(shift,), mixed=mixed)

    assert verdict.shifts == (shift,)
    assert verdict.on_common_mix == (ratio and pytest.approx(ratio))


@pytest.mark.parametrize("at", [0.95, MEAN])
def test_without_requests_before_there_is_no_comparison(at: float | str) -> None:
    verdict = make_verdict(replace(ROW, at=at), CELL, Histogram(), drawn(1.0))

    assert (verdict.before, verdict.change) == (None, None)


@pytest.mark.parametrize(
    ("released", "between", "version"),
    [
        # A block of ten minutes is slow although the release came 8 minutes after its start.
        (108, (90, 110), "2"),
        (108, (100, 100), ""),
        (61, (90, 110), "2"),
        (59, (90, 110), ""),
        (116, (90, 110), ""),
    ],
)
def test_a_release_within_the_possible_onset_is_named(released: int, between: tuple[int, int], version: str) -> None:
    assert release_at_onset(default_watch_policy(), {"1": 0, "2": released}, between) == version


def test_the_only_version_is_not_a_release() -> None:
    assert release_at_onset(default_watch_policy(), {"1": 100}, (90, 110)) == ""


def test_the_strongest_window_has_the_highest_score() -> None:
    rows = (replace(ROW, at=0.99), ROW)
    weak, strong = WindowScore(0, 3.0, 0.4, 0.1), WindowScore(1, 9.0, 1.3, 0.5)

    assert strongest_window(TailScore((None, weak, strong), {}), rows) == (2, strong, ROW)
    assert strongest_window(TailScore((None, None), {}), rows) is None
    assert strongest_window(TailScore((), {}), rows) is None
    assert strongest_window(None, rows) is None


@pytest.mark.parametrize(
    ("slow", "excess", "onset"),
    [((60,), 2.0, 60), ((30, 60), 2.0, 30), ((20, 60), 2.0, 60), ((), 2.0, 80), ((60,), 20.0, 80)],
)
def test_the_onset_starts_the_latest_stretch_of_slow_blocks(
    service: Any, reference: Reference, slow: tuple[int, ...], excess: float, onset: int
) -> None:
    blocks = {start + step for start in slow for step in range(0, 30 if start > 30 else 20, 10)}
    parts = [service.minutes(start, 10, {"forward": 2.0} if start in blocks else {}) for start in range(0, 90, 10)]
    counts = reduce(join_tallies, (count_beyond(reference.rows, part) for part in parts))
    row = next(number for number, each in enumerate(reference.rows) if (each.stage, each.at) == (END_TO_END, 0.95))

    assert regression_onset(reference, counts, Window(10, 6, 2, ()), WindowScore(row, 9.0, 1.0, excess)) == onset


def histogram_of(*values: tuple[float, int]) -> Histogram:
    made = Histogram()
    for value, count in values:
        made.record(value, count)
    return made


@pytest.mark.parametrize("slow", ["/aslow", "/slow"])
def test_a_share_that_grew_is_named(slow: str) -> None:
    before = {"route": {"/fast": 901, slow: 101}, "model": {"a": 1002}}
    after = {"route": {"/fast": 703, slow: 307}, "model": {"a": 1010}}

    assert traffic_shifts(POLICY, before, after) == (TrafficShift("route", slow, 101 / 1002, 307 / 1010),)


def test_a_new_dimension_value_is_a_traffic_change() -> None:
    found = traffic_shifts(POLICY, {"model": {"a": 1000}}, {"model": {"a": 500, "b": 500}})

    assert [(shift.dimension, shift.after) for shift in found] == [("model", 0.5)]


@pytest.mark.parametrize("after", [{"a": 86_000, "b": 14_000}, {"a": 8, "b": 4}, {}])
def test_small_or_uncertain_changes_are_ignored(after: dict[str, int]) -> None:
    assert traffic_shifts(POLICY, {"model": {"a": 900, "b": 100}}, {"model": after}) == ()


def test_only_dimensions_of_both_sides_are_compared() -> None:
    assert traffic_shifts(POLICY, {"model": {"a": 9}}, {"batch": {"1": 500}}) == ()


def test_load_outside_the_reference_is_a_change() -> None:
    load = (math.log(50), math.log(100), math.log(200))

    assert load_shift(load, 3000, 30) is None
    found = [load_shift(load, requests, 30) for requests in (9000, 300)]
    assert [(shift.before, shift.after) for shift in found if shift] == [
        (pytest.approx(200), pytest.approx(300)),
        (pytest.approx(50), pytest.approx(10)),
    ]


def test_a_changed_mix_alone_is_equal_on_the_common_mix() -> None:
    fast, slow = [(0.010, 95), (0.020, 5)], [(0.100, 95), (0.200, 5)]
    before = {"/fast": histogram_of(*[(v, n * 9) for v, n in fast]), "/slow": histogram_of(*slow)}
    after = {"/fast": histogram_of(*fast), "/slow": histogram_of(*slow)}
    a, b = on_common_mix(before, after, 0.95) or (0, 0)

    assert b == pytest.approx(a)
    assert a == pytest.approx(0.100, rel=0.02)


@given(st.integers(1, 50), st.floats(1.2, 4))
def test_a_slower_route_is_slower_on_the_common_mix_for_any_share(times: int, growth: float) -> None:
    before = {"a": histogram_of((0.01, 90)), "b": histogram_of((0.1, 10))}
    after = {"a": histogram_of((0.01, 90)), "b": histogram_of((0.1 * growth, 10 * times))}
    a, b = on_common_mix(before, after, 0.95) or (0, 0)

    assert b / a == pytest.approx(growth, rel=0.025)


def test_without_a_common_route_there_is_no_comparison() -> None:
    assert on_common_mix({"a": histogram_of((1, 5))}, {"b": histogram_of((1, 5))}, 0.5) is None


def test_requests_below_a_nanosecond_count() -> None:
    assert on_common_mix({"a": histogram_of((0.0, 60), (1.0, 40))}, {"a": histogram_of((0.0, 3))}, 0.5) == (0.0, 0.0)


def by_size(shares: Mapping[str, float], buckets: Mapping[str, float], slower: float = 0.0) -> AttributeCounts:
    """Return 10,000 requests with a share and a median bucket for each size, all *slower* buckets later."""
    rng, index = np.random.default_rng(3), np.arange(-60, 0)
    counts = {
        value: np.histogram(rng.normal(buckets[value] + slower, 2.0, round(10_000 * share)), bins=[*index.tolist(), 0])[
            0
        ][None]
        for value, share in shares.items()
    }
    return AttributeCounts(2, index, np.array([0]), {"request_size": counts})


BUCKETS = {"small": -30.0, "large": -20.0}
USUAL, LARGER = {"small": 0.94, "large": 0.06}, {"small": 0.7, "large": 0.3}


def test_different_traffic_explains_a_growth_that_no_value_has() -> None:
    share, key = share_explained_by_traffic([by_size(USUAL, BUCKETS)] * 2, by_size(LARGER, BUCKETS), 0.95)

    assert share == pytest.approx(1.0, abs=0.1)
    assert key == "request_size"


def test_the_same_traffic_explains_nothing() -> None:
    before = by_size(USUAL, BUCKETS)
    without = AttributeCounts(2, np.arange(-60, 0), np.array([0]), {})

    assert share_explained_by_traffic([before], by_size(USUAL, BUCKETS, slower=3), 0.95)[0] == pytest.approx(0, abs=0.1)
    assert share_explained_by_traffic([without], without, 0.95) == (0.0, "")
    assert share_explained_by_traffic([before], by_size(LARGER, BUCKETS, slower=-30), 0.95) == (0.0, "")


def test_unknown_values_are_expected_to_be_as_slow_as_all() -> None:
    after = by_size({"small": 0.5, "new": 0.5}, {"small": -30.0, "new": -15.0})

    assert share_explained_by_traffic([by_size(USUAL, BUCKETS)], after, 0.95)[0] < 0.2
