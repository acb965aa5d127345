"""Comparison of two selections of requests, and percentiles with a faster stage compared with a recomputation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from stagelens.analysis.comparison import compare_quantile
from stagelens.core.histogram import BATCH_SIZES, MAX_RELATIVE_ERROR, Histogram, rank_of
from stagelens.core.names import BATCH_DURATION
from stagelens.store import Batch, Point
from stagelens.store.queries.comparison import LatencyGroups, split_stage_time
from tests.support.raw_requests import NOON, OpenSite, Request, Series, Site

A, B = Series("shop", "1"), Series("shop", "2")


def lognormal(n: int, series: Series, *, median: float = 0.05, seed: int = 1) -> list[Request]:
    times = np.random.default_rng(seed).lognormal(np.log(median * 1e9), 0.4, n)
    return [Request({"forward": int(time)}, series=series) for time in times]


def test_a_comparison_names_the_slower_stage(sqlite: Site) -> None:
    sqlite.write([Request({"forward": 80_000_000, "queue": 20_000_000})] * 20)
    later = Series("shop", "2")
    sqlite.write([Request({"forward": 60_000_000, "queue": 240_000_000}, series=later)] * 30)
    frame = sqlite.store.read.compare(sqlite.around(version="1"), sqlite.around(version="2"), 0.99)

    assert frame["stage"].tolist() == ["queue", "forward"]
    assert frame["share"].sum() == pytest.approx(1.0)
    assert frame["delta_seconds"].tolist() == pytest.approx([0.22, -0.02], rel=0.03)
    assert (frame.attrs["a_n"], frame.attrs["b_n"]) == (20, 30)


def test_the_ratio_comes_with_its_interval(sqlite: Site) -> None:
    sqlite.write([*lognormal(4000, A), *lognormal(4000, B, median=0.1, seed=2)])
    read, a, b = sqlite.store.read, sqlite.around(version="1"), sqlite.around(version="2")
    there, back = read.compare(a, b, 0.95).attrs, read.compare(b, a, 0.95).attrs
    expected = compare_quantile(read.latency(a), read.latency(b), 0.95)

    assert (there["ratio"], there["ratio_low"], there["ratio_high"]) == (
        expected.ratio,
        expected.ratio_low,
        expected.ratio_high,
    )
    assert there["ratio_low"] < 2.0 < there["ratio_high"]
    assert there["ratio_low"] * back["ratio_high"] == pytest.approx(1.0)


def test_without_requests_there_is_no_ratio_or_mix(sqlite: Site) -> None:
    sqlite.write(lognormal(50, A))
    found = sqlite.store.read.compare(sqlite.around(version="1"), sqlite.around(version="2"), 0.9)

    assert found["stage"].tolist() == ["forward"]
    assert found.attrs["a_value"] > 0
    assert [found.attrs[name] for name in ("b_value", "ratio", "ratio_low", "ratio_high", "b_n")] == [None] * 4 + [0]
    assert sqlite.store.read.mix(sqlite.around(version="1"), sqlite.around(version="2")).empty


def spread(version: str, counts: dict[tuple[str, str, str], int]) -> list[Request]:
    return [
        Request({"forward": 1_000_000}, series=Series("shop", version, route=route, device=device, status=status))
        for (route, device, status), n in counts.items()
        for _ in range(n)
    ]


def batched(series: Series, sizes: Sequence[int]) -> list[Point]:
    points: dict[str, Point] = {}
    for size in sizes:
        point = points.setdefault(
            BATCH_SIZES.bucket_of(size),
            Point(series, BATCH_DURATION, BATCH_SIZES.bucket_of(size), NOON - 600, Histogram()),
        )
        point.histogram.record(0.01 * size)
    return list(points.values())


def test_the_mix_names_changed_dimensions(sqlite: Site) -> None:
    sqlite.write(spread("1", {("/buy", "cpu", "ok"): 800, ("/list", "cpu", "ok"): 150, ("/list", "cpu", "error"): 50}))
    sqlite.write(spread("2", {("/buy", "cpu", "ok"): 300, ("/list", "cpu", "ok"): 50, ("/new", "cpu", "ok"): 150}))
    sqlite.store.write(
        [Batch("sizes", batched(A, [1] * 60 + [8] * 40)), Batch("more", batched(B, [1] * 20 + [9] * 80))]
    )
    found = sqlite.store.read.mix(sqlite.around(version="1"), sqlite.around(version="2"))
    rows = {str(dimension): values for dimension, *values in found.to_numpy().tolist()}

    assert list(rows) == ["route", "model", "status", "device", "batch"]
    assert rows["route"] == ["/new", 0.0, *[pytest.approx(0.3)] * 3, True]
    assert rows["batch"][:3] == ["8-15", 0.4, 0.8]
    assert rows["device"] == ["cpu", 1.0, 1.0, 0.0, 0.0, False]
    assert {dimension: values[-1] for dimension, values in rows.items()} == {
        "route": True,
        "model": False,
        "status": True,
        "device": False,
        "batch": True,
    }


@pytest.mark.parametrize(("n", "changed"), [(20, False), (2000, True)])
def test_a_mix_difference_of_few_requests_is_not_significant(sqlite: Site, n: int, changed: bool) -> None:
    for version, share in (("1", 0.5), ("2", 0.6), ("3", 0.51)):
        sqlite.write(spread(version, {("/a", "", "ok"): int(n * share), ("/b", "", "ok"): n - int(n * share)}))
    first = sqlite.around(version="1")
    found = [sqlite.store.read.mix(first, replace(first, version=version)).iloc[0] for version in ("2", "3")]

    assert [row["changed"] for row in found] == [changed, False]


PERCENTILES = (0.0, 0.5, 0.9, 0.99, 0.999, 1.0)
STAGES = ("forward", "queue", "overhead")


@st.composite
def groups(draw: st.DrawFn) -> LatencyGroups:
    latency = np.array(sorted(draw(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=30, unique=True))))
    shares = draw(arrays.arrays(np.float64, len(latency), elements=st.floats(0, 1)))
    requests = draw(arrays.arrays(np.int64, len(latency), elements=st.integers(1, 1000)))
    return LatencyGroups(latency, latency * shares, requests)


def floored(made: LatencyGroups, floor: float) -> list[float]:
    return made.quantiles(np.minimum(made.spent, floor), PERCENTILES)


@given(made=groups(), floor=st.floats(0, 1e3))
def test_the_what_if_is_the_order_statistic_of_changed_requests(made: LatencyGroups, floor: float) -> None:
    moved = made.latency - (made.spent - np.minimum(made.spent, floor))
    ordered = np.sort(np.repeat(moved, made.requests))

    assert floored(made, floor) == [float(ordered[rank_of(quantile, len(ordered)) - 1]) for quantile in PERCENTILES]


@given(made=groups(), data=st.data(), usual=st.floats(0, 1e3))
def test_stage_time_of_a_bucket_is_split_without_loss(made: LatencyGroups, data: st.DataObject, usual: float) -> None:
    dominated = np.array([data.draw(st.integers(0, int(n))) for n in made.requests])
    others = made.requests - dominated
    in_others, in_dominated = split_stage_time(made.spent, made.latency, made.requests, dominated, usual)
    together = others * in_others + dominated * in_dominated

    assert together == pytest.approx(made.spent * made.requests, rel=1e-9, abs=1e-12)
    for spent in (in_others, in_dominated):
        assert (spent >= -1e-9 * made.latency).all()
        assert (spent <= made.latency * (1 + 1e-9)).all()
    assert (in_others <= in_dominated + 1e-9 * made.latency).all()


REQUESTS = st.lists(
    st.builds(
        Request,
        st.dictionaries(st.sampled_from(STAGES), st.integers(1_000_000, 10**10), min_size=1),
        st.integers(NOON - 7200, NOON - 1),
    ),
    min_size=1,
    max_size=40,
)


@settings(max_examples=4, deadline=None)
@given(requests=REQUESTS, factor=st.floats(0, 1))
def test_unchanged_percentiles_equal_the_pages(open_sqlite: OpenSite, requests: list[Request], factor: float) -> None:
    one = open_sqlite()
    one.write(requests)
    one.store.maintain()
    frame = one.store.read.whatif(one.around(), "queue", PERCENTILES, factor=factor)
    shown = one.store.read.breakdown(one.around(), PERCENTILES)
    before, after, ceiling = (frame[f"{name}_seconds"] for name in ("before", "after", "ceiling"))

    assert before.tolist() == shown["value_seconds"].tolist()
    assert (after <= before * (1 + 1e-12)).all()
    assert (ceiling <= after * (1 + 1e-12)).all()
    assert (ceiling >= -1e-12).all()
    assert frame.attrs == {"requests": len(requests), "floor_seconds": None}


def service(n: int) -> list[Request]:
    random = np.random.default_rng(7)
    forward = random.lognormal(np.log(20e6), 0.3, n) * np.where(random.random(n) < 1 / 30, 6, 1)
    queue = random.lognormal(np.log(2e6), 0.5, n) * np.where(random.random(n) < 0.1, 40, 1)
    return [Request({"forward": int(forward[row]), "queue": int(queue[row])}) for row in range(n)]


@pytest.mark.parametrize("quantile", [0.5, 0.9, 0.99])
def test_the_what_if_is_close_to_the_recomputed_percentile(open_sqlite: OpenSite, quantile: float) -> None:
    one, requests = open_sqlite(), service(8000)
    one.write(requests)
    made = one.store.read.whatif(one.around(), "queue", [quantile])
    found = float(made["after_seconds"].item())
    floor = float(np.median([request.stages_ns["queue"] for request in requests])) / 1e9
    faster = sorted(request.seconds - max(request.stages_ns["queue"] / 1e9 - floor, 0.0) for request in requests)
    exact = faster[rank_of(quantile, len(faster)) - 1]
    row = one.store.read.breakdown(one.around(), [quantile]).iloc[0]
    subtracted = row["value_seconds"] - max(row["queue"] - floor, 0.0)

    assert made.attrs["floor_seconds"] == pytest.approx(floor, rel=2 * MAX_RELATIVE_ERROR)
    assert found == pytest.approx(exact, rel=0.1)
    assert quantile < 0.99 or subtracted < 0.6 * exact


def test_coarser_stage_times_still_count(sqlite: Site) -> None:
    sqlite.write(
        [Request({"forward": 10_000_000 * step, "queue": 30_000_000 * step}) for step in range(1, 50)], scale=2
    )
    sqlite.write(
        [Request({"forward": 10_000_000 * step, "queue": 30_000_000 * step}) for step in range(1, 50)], scale=5
    )
    frame = sqlite.store.read.whatif(sqlite.around(), "queue", [0.5, 0.9], factor=0.0)

    assert (frame["ceiling_seconds"] / frame["before_seconds"]).tolist() == pytest.approx([0.25, 0.25], rel=1e-3)
    assert frame["after_seconds"].tolist() == frame["ceiling_seconds"].tolist()


def test_a_stage_without_requests_changes_nothing(sqlite: Site) -> None:
    sqlite.write([Request({"forward": 1_000_000})] * 5 + [Request({"forward": 0})] * 5)
    read = sqlite.store.read
    nothing = read.whatif(sqlite.around(service="bank"), "queue", [0.5])
    same = read.whatif(sqlite.around(), "decode", [0.1, 0.9])
    none = read.whatif(sqlite.around(), "forward", [0.1, 0.9], factor=0.0)

    assert (len(nothing), nothing.columns.tolist()[0], nothing.attrs["requests"]) == (0, "percentile", 0)
    assert same["before_seconds"].tolist() == same["after_seconds"].tolist() == same["ceiling_seconds"].tolist()
    assert same.attrs["floor_seconds"] is None
    assert none["after_seconds"].tolist() == [0.0, 0.0]
