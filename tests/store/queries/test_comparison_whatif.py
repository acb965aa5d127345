"""Percentiles with a faster stage, compared with a recomputation from requests."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from stagelens.core.histogram import MAX_RELATIVE_ERROR, rank_of
from stagelens.store.queries.comparison import LatencyGroups, split_stage_time
from tests.support.raw_requests import NOON, OpenSite, Request, Site

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
def test_the_what_if_is_between_no_stage_and_unchanged_latency(made: LatencyGroups, floor: float) -> None:
    before, after = made.quantiles(made.spent, PERCENTILES), floored(made, floor)
    ceiling = floored(made, 0.0)
    dust = 1e-12 * made.latency.max()

    for lowest, found, highest in zip(ceiling, after, before, strict=True):
        assert -dust <= lowest <= found + dust
        assert found <= highest + dust


@given(made=groups())
def test_a_floor_above_all_changes_nothing(made: LatencyGroups) -> None:
    ordered = np.repeat(made.latency, made.requests)
    exact = [float(ordered[rank_of(quantile, len(ordered)) - 1]) for quantile in PERCENTILES]

    assert floored(made, float(made.spent.max())) == made.quantiles(made.spent, PERCENTILES) == exact


@given(made=groups(), lower=st.floats(0, 1e3), higher=st.floats(0, 1e3))
def test_a_lower_floor_is_never_slower(made: LatencyGroups, lower: float, higher: float) -> None:
    fast, slow = (np.array(floored(made, floor)) for floor in sorted((lower, higher)))
    dust = 1e-12 * made.latency.max()

    assert (fast <= slow + dust).all()
    assert (np.diff(fast) >= 0).all()


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
