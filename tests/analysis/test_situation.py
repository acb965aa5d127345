"""Situation of a service: what is stated first."""

from __future__ import annotations

import pytest

from stagelens.analysis.comparison import QuantileComparison, compare_failures, compare_quantile
from stagelens.analysis.situation import Kind, Situation
from stagelens.core.histogram import Histogram


def compared(before: float, now: float, requests: int = 2000) -> QuantileComparison:
    sides = Histogram(), Histogram()
    for side, seconds in zip(sides, (before, now), strict=True):
        side.record(seconds, requests)
    return compare_quantile(*sides, 0.99)


SLOWER, SAME, FASTER = compared(0.1, 0.2), compared(0.1, 0.1), compared(0.2, 0.1)


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        (Situation(is_silent=True, failure_ratio=0.5, latency=SLOWER), "no_data"),
        (Situation(is_silent=False, failure_ratio=0.5, latency=SLOWER, release=SLOWER), "failures"),
        (Situation(is_silent=False, failure_ratio=0.002, latency=SLOWER), "latency"),
        (Situation(is_silent=False, failure_ratio=0.004, failures=compare_failures(1, 9000, 36, 9000)), "failures"),
        (Situation(is_silent=False, failure_ratio=0.002, latency=SLOWER, are_failures_cause=True), "failures"),
        (Situation(is_silent=False, failure_ratio=0.002, is_burning=True), "burning"),
        (Situation(is_silent=False, failure_ratio=0, release=SLOWER, latency=SLOWER), "release"),
        (Situation(is_silent=False, failure_ratio=0, first_token=compared(0.1, 0.3), latency=SLOWER), "first_token"),
        (Situation(is_silent=False, failure_ratio=0, first_token=SAME, latency=SLOWER, is_burning=True), "latency"),
        (Situation(is_silent=False, failure_ratio=0, latency=SAME, is_burning=True), "burning"),
        (Situation(is_silent=False, failure_ratio=0, latency=SAME, has_slow_replica=True), "replica"),
        (Situation(is_silent=False, failure_ratio=0, latency=FASTER), "faster"),
        (Situation(is_silent=False, failure_ratio=0, latency=compared(0.1, 0.106)), "none"),
        (Situation(is_silent=False, failure_ratio=0, latency=compared(0.1, 0.2, 9)), "none"),
    ],
)
def test_no_data_is_stated_before_failures_and_failures_before_latency(found: Situation, kind: Kind) -> None:
    assert found.kind == kind
