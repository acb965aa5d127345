"""Smoothing of a breakdown: stages of neighbouring percentiles are averaged, and add up to the latency."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelens.analysis.breakdown import NO_REQUESTS, Measures, measures_of, smoothed

STAGES = ["queue", "forward", "overhead"]


def frame_of(shares: np.ndarray, total: np.ndarray, n: int) -> pd.DataFrame:
    """A breakdown with these shares by percentile and stage."""
    frame = pd.DataFrame(shares * total[:, None], columns=STAGES)
    return frame.assign(
        percentile=np.linspace(0, 0.9, len(total)), n=n, value_seconds=total, low_seconds=total, high_seconds=total
    )


@given(
    shares=st.lists(st.lists(st.floats(0.01, 1), min_size=3, max_size=3), min_size=1, max_size=40),
    requests=st.integers(0, 1000),
)
def test_stages_add_up_and_stay_between_their_neighbours(shares: list[list[float]], requests: int) -> None:
    """Smoothing moves time between stages only, and never beyond what some percentile has."""
    parts = np.array(shares) / np.sum(shares, axis=1, keepdims=True)
    total = np.linspace(0.01, 3, len(parts))
    made = smoothed(frame_of(parts, total, requests))
    stage_seconds = made[STAGES].to_numpy()

    assert stage_seconds.sum(axis=1) == pytest.approx(total)
    assert list(made["value_seconds"]) == list(total)
    assert (stage_seconds / total[:, None] <= parts.max(axis=0) + 1e-9).all()
    assert (stage_seconds / total[:, None] >= parts.min(axis=0) - 1e-9).all()


def test_a_stage_is_smoothed_where_few_requests_decide() -> None:
    """One percentile whose eight requests differ from all others is not a step in the stack."""
    shares = np.tile([0.6, 0.3, 0.1], (41, 1))
    shares[20] = [0.0, 0.9, 0.1]
    frame = smoothed(frame_of(shares, np.ones(41), 8))

    assert frame["queue"].iloc[20] > 0.45


def test_many_requests_outweigh_few_in_smoothing() -> None:
    """A percentile counts by how many requests it is the mean of."""
    frame = frame_of(np.tile([0.6, 0.3, 0.1], (41, 1)), np.ones(41), 1000)
    frame.loc[20, ["n", "queue", "forward"]] = [1, 0.0, 0.9]

    assert smoothed(frame)["queue"].iloc[20] == pytest.approx(0.6, rel=0.01)


def test_edges_of_many_requests_are_not_smoothed() -> None:
    """Where thousands of requests agree on an edge, it is one, and is shown."""
    shares = np.tile([0.6, 0.3, 0.1], (41, 1))
    shares[20] = [0.0, 0.9, 0.1]

    assert smoothed(frame_of(shares, np.ones(41), 10_000))["queue"].iloc[20] < 0.02


def test_an_empty_breakdown_stays_empty() -> None:
    """An empty breakdown has nothing to smooth."""
    frame = frame_of(np.zeros((0, 3)), np.zeros(0), 0)

    assert smoothed(frame).empty


@pytest.mark.parametrize(
    ("requests", "p50", "p99", "tail"),
    [(19, None, None, {}), (20, 0.1, None, {}), (999, 0.1, None, {}), (1000, 0.1, 0.4, {"queue": 0.3, "forward": 0.1})],
)
def test_a_percentile_is_known_with_ten_requests_beyond_it(
    requests: int, p50: float | None, p99: float | None, tail: dict[str, float]
) -> None:
    """The median needs 20 requests, and p99 with its stages 1,000; the stages of the median are always known."""
    found = measures_of(requests, 4, (0.1, 0.4), ({"forward": 0.1}, {"queue": 0.3, "forward": 0.1}))

    assert (found.p50, found.p99, found.tail_stages) == (p50, p99, tail)
    assert found.median_stages == {"forward": 0.1}
    assert found.waiting_share == (pytest.approx(0.75) if tail else None)
    assert found.error_ratio == 4 / requests


def test_without_requests_no_share_is_known() -> None:
    """Shares of zero requests are unknown, not zero."""
    assert (NO_REQUESTS.error_ratio, NO_REQUESTS.waiting_share) == (None, None)


def test_the_tail_wait_is_a_waiting_stage_that_is_large_at_p99_only() -> None:
    """A stage of work, a wait of every request, and a tail near the median are none."""
    median = {"forward": 0.1, "queue": 0.01}

    def wait(tail: dict[str, float], stages: dict[str, float] = median) -> str | None:
        return Measures(2000, 0, sum(stages.values()), sum(tail.values()), stages, tail).tail_wait

    assert wait({"forward": 0.1, "queue": 0.4}) == "queue"
    assert wait({"forward": 0.4, "queue": 0.1}) is None
    assert wait({"forward": 0.1, "queue": 0.3}) is None
    assert wait({"forward": 0.1, "queue": 0.6}, {"forward": 0.1, "queue": 0.03}) is None
    assert wait({}) is None
