"""Pooling of requests over routes or models."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelens.analysis.regression.scoring import total_histograms
from stagelens.analysis.regression.statistic import END_TO_END, MinuteHistograms
from stagelens.analysis.regression.strata import Strata, learn_strata, pool

STAGES = ("forward", "queue")
MINUTES = 5


def requests(rng: np.random.Generator, number: int, at: int) -> MinuteHistograms:
    """Return *number* requests a minute with latencies around bucket *at*, whose queue is around bucket 10."""
    index = np.arange(-100, 300)
    total, forward, queue = (np.zeros((MINUTES, len(index)), np.int64) for _ in range(3))
    for minute in range(MINUTES):
        for counts, middle in ((total, at), (forward, at - 5), (queue, 10)):
            buckets = np.clip(np.rint(rng.normal(middle, 12, number)).astype(int) + 100, 0, len(index) - 1)
            counts[minute] += np.bincount(buckets, minlength=len(index))
    return MinuteHistograms(1_000, index, total, STAGES, np.stack((forward, queue)))


def together(parts: Mapping[str, MinuteHistograms]) -> MinuteHistograms:
    first = next(iter(parts.values()))
    total = sum((part.total for part in parts.values()), np.zeros_like(first.total))
    own = sum((part.own for part in parts.values()), np.zeros_like(first.own))
    return MinuteHistograms(first.start, first.index, total, STAGES, own)


def p95(minutes: MinuteHistograms) -> int:
    sums = minutes.total.sum(axis=0).cumsum()
    return int(minutes.index[np.searchsorted(sums, 0.95 * sums[-1])])


@pytest.fixture
def parts(rng: np.random.Generator) -> dict[str, MinuteHistograms]:
    """Return the requests of a fast, a slow and a rare route."""
    return {"/fast": requests(rng, 700, 0), "/slow": requests(rng, 300, 90), "/rare": requests(rng, 5, 200)}


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(5)


def test_latencies_are_relative_to_those_of_the_route(parts: dict[str, MinuteHistograms]) -> None:
    strata = learn_strata("route", together(parts), parts, {"queue"})

    assert strata is not None
    assert strata.dimension == "route"
    assert set(strata.shifts) == {"/fast", "/slow"}
    assert set(strata.shifts["/fast"]) == {END_TO_END, "forward"}
    assert strata.shifts["/slow"][END_TO_END] - strata.shifts["/fast"][END_TO_END] == pytest.approx(90, abs=2)


def test_similar_routes_are_not_pooled(rng: np.random.Generator) -> None:
    alike = {"/a": requests(rng, 500, 0), "/b": requests(rng, 500, 3)}

    assert learn_strata("route", together(alike), alike, ()) is None
    assert learn_strata("route", alike["/a"], {"/a": alike["/a"]}, ()) is None
    assert learn_strata("route", alike["/a"], {}, ()) is None


def test_another_mix_changes_nothing(rng: np.random.Generator, parts: dict[str, MinuteHistograms]) -> None:
    strata = learn_strata("route", together(parts), parts, {"queue"})
    mixed = {"/fast": requests(rng, 300, 0), "/slow": requests(rng, 700, 90)}
    assert strata is not None

    assert p95(pool(strata, together(mixed), mixed)) == pytest.approx(p95(pool(strata, together(parts), parts)), abs=2)
    assert p95(together(mixed)) > p95(together(parts)) + 3


def test_a_change_of_all_routes_is_a_change_of_the_pooled_requests(
    rng: np.random.Generator, parts: dict[str, MinuteHistograms]
) -> None:
    strata = learn_strata("route", together(parts), parts, {"queue"})
    slower = {"/fast": requests(rng, 700, 8), "/slow": requests(rng, 300, 98)}
    assert strata is not None

    usual, now = (p95(pool(strata, together(each), each)) for each in (parts, slower))
    assert now - usual == pytest.approx(8, abs=1)


def test_minutes_without_requests_stay_without(parts: dict[str, MinuteHistograms]) -> None:
    strata = learn_strata("route", together(parts), parts, {"queue"})
    none = MinuteHistograms(9, np.zeros(0, np.int64), np.zeros((2, 0), int), STAGES, np.zeros((2, 2, 0), int))
    assert strata is not None

    assert pool(strata, none, {"/fast": none}) is none
    assert pool(strata, parts["/fast"], {"/fast": none, "/gone": parts["/slow"]}) is parts["/fast"]


@given(shifts=st.dictionaries(st.sampled_from(["/fast", "/slow", "/gone"]), st.integers(-300, 300)))
def test_no_request_is_lost(shifts: dict[str, int]) -> None:
    rng = np.random.default_rng(3)
    parts = {"/fast": requests(rng, 20, 0), "/slow": requests(rng, 9, 90)}
    whole = together(parts)
    found = pool(
        Strata("model", {value: {END_TO_END: by, "forward": -by} for value, by in shifts.items()}), whole, parts
    )

    assert (found.total.sum(axis=1) == whole.total.sum(axis=1)).all()
    assert (found.own.sum(axis=2) == whole.own.sum(axis=2)).all()
    assert min(found.total.min(), found.own.min()) >= 0
    own = total_histograms([found])[1]
    assert own["queue"].buckets == total_histograms([whole])[1]["queue"].buckets
