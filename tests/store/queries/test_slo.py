"""Counts of good and bad requests."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagelens.core.histogram import MAX_RELATIVE_ERROR
from stagelens.core.names import REQUEST_DURATION, STAGE_TIME
from stagelens.store.engines import database
from stagelens.store.queries import fetch
from stagelens.store.storage import PointQuery, StoreSnapshot
from tests.support.raw_requests import NOON, OpenSite, Request, Series, Site

ERROR = Series("shop", "1", status="error")
REQUESTS = st.lists(
    st.builds(
        Request,
        st.fixed_dictionaries({"forward": st.integers(0, 10**10)}),
        st.integers(NOON - 7200, NOON),
        st.sampled_from([Series("shop", "1"), Series("shop", "2"), ERROR]),
    ),
    max_size=40,
)


@settings(max_examples=8, deadline=None)
@given(requests=REQUESTS, threshold=st.floats(1e-6, 20))
def test_the_true_number_of_bad_requests_is_within_the_bounds(
    open_sqlite: OpenSite, requests: list[Request], threshold: float
) -> None:
    one = open_sqlite()
    one.write(requests)
    counts = one.store.read.slo_counts(one.around(), threshold)
    bad = sum(request.series == ERROR or request.seconds > threshold for request in requests)

    assert counts.total == len(requests)
    assert counts.bad_low <= bad <= counts.bad_high
    assert counts.bad_low <= counts.bad <= counts.bad_high


@settings(max_examples=8, deadline=None)
@given(requests=REQUESTS, minutes=st.sampled_from([1, 5, 30, 600]))
def test_the_series_adds_up_to_the_counts(open_sqlite: OpenSite, requests: list[Request], minutes: int) -> None:
    one = open_sqlite()
    one.write(requests)
    one.store.maintain()
    counts = one.store.read.slo_counts(one.around(), 0.5)
    frame = one.store.read.slo_series(one.around(), 0.5, timedelta(minutes=minutes))

    assert frame["total"].sum() == counts.total
    assert frame["bad"].sum() == pytest.approx(counts.bad)


def test_a_cancelled_request_counts_only_if_it_was_slow(sqlite: Site) -> None:
    gone = Series("shop", "1", status="cancelled")
    sqlite.write([Request({"forward": 5})] * 7 + [Request({"forward": stay}, series=gone) for stay in (5, 5, 10**10)])
    latency, availability = (sqlite.store.read.slo_counts(sqlite.around(), threshold) for threshold in (0.5, None))
    frame = sqlite.store.read.slo_series(sqlite.around(), 0.5, timedelta(minutes=5))

    assert [(each.total, each.bad) for each in (latency, availability)] == [(8, 1), (7, 0)]
    assert (frame["total"].sum(), frame["bad"].sum()) == (8, 1)


def test_without_a_threshold_only_failures_are_bad(sqlite: Site) -> None:
    sqlite.write([Request({"forward": 10**10})] * 7 + [Request({"forward": 5}, series=ERROR)] * 2)
    counts = sqlite.store.read.slo_counts(sqlite.around(), None)

    assert (counts.total, counts.bad, counts.bad_low, counts.bad_high) == (9, 2, 2, 2)


def test_without_requests_all_counts_are_zero(open_sqlite: OpenSite) -> None:
    counts = open_sqlite().store.read.slo_counts(open_sqlite().around(), 0.1)

    assert (counts.total, counts.bad, counts.last_at) == (0, 0, None)


def test_the_time_of_the_last_request_is_returned(sqlite: Site) -> None:
    sqlite.write([Request({"forward": 5}, NOON - 7000), Request({"forward": 5}, NOON - 33)])

    assert sqlite.store.read.slo_counts(sqlite.around(), 0.1).last_at == datetime.fromtimestamp(NOON - 40, UTC)


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
    series = one.store.read.slo_series(one.around(), threshold, step)
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


def test_without_bad_requests_the_result_has_its_columns(sqlite: Site) -> None:
    empty = sqlite.store.read.bad_over_time(sqlite.around(), 0.1, timedelta(minutes=5))
    sqlite.write([Request({"forward": 5})])

    assert list(empty.columns) == ["at", "bad", "unexplained"]
    assert len(empty) == 0
    assert sqlite.store.read.bad_over_time(sqlite.around(), 0.1, timedelta(minutes=5))["bad"].tolist() == [0]


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
            read.slo_counts(around, 0.2),
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
