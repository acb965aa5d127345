"""Histograms for Prometheus: complete counts, limited series, and correct buckets."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stagelens.collector import prometheus
from stagelens.collector.prometheus import Counters, HistogramFamily, cumulative_counts
from stagelens.collector.prometheus_config import PrometheusSettings
from stagelens.core import names
from stagelens.core.histogram import Histogram
from stagelens.core.prometheus_names import FAMILIES, LADDER
from stagelens.store.points import Point, PointColumns
from stagelens.store.series import Series

SECONDS = st.floats(2e-6, 1e5)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def points(
    *durations: float, metric: str = names.REQUEST_DURATION, stage: str = "forward", scale: int = 5, **series: str
) -> PointColumns:
    histogram = Histogram(scale)
    for seconds in durations:
        histogram.record(seconds)
    return PointColumns.of([Point(Series(**({"service": "shop"} | series)), metric, stage, 0, histogram)])


def shown(found: list[HistogramFamily], name: str = "stagelens_request_duration_seconds") -> dict[tuple[str, ...], int]:
    (family,) = [each for each in found if each.family.name == name]
    totals = (family.counts.sum(axis=1) + family.zero).tolist()
    return {tuple(value for _, value in labels): total for labels, total in zip(family.labels, totals, strict=True)}


def full(clock: Clock, **settings: object) -> Counters:
    chosen = PrometheusSettings(**settings)  # pyright: ignore[reportArgumentType]
    return Counters(lambda: chosen, clock)


@given(durations=st.lists(SECONDS, min_size=1, max_size=50), scale=st.integers(0, 5))
def test_the_count_at_a_standard_bound_is_never_too_high(durations: list[float], scale: int) -> None:
    clock = Clock()
    counters = Counters(clock=clock)
    counters.count(points(*durations, scale=scale))
    clock.now = prometheus.EMPTY_SECONDS
    (counted, *_) = counters.read()
    (held,) = cumulative_counts(counted.counts, LADDER).tolist()
    true = [sum(seconds <= bound for seconds in durations) for bound in LADDER]

    assert all(count <= right for count, right in zip(held, true, strict=True))
    assert scale < 5 or held == true
    assert int(counted.counts.sum()) == len(durations)


@given(durations=st.lists(st.floats(0.01, 10), min_size=1, max_size=50), bound=st.floats(0.01, 10))
def test_the_error_at_a_custom_bound_is_within_its_bucket(durations: list[float], bound: float) -> None:
    histogram = Histogram()
    for seconds in durations:
        histogram.record(seconds)
    clock = Clock()
    counters = Counters(clock=clock)
    counters.count(points(*durations))
    clock.now = prometheus.EMPTY_SECONDS
    ((held,),) = cumulative_counts(counters.read()[0].counts, (bound,)).tolist()
    above = histogram.count_above(bound)

    assert len(durations) - above.high <= held <= len(durations) - above.low
    assert abs(held - (len(durations) - above.value)) <= 1


def test_all_counts_of_a_service_add_up() -> None:
    clock = Clock()
    counters = Counters(clock=clock)
    counters.count(PointColumns.join([points(0.1, 0.2, route="/a"), points(0.0, stage="queue", route="/b")]))
    counters.count(points(5.0, status="error"))
    clock.now = prometheus.EMPTY_SECONDS

    assert shown(counters.read()) == {("shop", "ok", "", ""): 3, ("shop", "error", "", ""): 1}


def test_labels_are_the_configured_ones() -> None:
    clock = Clock()
    counters = full(clock, labels=("route",))
    counters.count(points(0.1, metric=names.STAGE_DURATION, stage="queue", route="/a"))
    (stages,) = [each for each in counters.read() if each.family.key == "stage"]

    assert stages.labels == [(("service_name", "shop"), ("status", "ok"), ("route", "/a"), ("stage", "queue"))]


def test_a_histogram_starts_empty() -> None:
    clock = Clock()
    counters = Counters(clock=clock)
    counters.count(points(0.1))
    young = shown(counters.read())
    clock.now = prometheus.EMPTY_SECONDS

    assert young == {("shop", "ok", "", ""): 0}
    assert shown(counters.read()) == {("shop", "ok", "", ""): 1}


def test_unused_series_are_removed_and_restart_at_zero() -> None:
    clock = Clock()
    counters = full(clock, histograms=1)
    counters.count(points(0.1, version="1"))
    clock.now = prometheus.IDLE_SECONDS + 1
    gone = counters.read()
    counters.count(points(0.1, 0.2, version="2"))
    clock.now += prometheus.EMPTY_SECONDS

    assert shown(gone) == {}
    assert shown(counters.read()) == {("shop", "ok", "2", ""): 2}


def test_series_over_the_limit_are_aggregated() -> None:
    clock = Clock()
    counters = full(clock, histograms=2)
    for number in range(5):
        counters.count(points(0.1, service=f"s{number}"))
        counters.count(points(0.1, service=f"s{number}", status="error"))
    clock.now = prometheus.EMPTY_SECONDS
    found = shown(counters.read())

    assert found == {
        ("s0", "ok", "", ""): 1,
        ("s0", "error", "", ""): 1,
        ("__other__", "ok", "__other__", "__other__"): 4,
        ("__other__", "error", "__other__", "__other__"): 4,
    }
    assert (counters.used, counters.limit) == (4, 2)


def test_every_metric_counts_beyond_the_limit() -> None:
    clock = Clock()
    counters = full(clock, histograms=1)
    for family in FAMILIES:
        for status in ("ok", "error"):
            for number in range(3):
                counters.count(points(0.1, metric=family.source, service=f"s{number}", status=status))
    clock.now = prometheus.EMPTY_SECONDS

    assert sum(int(each.counts.sum()) for each in counters.read()) == 3 * 2 * len(FAMILIES)


def test_changed_labels_restart_at_zero() -> None:
    settings = [PrometheusSettings()]
    clock = Clock()
    counters = Counters(lambda: settings[0], clock)
    counters.count(points(0.1))
    settings[0] = PrometheusSettings(labels=("device",))
    counters.count(points(0.1, device="gpu"))
    clock.now = prometheus.EMPTY_SECONDS

    assert shown(counters.read()) == {("shop", "ok", "gpu"): 1}


def test_histograms_zero_counts_nothing() -> None:
    clock = Clock()
    counters = full(clock, histograms=0)
    counters.count(points(0.1))

    assert counters.read()[0].labels == []


def test_values_outside_the_range_count_at_its_ends() -> None:
    clock = Clock()
    counters = Counters(clock=clock)
    counters.count(points(1e-9, 7 * 86_400.0))
    clock.now = prometheus.EMPTY_SECONDS
    (counts,) = counters.read()[0].counts

    assert np.flatnonzero(counts).tolist() == [0, prometheus.BUCKETS - 1]
    assert math.isclose(float(counters.read()[0].sum[0]), 7 * 86_400, rel_tol=1e-9)
