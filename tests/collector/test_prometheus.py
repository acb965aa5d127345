"""The counters Prometheus is told: nothing lost, nothing grown too large, and the buckets true."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stagelens.collector import prometheus
from stagelens.collector.prometheus import Counters, HistogramFamily, PrometheusSettings
from stagelens.core import names
from stagelens.core.histogram import Histogram
from stagelens.core.prometheus_names import FAMILIES, LADDER
from stagelens.store.records import Point, PointColumns
from stagelens.store.series import Series

SECONDS = st.floats(2e-6, 1e5)


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Say what it was set to."""
        return self.now


def points(
    *durations: float, metric: str = names.REQUEST_DURATION, stage: str = "forward", scale: int = 5, **series: str
) -> PointColumns:
    """One point of *durations*."""
    histogram = Histogram(scale)
    for seconds in durations:
        histogram.record(seconds)
    return PointColumns.of([Point(Series(**({"service": "shop"} | series)), metric, stage, 0, histogram)])


def shown(found: list[HistogramFamily], name: str = "stagelens_request_duration_seconds") -> dict[tuple[str, ...], int]:
    """How many requests each histogram of the metric *name* has, by the values of its labels."""
    (family,) = [each for each in found if each.family.name == name]
    totals = (family.counts.sum(axis=1) + family.zero).tolist()
    return {tuple(value for _, value in labels): total for labels, total in zip(family.labels, totals, strict=True)}


def full(clock: Clock, **settings: object) -> Counters:
    """Counters with *settings* and *clock*."""
    chosen = PrometheusSettings(**settings)  # pyright: ignore[reportArgumentType]
    return Counters(lambda: chosen, clock)


@given(durations=st.lists(SECONDS, min_size=1, max_size=50), scale=st.integers(0, 5))
def test_the_count_at_a_bound_of_the_ladder_is_never_too_high_and_exact_at_our_scale(
    durations: list[float], scale: int
) -> None:
    """What is told to be at most a bound is; coarser buckets count where all they hold is."""
    clock = Clock()
    told = Counters(clock=clock)
    told.count(points(*durations, scale=scale))
    clock.now = prometheus.EMPTY_SECONDS
    (counted, *_) = told.read()
    (held,) = prometheus.cumulative_counts(counted.counts, LADDER).tolist()
    true = [sum(seconds <= bound for seconds in durations) for bound in LADDER]

    assert all(count <= right for count, right in zip(held, true, strict=True))
    assert scale < 5 or held == true
    assert int(counted.counts.sum()) == len(durations)


@given(durations=st.lists(st.floats(0.01, 10), min_size=1, max_size=50), bound=st.floats(0.01, 10))
def test_a_bound_of_the_users_own_is_off_by_the_requests_of_its_bucket_at_most(
    durations: list[float], bound: float
) -> None:
    """It is split as thresholds of objectives are."""
    histogram = Histogram()
    for seconds in durations:
        histogram.record(seconds)
    clock = Clock()
    told = Counters(clock=clock)
    told.count(points(*durations))
    clock.now = prometheus.EMPTY_SECONDS
    ((held,),) = prometheus.cumulative_counts(told.read()[0].counts, (bound,)).tolist()
    above = histogram.count_above(bound)

    assert len(durations) - above.high <= held <= len(durations) - above.low
    assert abs(held - (len(durations) - above.value)) <= 1


def test_all_a_service_counts_adds_up() -> None:
    """Points of two batches, of all dominant stages, of routes nobody asked to tell apart, are one histogram."""
    clock = Clock()
    told = Counters(clock=clock)
    told.count(PointColumns.join([points(0.1, 0.2, route="/a"), points(0.0, stage="queue", route="/b")]))
    told.count(points(5.0, status="error"))
    clock.now = prometheus.EMPTY_SECONDS

    assert shown(told.read()) == {("shop", "ok", "", ""): 3, ("shop", "error", "", ""): 1}


def test_labels_are_those_that_were_chosen() -> None:
    """Service and status always, the others in the order of the section, the stage last."""
    clock = Clock()
    told = full(clock, labels=("route",))
    told.count(points(0.1, metric=names.STAGE_DURATION, stage="queue", route="/a"))
    (stages,) = [each for each in told.read() if each.family.key == "stage"]

    assert stages.labels == [(("service_name", "shop"), ("status", "ok"), ("route", "/a"), ("stage", "queue"))]


def test_a_histogram_begins_empty() -> None:
    """Prometheus must see it before it grows, or it would take its first requests for old ones."""
    clock = Clock()
    told = Counters(clock=clock)
    told.count(points(0.1))
    young = shown(told.read())
    clock.now = prometheus.EMPTY_SECONDS

    assert young == {("shop", "ok", "", ""): 0}
    assert shown(told.read()) == {("shop", "ok", "", ""): 1}


def test_what_does_not_grow_any_more_leaves_and_begins_anew() -> None:
    """A version that is gone takes no room; when it comes back it begins at nothing."""
    clock = Clock()
    told = full(clock, histograms=1)
    told.count(points(0.1, version="1"))
    clock.now = prometheus.IDLE_SECONDS + 1
    gone = told.read()
    told.count(points(0.1, 0.2, version="2"))
    clock.now += prometheus.EMPTY_SECONDS

    assert shown(gone) == {}
    assert shown(told.read()) == {("shop", "ok", "2", ""): 2}


def test_past_the_limit_the_rest_is_one() -> None:
    """No request is lost: what has no room of its own counts in `__other__`, failed ones apart."""
    clock = Clock()
    told = full(clock, histograms=2)
    for number in range(5):
        told.count(points(0.1, service=f"s{number}"))
        told.count(points(0.1, service=f"s{number}", status="error"))
    clock.now = prometheus.EMPTY_SECONDS
    found = shown(told.read())

    assert found == {
        ("s0", "ok", "", ""): 1,
        ("s0", "error", "", ""): 1,
        ("__other__", "ok", "__other__", "__other__"): 4,
        ("__other__", "error", "__other__", "__other__"): 4,
    }
    assert (told.used, told.limit) == (4, 2)


def test_every_metric_has_room_past_the_limit() -> None:
    """With no room left at all each metric and status still counts."""
    clock = Clock()
    told = full(clock, histograms=1)
    for family in FAMILIES:
        for status in ("ok", "error"):
            for number in range(3):
                told.count(points(0.1, metric=family.source, service=f"s{number}", status=status))
    clock.now = prometheus.EMPTY_SECONDS

    assert sum(int(each.counts.sum()) for each in told.read()) == 3 * 2 * len(FAMILIES)


def test_other_labels_begin_anew() -> None:
    """The file may be changed while the collector runs."""
    settings = [PrometheusSettings()]
    clock = Clock()
    told = Counters(lambda: settings[0], clock)
    told.count(points(0.1))
    settings[0] = PrometheusSettings(labels=("device",))
    told.count(points(0.1, device="gpu"))
    clock.now = prometheus.EMPTY_SECONDS

    assert shown(told.read()) == {("shop", "ok", "gpu"): 1}


def test_nothing_is_counted_where_nothing_is_wanted() -> None:
    """`histograms: 0`."""
    clock = Clock()
    told = full(clock, histograms=0)
    told.count(points(0.1))

    assert told.read()[0].labels == []


def test_what_is_too_short_or_too_long_counts_at_the_ends() -> None:
    """A nanosecond, and a week."""
    clock = Clock()
    told = Counters(clock=clock)
    told.count(points(1e-9, 7 * 86_400.0))
    clock.now = prometheus.EMPTY_SECONDS
    (counts,) = told.read()[0].counts

    assert np.flatnonzero(counts).tolist() == [0, prometheus.BUCKETS - 1]
    assert math.isclose(float(told.read()[0].sum[0]), 7 * 86_400, rel_tol=1e-9)
