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


def test_a_short_slo_never_alerts_on_a_budget_that_lasts() -> None:
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


def test_an_error_ratio_below_the_threshold_never_fires() -> None:

    assert burn_rate.time_to_fire(TIERS[0], 0.999, 0.014) is None
    assert not burn_rate.is_firing(TIERS[0], windows_of(1000, 0.014, timedelta(days=30)), 0.999, POLICY.guard)


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
    ("seen", "expected"),
    [
        (timedelta(seconds=20), []),
        (timedelta(seconds=45), [timedelta(minutes=5)]),
        (timedelta(minutes=2), [timedelta(minutes=5), timedelta(minutes=30)]),
        (timedelta(hours=6), [timedelta(minutes=5), timedelta(minutes=30), timedelta(hours=6), timedelta(hours=6)]),
    ],
)
def test_unobserved_time_counts_as_good(seen: timedelta, expected: list[timedelta]) -> None:
    counts = dict.fromkeys(LENGTHS, Counts(100, 100))

    assert [tier.short for tier in firing(0.99, counts, seen=seen)] == expected


def test_two_failures_of_a_new_service_wait_for_the_whole_short_window() -> None:
    counts = dict.fromkeys(LENGTHS, Counts(2, 2))
    found = {minutes: firing(0.99, counts, seen=timedelta(minutes=minutes)) for minutes in (4, 5)}

    assert (found[4], [tier.short for tier in found[5]]) == ([], [timedelta(minutes=5)])


def test_a_firing_tier_continues_after_a_budget_reset() -> None:
    counts = dict.fromkeys(LENGTHS, Counts(100, 100))

    assert firing(0.99, counts, already=True, seen=timedelta(0))


def test_27_times_at_low_traffic_is_not_missed() -> None:
    rate, error_ratio = 10 / 3600, 0.027
    hours = next(
        hours
        for hours in range(1, 24 * 30)
        if any(tier.severity == "page" for tier in firing(0.999, windows_of(rate, error_ratio, timedelta(hours=hours))))
    )
    spent = 27 * hours / (30 * 24)

    assert spent < 1
    assert all(
        tier.long > timedelta(hours=6) for tier in firing(0.999, windows_of(rate, error_ratio, timedelta(hours=hours)))
    )


def test_27_times_pages_within_minutes_where_there_is_traffic() -> None:
    elapsed = burn_rate.time_to_fire(TIERS[0], 0.999, 0.027)
    assert elapsed is not None

    assert elapsed < timedelta(minutes=33)
    assert firing(0.999, windows_of(1, 0.027, elapsed + timedelta(minutes=1)))[0].burn == pytest.approx(14.4)


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


def test_the_first_minutes_of_a_service_cost_their_share_of_the_budget() -> None:
    counts = Counts(6000, 1800)
    left = burn_rate.remaining_budget(counts, 0.99, covered=timedelta(minutes=10) / MONTH).left

    assert 1 - left == pytest.approx(30 * 10 / (30 * 24 * 60))


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
