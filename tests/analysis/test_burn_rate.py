"""Burn rates: the workbook's table, its formulas, the guard, and what must always hold."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelens.analysis import burn_rate
from stagelens.analysis.burn_rate import AlertTier, Counts
from stagelens.analysis.policies import default_burn_rate_policy

MONTH = timedelta(days=30)
POLICY = default_burn_rate_policy()
objectives = st.floats(0.5, 0.99999)
TIERS = burn_rate.policy_tiers(POLICY, MONTH)
LENGTHS = burn_rate.needed_windows(POLICY, TIERS)


def windows_of(rate: float, error_ratio: float, elapsed: timedelta) -> dict[timedelta, Counts]:
    """Return the counts after *elapsed* of a constant *error_ratio* that followed a clean month, at *rate* a second."""
    return {
        length: Counts(rate * length.total_seconds(), rate * min(elapsed, length).total_seconds() * error_ratio)
        for length in LENGTHS
    }


def firing(
    objective: float, counts: dict[timedelta, Counts], *, already: bool = False, seen: timedelta = timedelta(days=30)
) -> list[AlertTier]:
    return list(burn_rate.firing_tiers(TIERS, counts, objective, POLICY, already=already, seen=seen))


def test_the_tiers_of_a_month_equal_the_workbook() -> None:
    assert [(tier.severity, round(tier.burn, 9), tier.long, tier.short) for tier in TIERS] == [
        ("page", 14.4, timedelta(hours=1), timedelta(minutes=5)),
        ("page", 6.0, timedelta(hours=6), timedelta(minutes=30)),
        ("page", 6.0, timedelta(days=3), timedelta(hours=6)),
        ("ticket", 1.0, timedelta(days=3), timedelta(hours=6)),
    ]
    # A short SLO never alerts on a budget that lasts.
    assert min(tier.burn for tier in burn_rate.policy_tiers(POLICY, timedelta(days=7))) == 1.0


@pytest.mark.parametrize(
    ("objective", "error_ratio"), [(0.999, 1.0), (0.999, 0.1), (0.99, 0.5), (0.99, 0.2), (0.999, 0.0144)]
)
def test_the_fast_tier_fires_by_the_formula(objective: float, error_ratio: float) -> None:
    expected = burn_rate.time_to_fire(TIERS[0], objective, error_ratio)
    assert expected is not None
    step = timedelta(seconds=1)
    before = windows_of(1000, error_ratio, expected - step)
    after = windows_of(1000, error_ratio, expected + step)

    assert not burn_rate.is_firing(TIERS[0], before, objective, POLICY.guard)
    assert burn_rate.is_firing(TIERS[0], after, objective, POLICY.guard)
    assert burn_rate.time_to_fire(TIERS[0], objective, 14 * (1 - objective)) is None


@pytest.mark.parametrize("position", [0, 1, 2])
def test_a_tier_resets_when_its_short_window_is_clean(position: int) -> None:
    tier = TIERS[position]
    long = Counts(1e6, 0.5e6)
    over, going_on = {tier.long: long, tier.short: Counts(1e4, 0)}, {tier.long: long, tier.short: Counts(1e4, 5e3)}

    assert not burn_rate.is_firing(tier, over, 0.999, POLICY.guard)
    assert burn_rate.is_firing(tier, going_on, 0.999, POLICY.guard)


def test_one_failure_does_not_page() -> None:
    counts = windows_of(10 / 3600, 0.0, timedelta(0))
    counts = {length: Counts(max(1, round(window.total)), 1) for length, window in counts.items()}

    assert burn_rate.burn_rate(1, 10, 0.999) == pytest.approx(100)
    assert firing(0.999, counts) == []


def test_a_total_outage_at_low_traffic_pages() -> None:
    counts = {length: Counts(60, 2) for length in LENGTHS}
    counts[timedelta(minutes=5)] = Counts(2, 2)
    counts[timedelta(hours=1)] = Counts(10, 2)

    assert [tier.long for tier in firing(0.999, counts)] == [timedelta(hours=1)]


@pytest.mark.parametrize(
    ("failed", "minutes", "shorts"),
    [
        (100, 1 / 3, []),
        (100, 3 / 4, [5]),
        (100, 2, [5, 30]),
        (100, 360, [5, 30, 360, 360]),
        # Two failures wait for the whole short window.
        (2, 4, []),
        (2, 5, [5]),
    ],
)
def test_unobserved_time_counts_as_good(failed: int, minutes: float, shorts: list[int]) -> None:
    counts = dict.fromkeys(LENGTHS, Counts(failed, failed))

    found = firing(0.99, counts, seen=timedelta(minutes=minutes))
    assert [tier.short / timedelta(minutes=1) for tier in found] == shorts
    assert firing(0.99, counts, already=True, seen=timedelta(0))


def test_slow_tiers_stop_after_an_outage() -> None:
    counts = windows_of(100, 1.0, timedelta(hours=1))
    for length in (timedelta(minutes=5), timedelta(minutes=30), timedelta(hours=1)):
        counts[length] = Counts(counts[length].total, 0)
    slow = TIERS[-1]

    assert burn_rate.is_firing(slow, counts, 0.999, POLICY.guard)
    assert firing(0.999, counts) == []


def test_missing_requests_at_low_traffic_do_not_resolve() -> None:
    counts = windows_of(10 / 3600, 0.027, timedelta(days=3))
    counts[timedelta(minutes=30)] = Counts(5, 0)

    assert "ticket" in {tier.severity for tier in firing(0.999, counts)}


def test_a_firing_tier_continues_just_below_the_threshold() -> None:
    counts = windows_of(1000, 0.0135, timedelta(hours=1))

    assert TIERS[0] not in firing(0.999, counts)
    assert TIERS[0] in firing(0.999, counts, already=True)


def test_an_unreachable_tier_is_omitted() -> None:
    assert [burn_rate.is_reachable(tier, 0.9) for tier in TIERS] == [False, True, True, True]
    assert all(burn_rate.is_reachable(tier, 0.99) for tier in TIERS)


@given(objective=objectives, total=st.integers(0, 10**9), share=st.floats(0, 1))
def test_a_burn_rate_is_bounded(objective: float, total: int, share: float) -> None:
    rate = burn_rate.burn_rate(share * total, total, objective)

    assert 0 <= rate <= 1 / (1 - objective) * (1 + 1e-9)
    assert total or rate == 0


@given(
    objective=objectives,
    totals=st.lists(st.integers(0, 10**6), min_size=7, max_size=7),
    shares=st.lists(st.floats(0, 1), min_size=7, max_size=7),
    position=st.integers(0, 6),
    more=st.integers(0, 1000),
)
def test_more_bad_requests_never_silence_a_tier(
    objective: float, totals: list[int], shares: list[float], position: int, more: int
) -> None:
    counts = {
        length: Counts(total, share * total) for length, total, share in zip(LENGTHS, totals, shares, strict=False)
    }
    length = LENGTHS[position % len(LENGTHS)]
    total, bad = counts[length].total, counts[length].bad
    worse = {**counts, length: Counts(total, min(total, bad + more))}

    before = {tier for tier in TIERS if burn_rate.is_firing(tier, counts, objective, POLICY.guard)}
    after = {tier for tier in TIERS if burn_rate.is_firing(tier, worse, objective, POLICY.guard)}
    assert before <= after


@given(objective=objectives, total=st.integers(1, 10**9), share=st.floats(0, 1), covered=st.floats(0.01, 1))
def test_budget_and_bad_requests_left_agree(objective: float, total: int, share: float, covered: float) -> None:
    left = burn_rate.remaining_budget(Counts(total, share * total), objective, covered=covered)
    allowed = total * (1 - objective) / covered

    assert left.left <= 1
    assert left.left * allowed == pytest.approx(left.bad_left, rel=1e-6, abs=1e-5)


@pytest.mark.parametrize(
    ("left", "rate", "expected"),
    [
        (1.0, 1.0, MONTH),
        (0.5, 14.4, MONTH / 28.8),
        (0.0, 3.0, timedelta(0)),
        (-2.0, 0.0, timedelta(0)),
        (0.3, 0.0, None),
        (1.0, 0.001, None),
    ],
)
def test_the_budget_exhaustion_time_follows_the_burn_rate(left: float, rate: float, expected: timedelta | None) -> None:
    got = burn_rate.exhausted_in(left, rate, MONTH)

    assert got == (pytest.approx(expected, abs=timedelta(seconds=1)) if expected is not None else None)
