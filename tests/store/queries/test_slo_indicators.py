"""Indicators of each kind of SLO, compared with the raw requests."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagelens.core.histogram import Histogram, bucket_bounds, bucket_index
from stagelens.core.names import FIRST_TOKEN, OUTPUT_TOKEN
from stagelens.store import Batch, Point
from stagelens.store.selection import Indicator
from tests.support.raw_requests import NOON, OpenSite, Request, Series, Site

ERROR = Series("shop", "1", status="error")
MINUTE = timedelta(minutes=1)
KINDS = (
    Indicator("latency", 0.5),
    Indicator("availability"),
    Indicator("stage", 0.05, "queue"),
    Indicator("coverage"),
    Indicator("freshness", 120.0),
)
REQUESTS = st.lists(
    st.builds(
        Request,
        st.fixed_dictionaries(
            {"queue": st.integers(0, 10**9), "forward": st.integers(1000, 10**9), "overhead": st.integers(0, 10**8)}
        ),
        st.integers(NOON - 7200, NOON - 60),
        st.sampled_from([Series("shop", "1"), ERROR]),
    ),
    max_size=30,
)
_numbers = itertools.count()


def write_tokens(one: Site, metric: str, definition: str, *seconds: float, status: str = "ok") -> None:
    histogram = Histogram()
    for each in seconds:
        histogram.record(each)
    point = Point(Series("shop", "1", status=status), metric, definition, NOON - 600, histogram)

    assert one.store.write([Batch(f"tokens-{next(_numbers)}", [point])]) == [True]


@settings(max_examples=8, deadline=None)
@given(requests=REQUESTS, threshold=st.floats(1e-4, 2))
def test_the_true_number_of_bad_requests_is_within_the_bounds(
    open_sqlite: OpenSite, requests: list[Request], threshold: float
) -> None:
    """For a stage or whole requests, the exact number of bad requests is within the error bounds.

    The bounds differ by the requests of the bucket that contains the threshold; the estimate is wrong by at most half of them.
    """
    one = open_sqlite()
    one.write(requests)
    spent = [request.stages_ns["queue"] / 1e9 for request in requests]
    found = one.store.read.tally(one.around(), Indicator("stage", threshold, "queue"))
    low, high = bucket_bounds(bucket_index(threshold))

    assert found.total == len(requests)
    assert found.bad_low <= sum(each > threshold for each in spent) <= found.bad_high
    assert found.bad_low <= found.bad <= found.bad_high
    assert found.bad_high - found.bad_low <= sum(low < each <= high for each in spent)


def test_a_bucket_is_split_at_the_threshold(sqlite: Site) -> None:
    low, high = bucket_bounds(bucket_index(0.1))
    values = [low * (high / low) ** ((step + 0.5) / 100) for step in range(100)]
    sqlite.write([Request({"forward": round(value * 1e9)}) for value in values])
    for share in (0.1, 0.25, 0.5, 0.9):
        threshold = low * (high / low) ** share
        found = sqlite.store.read.tally(sqlite.around(), Indicator("latency", threshold))

        assert found.bad == pytest.approx(sum(value > threshold for value in values), abs=1)
        assert (found.bad_low, found.bad_high) == (0, 100)


@settings(max_examples=4, deadline=None)
@given(requests=REQUESTS, minutes=st.sampled_from([1, 5, 30]))
def test_the_series_adds_up_to_the_tally(open_sqlite: OpenSite, requests: list[Request], minutes: int) -> None:
    one = open_sqlite()
    one.write(requests)
    one.store.maintain()
    for indicator in KINDS:
        found = one.store.read.tally(one.around(), indicator)
        series = one.store.read.tally_series(one.around(), indicator, minutes * MINUTE)

        assert list(series.columns) == ["at", "requests", "total", "bad"]
        assert series["requests"].sum() == pytest.approx(found.requests)
        assert series["total"].sum() == pytest.approx(found.total)
        assert series["bad"].sum() == pytest.approx(found.bad)


def test_a_failed_request_is_bad_only_if_its_stage_was_slow(sqlite: Site) -> None:
    sqlite.write([Request({"queue": 10**8}), Request({"queue": 10**8}, series=ERROR), Request({"forward": 10**9})])

    found = sqlite.store.read.tally(sqlite.around(), Indicator("stage", 0.2, "queue"))
    assert (found.total, found.bad) == (2, 0)
    assert sqlite.store.read.tally(sqlite.around(), Indicator("availability")).bad == 1


def test_tokens_are_counted_by_definition_or_together(sqlite: Site) -> None:
    write_tokens(sqlite, FIRST_TOKEN, "generate", 0.1, 0.9)
    write_tokens(sqlite, FIRST_TOKEN, "generate", 0.1, status="error")
    write_tokens(sqlite, FIRST_TOKEN, "first_chunk", 0.8)
    write_tokens(sqlite, OUTPUT_TOKEN, "generate", 0.01, 0.03, 0.05)

    def counted(indicator: Indicator) -> tuple[float, float]:
        found = sqlite.store.read.tally(sqlite.around(), indicator)
        return found.total, found.bad

    assert counted(Indicator("ttft", 0.5)) == (4, 2)
    assert counted(Indicator("ttft", 0.5, "generate")) == (3, 1)
    assert counted(Indicator("ttft", 0.5, "triton_first_response")) == (0, 0)
    assert counted(Indicator("tpot", 0.02)) == (3, 2)


def test_coverage_is_the_attributed_time(sqlite: Site) -> None:
    sqlite.write([Request({"forward": 9 * 10**8, "overhead": 10**8}), Request({"forward": 3 * 10**9})])
    found = sqlite.store.read.tally(sqlite.around(), Indicator("coverage"))

    assert (found.requests, found.total, found.bad) == (2, pytest.approx(4.0), pytest.approx(0.1))


def test_coverage_excludes_untimed_requests(sqlite: Site) -> None:
    sqlite.write([Request({"forward": 9 * 10**8, "overhead": 10**8}), Request({"untimed": 3 * 10**9})])
    found = sqlite.store.read.tally(sqlite.around(), Indicator("coverage"))

    assert (found.requests, found.total, found.bad) == (2, pytest.approx(1.0), pytest.approx(0.1))


def test_minutes_without_data_are_stale(sqlite: Site) -> None:
    seen = (*range(NOON - 3600, NOON - 1800, 60), *range(NOON - 1200, NOON, 60))
    sqlite.write([Request({"forward": 10**6}, at) for at in seen])
    found = sqlite.store.read.tally(sqlite.between(NOON - 7200, NOON), Indicator("freshness", 300.0))
    series = sqlite.store.read.tally_series(sqlite.between(NOON - 7200, NOON), Indicator("freshness", 300.0), MINUTE)
    stale = [int((at - datetime.fromtimestamp(NOON, UTC)) / MINUTE) for at in series["at"][series["bad"] > 0]]

    assert (found.total, found.bad) == (60, 5)
    assert stale == [-25, -24, -23, -22, -21]


def test_a_service_without_data_is_not_stale(sqlite: Site) -> None:
    hour = sqlite.between(NOON - 3600, NOON)

    assert sqlite.store.read.tally(hour, Indicator("freshness", 300.0)).total == 0
    assert sqlite.store.read.first_seen(hour) is None
    sqlite.write([Request({"forward": 10**6}, NOON - 40_000)])
    assert sqlite.store.read.first_seen(hour) == datetime.fromtimestamp(NOON - 40_000, UTC)
    assert sqlite.store.read.tally(hour, Indicator("freshness", 300.0)).bad == 60


@pytest.mark.parametrize(
    ("silent_seconds", "maintained", "stale"),
    [(60, False, False), (600, False, True), (600, True, False), (20_000, True, False), (20_000, False, True)],
)
def test_a_silent_service_differs_from_a_failed_collector(
    sqlite: Site, silent_seconds: int, maintained: bool, stale: bool
) -> None:
    sqlite.write([Request({"forward": 10**6}, NOON - 3600), Request({"forward": 10**6}, NOON - 10)])
    sqlite.store.maintain()
    sqlite.clock.now = NOON + silent_seconds
    if maintained:
        sqlite.store.maintain()
    found = sqlite.store.read.stale_since(datetime.fromtimestamp(sqlite.clock.now, UTC), timedelta(minutes=3))

    assert found == (datetime.fromtimestamp(NOON, UTC) if stale else None)


def test_a_store_that_was_never_maintained_is_not_called_stale(sqlite: Site) -> None:

    assert sqlite.store.read.stale_since(datetime.fromtimestamp(NOON, UTC), MINUTE) is None
    sqlite.write([Request({"forward": 10**6}, NOON - 3600)])
    assert sqlite.store.read.stale_since(datetime.fromtimestamp(NOON, UTC), MINUTE) is None
