"""Counts of good and bad requests, and indicators of each kind of SLO, compared with the raw requests."""

from __future__ import annotations

import itertools
import math
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagelens.core.histogram import MAX_RELATIVE_ERROR, Histogram, bucket_bounds, bucket_index
from stagelens.core.names import FIRST_TOKEN, OUTPUT_TOKEN, REQUEST_DURATION, STAGE_TIME
from stagelens.store import Batch, Point
from stagelens.store.engines import database
from stagelens.store.queries import fetch
from stagelens.store.selection import Indicator
from stagelens.store.storage import PointQuery, StoreSnapshot
from tests.support.raw_requests import NOON, OpenSite, Request, Series, Site

ERROR = Series("shop", "1", status="error")


def test_a_cancelled_request_counts_only_if_it_was_slow(sqlite: Site) -> None:
    gone = Series("shop", "1", status="cancelled")
    sqlite.write(
        [*[Request({"forward": 5})] * 6, Request({"forward": 10**10}), *[Request({"forward": 5}, series=ERROR)] * 2]
    )
    sqlite.write([Request({"forward": stay}, series=gone) for stay in (5, 5, 10**10)])
    read, around = sqlite.store.read, sqlite.around()
    slow, failed = (
        read.tally(around, indicator) for indicator in (Indicator("latency", 0.5), Indicator("availability"))
    )
    frame = read.tally_series(around, Indicator("latency", 0.5), timedelta(minutes=5))

    assert [(each.total, each.bad) for each in (slow, failed)] == [(10, 4), (9, 2)]
    assert (failed.bad_low, failed.bad_high) == (2, 2)
    assert (frame["total"].sum(), frame["bad"].sum()) == (10, 4)


def test_the_time_of_the_last_request_is_returned(sqlite: Site) -> None:
    empty = sqlite.store.read.tally(sqlite.around(), Indicator("latency", 0.1))
    sqlite.write([Request({"forward": 5}, NOON - 7000), Request({"forward": 5}, NOON - 33)])
    found = sqlite.store.read.tally(sqlite.around(), Indicator("latency", 0.1))

    assert (empty.total, empty.bad, empty.last_at) == (0, 0, None)
    assert found.last_at == datetime.fromtimestamp(NOON - 40, UTC)


def test_the_stage_of_bad_requests_comes_first(sqlite: Site) -> None:
    good = [Request({"forward": 20_000_000, "queue": 1_000_000})] * 100
    slow = [Request({"forward": 30_000_000, "queue": 200_000_000})] * 8
    failed = [Request({"forward": 10_000_000, "queue": 1_000_000}, series=ERROR)] * 2
    sqlite.write([*good, *slow, *failed])
    frame = sqlite.store.read.bad_breakdown(sqlite.around(), 0.1).set_index("stage")

    assert frame.index.tolist() == ["queue", "forward"]
    assert frame["bad_mean_seconds"].tolist() == pytest.approx([0.1602, 0.026])
    assert frame["good_mean_seconds"].tolist() == pytest.approx([0.001, 0.02])
    assert frame["share"].sum() == pytest.approx(1)
    assert frame["share"]["queue"] == pytest.approx(0.1592 / 0.1652)


def test_bad_requests_alone_have_no_good_mean(sqlite: Site) -> None:
    sqlite.write([Request({"forward": 200_000_000})] * 5)
    frame = sqlite.store.read.bad_breakdown(sqlite.around(), 0.1)

    assert frame["good_mean_seconds"].tolist() == [0.0]
    assert frame["bad_mean_seconds"].tolist() == pytest.approx([0.2], rel=MAX_RELATIVE_ERROR)


BLAMED = st.lists(
    st.builds(
        Request,
        st.fixed_dictionaries({stage: st.integers(0, 10**9) for stage in ("forward", "queue", "preprocess")}),
        st.integers(NOON - 7200, NOON),
        st.sampled_from([Series("shop", "1"), Series("shop", "2"), ERROR]),
    ),
    max_size=40,
)


@settings(max_examples=6, deadline=None)
@given(requests=BLAMED, threshold=st.none() | st.floats(1e-3, 3), minutes=st.sampled_from([1, 5, 30, 600]))
def test_bad_requests_by_stage_add_up_to_all_bad_requests(
    open_sqlite: OpenSite, requests: list[Request], threshold: float | None, minutes: int
) -> None:
    one = open_sqlite()
    one.write(requests)
    one.store.maintain()
    step = timedelta(minutes=minutes)
    series = one.store.read.tally_series(one.around(), Indicator("latency", threshold), step)
    frame = one.store.read.bad_over_time(one.around(), threshold, step)
    stages = frame.drop(columns=["at", "bad"])

    assert frame["at"].tolist() == series["at"].tolist()
    assert frame["bad"].tolist() == pytest.approx(series["bad"].tolist())
    assert stages.sum(axis=1).tolist() == pytest.approx(frame["bad"].tolist())
    assert (stages.to_numpy() >= 0).all()
    assert frame.attrs == series.attrs


def test_each_step_attributes_bad_requests_to_the_largest_excess(sqlite: Site) -> None:
    good = {"forward": 20_000_000, "queue": 1_000_000, "preprocess": 1_000_000}
    sqlite.write(
        [Request(good, NOON - 60 * minute) for minute in range(1, 119)]
        + [Request(good | {"queue": 200_000_000}, NOON - 7000)] * 4
        + [Request(good | {"preprocess": 300_000_000}, NOON - 5000)] * 3
        + [Request({"forward": 1_000_000}, NOON - 3000, ERROR)] * 2
    )
    frame = sqlite.store.read.bad_over_time(sqlite.between(NOON - 7200, NOON), 0.1, timedelta(minutes=30))

    assert frame["bad"].tolist() == [4, 3, 2, 0]
    assert frame["queue"].tolist() == pytest.approx([4, 0, 0, 0])
    assert frame["preprocess"].tolist() == pytest.approx([0, 3, 0, 0])
    assert frame["unexplained"].tolist() == [0, 0, 2, 0]
    assert "forward" not in frame


def test_the_result_does_not_depend_on_the_chunk_size(sqlite: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    for scale in (5, 3):
        sqlite.write(
            [
                Request({"queue": 7_000_000 * step, "forward": 90_000_000}, NOON - 50 * step, series)
                for step in range(1, 40)
                for series in (Series("shop"), Series("shop", status="error"))
            ],
            scale=scale,
        )
    sqlite.write([Request({"rerank": 0}, NOON - 5)])
    read, around = sqlite.store.read, sqlite.around()

    def results() -> list[object]:
        return [
            read.latency(around).buckets,
            read.breakdown(around, (0.5, 0.99)).to_dict(),
            read.dominants(around, (0.5, 0.99)).to_dict(),
            read.tally(around, Indicator("latency", 0.2)),
            read.bad_breakdown(around, 0.2).to_dict(),
        ]

    whole = results()
    monkeypatch.setattr(database, "PIECE_ROWS", 3)

    assert results() == whole


def test_memory_does_not_grow_with_the_window(sqlite: Site) -> None:
    sqlite.write([Request({"forward": 1_000_000}, NOON - 10 * step) for step in range(200)])
    with database.reading(sqlite.store.engine) as connection:
        held = fetch.fetch(
            StoreSnapshot(connection, sqlite.store.points), PointQuery(sqlite.around(), (REQUEST_DURATION, STAGE_TIME))
        )

    assert len(held) == 2
    assert int(held.times.max()) == NOON


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
    for second in seconds:
        histogram.record(second)
    point = Point(Series("shop", "1", status=status), metric, definition, NOON - 600, histogram)

    assert one.store.write([Batch(f"tokens-{next(_numbers)}", [point])]) == [True]


@settings(max_examples=8, deadline=None)
@given(requests=REQUESTS, threshold=st.floats(1e-4, 2))
def test_the_true_number_of_bad_requests_is_within_the_bounds(
    open_sqlite: OpenSite, requests: list[Request], threshold: float
) -> None:
    """The bounds differ by the requests of the bucket that contains the threshold."""
    one = open_sqlite()
    one.write(requests)
    low, high = bucket_bounds(bucket_index(threshold))
    in_queue = [request.stages_ns["queue"] / 1e9 for request in requests]
    # A failed request is bad, however fast.
    whole = [math.inf if request.series == ERROR else request.seconds for request in requests]
    for indicator, spent in (
        (Indicator("stage", threshold, "queue"), in_queue),
        (Indicator("latency", threshold), whole),
    ):
        found = one.store.read.tally(one.around(), indicator)

        assert found.total == len(requests)
        assert found.bad_low <= sum(each > threshold for each in spent) <= found.bad_high
        assert found.bad_low <= found.bad <= found.bad_high
        assert found.bad_high - found.bad_low <= sum(low < each <= high for each in spent)


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


@pytest.mark.parametrize(("stage", "covered"), [("forward", 4.0), ("untimed", 1.0)])
def test_coverage_is_the_attributed_time_of_requests_with_stages(sqlite: Site, stage: str, covered: float) -> None:
    sqlite.write([Request({"forward": 9 * 10**8, "overhead": 10**8}), Request({stage: 3 * 10**9})])
    found = sqlite.store.read.tally(sqlite.around(), Indicator("coverage"))

    assert (found.requests, found.total, found.bad) == (2, pytest.approx(covered), pytest.approx(0.1))


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
    read, minute = sqlite.store.read, timedelta(minutes=1)
    sqlite.write([Request({"forward": 10**6}, NOON - 3600), Request({"forward": 10**6}, NOON - 10)])

    assert read.stale_since(datetime.fromtimestamp(NOON, UTC), minute) is None
    sqlite.store.maintain()
    sqlite.clock.now = NOON + silent_seconds
    if maintained:
        sqlite.store.maintain()
    found = read.stale_since(datetime.fromtimestamp(sqlite.clock.now, UTC), 3 * minute)

    assert found == (datetime.fromtimestamp(NOON, UTC) if stale else None)
