"""Latency breakdown, compared with the raw requests."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagelens.core.histogram import BATCH_SIZES, MAX_RELATIVE_ERROR, SCALE, Histogram, rank_of
from stagelens.core.names import BATCH_DURATION
from stagelens.core.request_histograms import RequestHistograms
from stagelens.store import Batch, Point, SeriesCaps
from tests.support.raw_requests import NOON, NS, SHOP, OpenSite, PointAggregator, Request, Series, Site, window_shares

PERCENTILES = (0.0, 0.5, 0.99, 1.0)
STAGES = ("forward", "queue", "preprocess", "rerank", "overhead")
HEAD = 5
REQUESTS = st.lists(
    st.builds(
        Request,
        st.dictionaries(st.sampled_from(STAGES), st.integers(10**6, 10**11), min_size=1),
        st.integers(NOON - 7200, NOON),
        st.sampled_from([Series("shop", "1"), Series("shop", "2"), Series("shop", "2", status="error")]),
    ),
    min_size=1,
    max_size=60,
)


def lognormal(n: int, seed: int = 1) -> list[Request]:
    random = np.random.default_rng(seed)
    spent = {
        "forward": random.lognormal(np.log(20e6), 0.2, n),
        "preprocess": random.lognormal(np.log(8e6), 0.4, n),
        "queue": random.lognormal(np.log(2e6), 0.8, n) * np.where(random.random(n) < 0.03, 60, 1),
        "overhead": random.lognormal(np.log(0.5e6), 0.3, n),
    }
    at = NOON - 1 - random.integers(0, 7000, n)
    return [Request({stage: int(spent[stage][row]) for stage in spent}, int(at[row])) for row in range(n)]


@settings(max_examples=8, deadline=None)
@given(requests=REQUESTS, quantile=st.floats(0, 1))
def test_the_value_is_the_order_statistic_with_the_stages_of_its_bounds(
    open_sqlite: OpenSite, requests: list[Request], quantile: float
) -> None:
    """The value is within the histogram's error of the order statistic and equals the sum of its stages.

    The shares are the means over the requests whose rank is near that of the percentile.
    """
    one = open_sqlite()
    one.write(requests)
    row = one.store.read.breakdown(one.around(), [quantile]).iloc[0]
    exact = sorted(request.seconds for request in requests)[rank_of(quantile, len(requests)) - 1]

    assert abs(row["value_seconds"] - exact) <= MAX_RELATIVE_ERROR * exact * (1 + 1e-9)
    assert row["low_seconds"] * (1 - 1e-12) <= exact <= row["high_seconds"] * (1 + 1e-12)
    assert abs(row.iloc[HEAD:].sum() - row["value_seconds"]) <= 1e-9 * row["value_seconds"]
    assert row.iloc[HEAD:].min() >= 0

    assert_window(row, requests, quantile)


def assert_window(row: pd.Series, requests: Sequence[Request], quantile: float, scale: int = SCALE) -> None:
    stages, seconds = [each.stages_ns for each in requests], [each.seconds for each in requests]
    n, expected = window_shares(stages, seconds, quantile, scale)
    found = {str(stage): seconds / row["value_seconds"] for stage, seconds in row.iloc[HEAD:].items()}

    assert row["n"] == n
    assert found == pytest.approx({stage: expected.get(stage, 0.0) for stage in found}, abs=2.0 ** -(scale + 1))


def test_tile_chart_and_table_show_the_same_number(sqlite: Site) -> None:
    sqlite.write(lognormal(3000))
    sqlite.store.maintain()
    read, chosen = sqlite.store.read, sqlite.between(NOON - 6400, NOON - 1000)
    step = chosen.end - chosen.start
    for quantile in PERCENTILES:
        estimate = read.latency(chosen).quantile(quantile)
        assert estimate is not None
        over_time = read.breakdown_over_time(chosen, quantile, step)
        values = {
            "breakdown": read.breakdown(chosen, [quantile])["value_seconds"].item(),
            "chart": over_time["value_seconds"].item(),
            "lines": read.quantiles_over_time(chosen, [quantile], step)[f"p{100 * quantile:g}"].item(),
            "compare": read.compare(chosen, chosen, quantile).attrs["b_value"],
        }

        assert values == dict.fromkeys(values, estimate.value)
        assert over_time.iloc[0, 3:].tolist() == pytest.approx(
            read.breakdown(chosen, [quantile]).iloc[0, HEAD:].tolist()
        )


@pytest.mark.parametrize("minutes", [1, 7, 60])
def test_a_step_of_a_chart_is_the_selection_of_that_step(open_sqlite: OpenSite, minutes: int) -> None:
    one, requests = open_sqlite(), lognormal(2000)
    one.write(requests)
    one.store.maintain()
    width = 60 * minutes
    window = one.between(NOON - 6990, NOON)
    frame = one.store.read.breakdown_over_time(window, 0.9, timedelta(seconds=width))
    for _, row in frame.iloc[:: max(1, len(frame) // 6)].iterrows():
        at = int(row["at"].timestamp())
        zoomed = one.store.read.breakdown(one.between(at, min(at - at % width + width, NOON)), [0.9])

        assert zoomed["value_seconds"].item() == row["value_seconds"]
        assert zoomed.attrs["requests"] == row["n"]
        assert zoomed.iloc[0, HEAD:].to_dict() == pytest.approx({stage: row[stage] for stage in zoomed.columns[HEAD:]})

    assert frame["n"].sum() == sum(request.at - request.at % 10 >= NOON - 6990 for request in requests)
    assert frame["at"].is_monotonic_increasing


def test_the_mean_over_time_is_exact(open_sqlite: OpenSite) -> None:
    one, requests = open_sqlite(), lognormal(500)
    one.write(requests)
    frame = one.store.read.breakdown_over_time(one.around(), None, timedelta(days=3))
    mean = math.fsum(request.seconds for request in requests) / len(requests)

    assert frame["value_seconds"].item() == pytest.approx(mean)
    assert frame["forward"].item() == pytest.approx(
        sum(request.stages_ns["forward"] for request in requests) / NS / len(requests), rel=1e-4
    )


def test_a_coarser_client_merges_with_the_others(open_sqlite: OpenSite) -> None:
    one, early, late = open_sqlite(), lognormal(300, seed=2), lognormal(300, seed=3)
    one.write([Request(each.stages_ns, NOON - 900) for each in early])
    one.write([Request(each.stages_ns, NOON - 120) for each in early])
    one.write([Request(each.stages_ns, NOON - 120) for each in late], scale=3)
    expected = Histogram(scale=3)
    for each in (*early, *early, *late):
        expected.record(each.seconds)
    fine = Histogram()
    for each in early:
        fine.record(each.seconds)
    whole = one.store.read.latency(one.around())
    lines = one.store.read.quantiles_over_time(one.around(), [0.9], timedelta(minutes=5))
    row = one.store.read.breakdown(one.around(), [0.9]).iloc[0]

    assert (whole.scale, whole.buckets) == (3, expected.buckets)
    assert lines["p90"].iloc[0] == fine.quantile(0.9).value  # type: ignore[union-attr] - there are requests
    assert row["value_seconds"] == expected.quantile(0.9).value  # type: ignore[union-attr] - there are requests
    assert row.iloc[HEAD:].sum() == pytest.approx(row["value_seconds"], rel=1e-9)


def test_coarser_stage_times_do_not_change_the_value(open_sqlite: OpenSite) -> None:
    one, requests = open_sqlite(), lognormal(400)
    fine = [point for point in PointAggregator().points(requests) if point.metric.endswith("request.duration")]
    coarse = [point for point in PointAggregator(2).points(requests) if point.metric.endswith("stage.time")]
    one.store.write([Batch("a", [*fine, *coarse])])
    row = one.store.read.breakdown(one.around(), [0.95]).iloc[0]
    whole = one.store.read.latency(one.around())

    assert row["value_seconds"] == whole.quantile(0.95).value  # type: ignore[union-attr] - there are requests
    assert row.iloc[HEAD:].sum() == pytest.approx(row["value_seconds"], rel=1e-9)
    assert_window(row, requests, 0.95, 2)


def test_time_without_stages_is_unattributed(sqlite: Site) -> None:
    points = [point for point in PointAggregator().points(lognormal(50)) if point.metric.endswith("request.duration")]
    sqlite.store.write([Batch("a", points)])
    frame = sqlite.store.read.breakdown(sqlite.around(), [0.5])

    assert frame.columns[HEAD:].tolist() == ["overhead"]
    assert frame["overhead"].item() == frame["value_seconds"].item() > 0


def test_requests_of_zero_duration_are_zero_everywhere(sqlite: Site) -> None:
    sqlite.write([Request({"forward": 0})] * 5 + [Request({"forward": 1_000_000})] * 5)
    frame = sqlite.store.read.breakdown(sqlite.around(), [0.1, 1.0])

    assert frame["value_seconds"].tolist() == [0.0, pytest.approx(0.001, rel=MAX_RELATIVE_ERROR)]
    assert frame["high_seconds"][0] == 1e-9
    assert frame["n"].tolist() == [5, 5]


def test_a_mixture_of_causes_is_reported(sqlite: Site) -> None:
    slow = [Request({"forward": 5_000_000, stage: 95_000_000}) for stage in ("queue", "queue", "queue", "load") * 5]
    sqlite.write([*slow, *[Request({"forward": 10_000_000})] * 80])
    frame = sqlite.store.read.dominants(sqlite.around(), [0.5, 0.95])

    assert frame.to_dict("list") == {
        "percentile": [0.5, 0.95, 0.95],
        "stage": ["forward", "queue", "load"],
        "share": [1.0, 0.75, 0.25],
    }


def test_heat_counts_every_request_in_its_cell(open_sqlite: OpenSite) -> None:
    one, requests = open_sqlite(), lognormal(800)
    one.write(requests)
    frame = one.store.read.heat(one.between(NOON - 7200, NOON), timedelta(minutes=10))
    bands = frame[["low_seconds", "high_seconds"]].drop_duplicates().sort_values("low_seconds")
    cell = frame.sort_values("n").iloc[-1]
    inside = Counter(
        request.dominant
        for request in requests
        if cell["low_seconds"] < request.seconds <= cell["high_seconds"]
        and 0 <= request.at - cell["at"].timestamp() < 600
    )

    assert frame["n"].sum() == len(requests)
    assert (bands["high_seconds"].to_numpy()[:-1] <= bands["low_seconds"].to_numpy()[1:]).all()
    assert (cell["n"], cell["dominant"]) == (inside.total(), inside.most_common(1)[0][0])
    assert cell["share"] == pytest.approx(inside[cell["dominant"]] / inside.total())


def test_a_cell_reports_its_mixed_causes(sqlite: Site) -> None:
    mixed = ["queue"] * 5 + ["load"] * 3 + ["forward"] * 2
    sqlite.write([Request({stage: 95_000_000, "overhead": 5_000_000}) for stage in mixed])
    sqlite.write([Request({"forward": 10_000_000})] * 80)
    sqlite.write([Request({"forward": 0})] * 4)
    frame = sqlite.store.read.heat(sqlite.around(), timedelta(minutes=10))

    assert frame[["n", "dominant", "share", "second", "second_share"]].to_numpy().tolist() == [
        [4, "forward", 1.0, "", 0.0],
        [80, "forward", 1.0, "", 0.0],
        [10, "queue", 0.5, "load", 0.3],
    ]


def test_stage_latency_is_the_distribution_of_each_stage(open_sqlite: OpenSite) -> None:
    one, requests = open_sqlite(), lognormal(200)
    one.write(requests)
    one.write([Request({"decode": 50_000_000})] * 3, scale=0)
    found = one.store.read.stage_latency(one.around())
    expected = Histogram()
    for request in requests:
        expected.record(request.stages_ns["queue"] / NS)

    assert list(found) == ["forward", "decode", "preprocess", "queue", "overhead"]
    assert (found["queue"].scale, found["queue"].buckets) == (5, expected.buckets)
    assert (found["decode"].scale, found["decode"].count) == (0, 3)


def test_model_run_times_are_grouped_by_batch_size(open_sqlite: OpenSite) -> None:
    one, counts = open_sqlite(series_caps=SeriesCaps(custom_stages=0)), RequestHistograms()
    sizes = [1, 2, 3, 4, 30, *(2**power for power in range(5, len(BATCH_SIZES.names)))]
    for size in sizes:
        counts.add_stream(BATCH_DURATION, BATCH_SIZES.bucket_of(size), 0.001 * size)
    points = [Point(SHOP, metric, key, NOON - 600, histogram) for metric, key, histogram in counts.histograms()]
    one.store.write([Batch("a", points), Batch("b", points)])
    before = one.store.read.batches(one.around())
    one.store.maintain()
    both = Histogram()
    for size in (2, 3):
        both.record(0.001 * size, 2)

    assert tuple(before) == tuple(name for name in BATCH_SIZES.names if name != "8-15")
    assert (before["2-3"].buckets, before["2-3"].count) == (both.buckets, 4)
    assert one.store.read.batches(one.around()) == before
    assert one.store.read.batches(one.around(service="bank")) == {}
