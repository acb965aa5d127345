"""Detection of traffic changes, and latency on a common mix."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelens.alerts.regression.traffic import TrafficShift, load_shift, on_common_mix, traffic_shifts
from stagelens.analysis.regression.policy import default_tail_policy
from stagelens.core.histogram import Histogram

POLICY = default_tail_policy().confounders


def histogram_of(*values: tuple[float, int]) -> Histogram:
    made = Histogram()
    for value, count in values:
        made.record(value, count)
    return made


@pytest.mark.parametrize("slow", ["/aslow", "/slow"])
def test_a_share_that_grew_is_named(slow: str) -> None:
    """If the share of the slow route grew, that route is named, and not the one whose share shrank."""
    before = {"route": {"/fast": 901, slow: 101}, "model": {"a": 1002}}
    after = {"route": {"/fast": 703, slow: 307}, "model": {"a": 1010}}

    assert traffic_shifts(POLICY, before, after) == (TrafficShift("route", slow, 101 / 1002, 307 / 1010),)


def test_a_new_value_is_a_shift() -> None:
    """A model without earlier requests is a change."""
    found = traffic_shifts(POLICY, {"model": {"a": 1000}}, {"model": {"a": 500, "b": 500}})

    assert [(shift.dimension, shift.after) for shift in found] == [("model", 0.5)]


@pytest.mark.parametrize("after", [{"a": 880, "b": 120}, {"a": 8, "b": 4}, {}])
def test_little_chance_and_nothing_are_no_shift(after: dict[str, int]) -> None:
    """Changes below five points, with few requests, or without data on one side are ignored."""
    assert traffic_shifts(POLICY, {"model": {"a": 900, "b": 100}}, {"model": after}) == ()


def test_only_what_both_sides_tell_is_compared() -> None:
    """A dimension is compared only if both sides have it."""
    assert traffic_shifts(POLICY, {"model": {"a": 9}}, {"batch": {"1": 500}}) == ()


def test_load_outside_what_is_known() -> None:
    """A load above or below the range of the reference is a change."""
    load = (math.log(50), math.log(100), math.log(200))

    assert load_shift(load, 3000, 30) is None
    found = [load_shift(load, requests, 30) for requests in (9000, 300)]
    assert [(shift.before, shift.after) for shift in found if shift] == [
        (pytest.approx(200), pytest.approx(300)),
        (pytest.approx(50), pytest.approx(10)),
    ]


def test_a_changed_mix_alone_is_not_slower_on_the_common_mix() -> None:
    """If only the mix changed, latency on the common mix is equal."""
    fast, slow = [(0.010, 95), (0.020, 5)], [(0.100, 95), (0.200, 5)]
    before = {"/fast": histogram_of(*[(v, n * 9) for v, n in fast]), "/slow": histogram_of(*slow)}
    after = {"/fast": histogram_of(*fast), "/slow": histogram_of(*slow)}
    a, b = on_common_mix(before, after, 0.95) or (0, 0)

    assert b == pytest.approx(a)
    assert a == pytest.approx(0.100, rel=0.02)


@given(st.integers(1, 50), st.floats(1.2, 4))
def test_a_slower_route_is_slower_on_the_common_mix_however_many_requests_it_has_now(times: int, growth: float) -> None:
    """Latency on the common mix depends on the latency of each group, and not on its current number of requests."""
    before = {"a": histogram_of((0.01, 90)), "b": histogram_of((0.1, 10))}
    after = {"a": histogram_of((0.01, 90)), "b": histogram_of((0.1 * growth, 10 * times))}
    a, b = on_common_mix(before, after, 0.95) or (0, 0)

    assert b / a == pytest.approx(growth, rel=0.025)


def test_nothing_in_common() -> None:
    """Without a common route there is no comparison."""
    assert on_common_mix({"a": histogram_of((1, 5))}, {"b": histogram_of((1, 5))}, 0.5) is None


def test_requests_below_a_nanosecond_count() -> None:
    """Requests below a nanosecond, counted as zero, are part of the quantile."""
    assert on_common_mix({"a": histogram_of((0.0, 60), (1.0, 40))}, {"a": histogram_of((0.0, 3))}, 0.5) == (0.0, 0.0)
