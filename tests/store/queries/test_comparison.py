"""Comparison of two selections of requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from stagelens.analysis.comparison import compare_quantile
from stagelens.core.histogram import BATCH_SIZES, Histogram
from stagelens.core.names import BATCH_DURATION
from stagelens.store import Batch, Point
from tests.support.raw_requests import NOON, Request, Series, Site

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
