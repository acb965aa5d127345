"""Histograms for Prometheus: complete counts, limited series, and correct buckets."""

from __future__ import annotations

import math
from typing import Any

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


class Counted:
    """Counters with *settings*, and a clock set by the test."""

    def __init__(self, *given: PointColumns, **settings: Any) -> None:
        self.now, self.settings = 0.0, PrometheusSettings(**settings)
        self.counters = Counters(lambda: self.settings, lambda: self.now)
        for each in given:
            self.counters.count(each)

    def after(self, seconds: float = prometheus.EMPTY_SECONDS) -> list[HistogramFamily]:
        self.now += seconds
        return self.counters.read()


@given(durations=st.lists(SECONDS, min_size=1, max_size=50), scale=st.integers(0, 5))
def test_the_count_at_a_standard_bound_is_never_too_high(durations: list[float], scale: int) -> None:
    (counted, *_) = Counted(points(*durations, scale=scale)).after()
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
    ((held,),) = cumulative_counts(Counted(points(*durations)).after()[0].counts, (bound,)).tolist()
    above = histogram.count_above(bound)

    assert len(durations) - above.high <= held <= len(durations) - above.low
    assert abs(held - (len(durations) - above.value)) <= 1


def test_all_counts_of_a_service_add_up() -> None:
    together = PointColumns.join([points(0.1, 0.2, route="/a"), points(0.0, stage="queue", route="/b")])

    assert shown(Counted(together, points(5.0, status="error")).after()) == {
        ("shop", "ok", "", ""): 3,
        ("shop", "error", "", ""): 1,
    }


def test_labels_are_the_configured_ones() -> None:
    counted = Counted(points(0.1, metric=names.STAGE_DURATION, stage="queue", route="/a"), labels=("route",))
    (stages,) = [each for each in counted.after() if each.family.key == "stage"]

    assert stages.labels == [(("service_name", "shop"), ("status", "ok"), ("route", "/a"), ("stage", "queue"))]


def test_a_histogram_starts_empty() -> None:
    counted = Counted(points(0.1))

    assert shown(counted.after(0)) == {("shop", "ok", "", ""): 0}
    assert shown(counted.after()) == {("shop", "ok", "", ""): 1}


def test_unused_series_are_removed_and_restart_at_zero() -> None:
    counted = Counted(points(0.1, version="1"), histograms=1)
    gone = counted.after(prometheus.IDLE_SECONDS + 1)
    counted.counters.count(points(0.1, 0.2, version="2"))

    assert shown(gone) == {}
    assert shown(counted.after()) == {("shop", "ok", "2", ""): 2}


def test_series_over_the_limit_are_aggregated() -> None:
    given = [points(0.1, service=f"s{number}", status=status) for number in range(5) for status in ("ok", "error")]
    counted = Counted(*given, histograms=2)

    assert shown(counted.after()) == {
        ("s0", "ok", "", ""): 1,
        ("s0", "error", "", ""): 1,
        ("__other__", "ok", "__other__", "__other__"): 4,
        ("__other__", "error", "__other__", "__other__"): 4,
    }
    assert (counted.counters.used, counted.counters.limit) == (4, 2)


def test_every_metric_counts_beyond_the_limit() -> None:
    given = [
        points(0.1, metric=family.source, service=f"s{number}", status=status)
        for family in FAMILIES
        for status in ("ok", "error")
        for number in range(3)
    ]

    assert sum(int(each.counts.sum()) for each in Counted(*given, histograms=1).after()) == 3 * 2 * len(FAMILIES)


def test_changed_labels_restart_at_zero() -> None:
    counted = Counted(points(0.1))
    counted.settings = PrometheusSettings(labels=("device",))
    counted.counters.count(points(0.1, device="gpu"))

    assert shown(counted.after()) == {("shop", "ok", "gpu"): 1}


def test_histograms_zero_counts_nothing() -> None:
    assert Counted(points(0.1), histograms=0).after()[0].labels == []


def test_values_outside_the_range_count_at_its_ends() -> None:
    durations = Counted(points(1e-9, 7 * 86_400.0)).after()[0]
    (counts,) = durations.counts

    assert np.flatnonzero(counts).tolist() == [0, prometheus.BUCKETS - 1]
    assert math.isclose(float(durations.sum[0]), 7 * 86_400, rel_tol=1e-9)
