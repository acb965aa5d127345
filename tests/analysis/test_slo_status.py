"""Status of SLOs, of their alert tiers, and of services."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from stagelens.analysis.burn_rate import FAST, RECENT, AlertTier, Counts, ErrorBudget
from stagelens.analysis.policies import Severity, default_burn_rate_policy
from stagelens.analysis.slo_status import (
    URGENCY,
    Reason,
    RuleStatus,
    SloState,
    covered_share,
    missed_requests,
    most_urgent,
    rule_status,
    service_state,
    slo_state,
)

HOUR, DAY, MONTH = timedelta(hours=1), timedelta(days=1), timedelta(days=30)
PAGE, TICKET = AlertTier("page", 14.4, HOUR, FAST), AlertTier("ticket", 1.0, timedelta(days=3), timedelta(hours=6))
SOME, NONE = Counts(1000, 3), Counts(0, 0)
GUARD = default_burn_rate_policy().guard


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, "healthy"),
        ({"firing": (PAGE, TICKET)}, "burning"),
        ({"firing": (TICKET,)}, "at_risk"),
        ({"budget": ErrorBudget(0.0, 0.0)}, "at_risk"),
        # A bad week of a month can violate the objective with budget left; a few failures of a few requests do not.
        ({"counts": {RECENT: SOME, MONTH: Counts(1000, 11)}}, "at_risk"),
        ({"counts": {RECENT: SOME, MONTH: Counts(1000, 10)}}, "healthy"),
        ({"counts": {RECENT: SOME, MONTH: Counts(10, 1)}}, "healthy"),
        ({"counts": {RECENT: SOME, MONTH: Counts(1000, 250)}, "objective": 0.75}, "healthy"),
        ({"counts": {RECENT: NONE, MONTH: SOME}}, "no_data"),
        # Traffic that has stopped does not burn, although long windows still fire.
        ({"counts": {FAST: NONE, RECENT: SOME, MONTH: SOME}, "firing": (PAGE,)}, "no_data"),
        ({"counts": {FAST: NONE, RECENT: Counts(60, 30), MONTH: SOME}, "firing": (PAGE,)}, "burning"),
        # Without a request in the short window, nothing shows that a rule above its threshold in the long one recovers.
        ({"rules": [RuleStatus(PAGE, 20.0, None, fires=False)]}, "no_data"),
        ({"rules": [RuleStatus(PAGE, 20.0, None, fires=False)], "firing": (TICKET,)}, "no_data"),
        ({"rules": [RuleStatus(PAGE, 20.0, 0.0, fires=False)]}, "healthy"),
        # Services with little traffic often have an empty short window.
        ({"rules": [RuleStatus(PAGE, 0.5, None, fires=False)]}, "healthy"),
        # While the collector does not work, missing data is not recovery, and a firing tier may be outdated.
        ({"is_stale": True}, "stale"),
        ({"is_stale": True, "firing": (PAGE,)}, "stale"),
        ({"is_stale": True, "counts": {RECENT: NONE, MONTH: NONE}}, "stale"),
        # Incidents within a maintenance window are not notified, so the state needs no action.
        ({"in_maintenance": True}, "maintenance"),
        ({"in_maintenance": True, "firing": (PAGE,)}, "maintenance"),
        ({"in_maintenance": True, "counts": {RECENT: NONE, MONTH: SOME}}, "maintenance"),
        # Maintenance ends by the clock, a failure of the collector does not.
        ({"in_maintenance": True, "is_stale": True}, "stale"),
    ],
)
def test_each_state_has_its_cause(changes: dict[str, Any], state: str) -> None:
    healthy: dict[str, Any] = {
        "counts": {RECENT: SOME, MONTH: SOME},
        "firing": (),
        "budget": ErrorBudget(0.7, 7.0),
        "objective": 0.99,
        "window": MONTH,
        "guard": GUARD,
    }

    assert slo_state(**{**healthy, **changes}) == state


@pytest.mark.parametrize(
    ("age", "maintenance", "share"),
    [
        (3 * DAY, timedelta(0), 0.1),
        (60 * DAY, timedelta(0), 1.0),
        (60 * DAY, 15 * DAY, 0.5),
        (9 * DAY, 6 * DAY, 0.1),
        # A service has data for at least one time bucket of the store.
        (timedelta(0), timedelta(0), 10 / MONTH.total_seconds()),
        (DAY, 2 * DAY, 10 / MONTH.total_seconds()),
    ],
)
def test_maintenance_does_not_cover_the_window(age: timedelta, maintenance: timedelta, share: float) -> None:
    assert covered_share(age, MONTH, maintenance) == pytest.approx(share)


@pytest.mark.parametrize(
    ("long", "short", "fires", "state"),
    [
        (20.0, 20.0, True, "firing"),
        # An open incident continues to fire below its threshold.
        (13.0, 13.0, True, "firing"),
        (20.0, 20.0, False, "too_few"),
        (14.3, 14.4, False, "short_only"),
        (14.4, 14.3, False, "long_only"),
        (14.3, 14.3, False, "quiet"),
        (20.0, None, False, "no_data"),
        (None, None, False, "no_data"),
    ],
)
def test_the_state_of_a_tier_shows_both_windows(
    long: float | None, short: float | None, fires: bool, state: str
) -> None:
    assert RuleStatus(PAGE, long, short, fires).state == state


def test_the_status_of_a_tier_has_its_burn_rates() -> None:
    counts = {HOUR: Counts(1000, 50), FAST: Counts(100, 40)}
    soon = rule_status(PAGE, (), counts, 0.99, GUARD)

    assert (soon.long_burn, soon.short_burn) == (pytest.approx(5), pytest.approx(40))
    assert (soon.fires, soon.pending) == (False, True)
    assert rule_status(PAGE, (PAGE,), {HOUR: NONE, FAST: NONE}, 0.99, GUARD) == RuleStatus(PAGE, None, None, fires=True)


@pytest.mark.parametrize(
    ("slo", "incident", "pending", "slower", "state", "reason"),
    [
        (None, None, False, False, "", "none"),
        ("healthy", None, False, False, "healthy", "slo"),
        ("healthy", None, False, True, "at_risk", "release"),
        ("healthy", None, True, True, "at_risk", "pending"),
        ("healthy", "ticket", True, True, "at_risk", "incident"),
        ("healthy", "page", True, True, "burning", "incident"),
        ("at_risk", "ticket", False, True, "at_risk", "slo"),
        ("at_risk", "page", False, True, "burning", "incident"),
        ("burning", "page", True, True, "burning", "slo"),
        ("stale", "page", False, False, "burning", "incident"),
        ("stale", None, False, False, "stale", "slo"),
        ("stale", None, False, True, "at_risk", "release"),
        ("maintenance", None, True, True, "maintenance", "slo"),
        ("maintenance", "ticket", True, True, "at_risk", "incident"),
        ("no_data", None, False, False, "no_data", "slo"),
        (None, "page", False, True, "burning", "incident"),
        (None, "ticket", False, False, "at_risk", "incident"),
    ],
)
def test_the_most_severe_reason_determines_the_service(  # noqa: PLR0917 - the columns of the table
    slo: SloState | None, incident: Severity | None, pending: bool, slower: bool, state: str, reason: Reason
) -> None:
    assert service_state(slo, incident, is_pending=pending, is_slower=slower) == (state, reason)


def test_the_most_urgent_state_is_the_first_in_the_order() -> None:
    order = ["burning", "at_risk", "stale", "healthy", "maintenance", "no_data"]

    assert sorted(URGENCY, key=lambda state: URGENCY[state]) == order
    assert [most_urgent(order[place:]) for place in range(len(order))] == order
    assert most_urgent(["no_data", "healthy", "maintenance"]) == "healthy"
    assert most_urgent([]) == ""


def test_a_service_is_silent_after_five_minutes_with_twenty_requests_missed() -> None:
    hour = timedelta(hours=1)

    assert missed_requests(timedelta(minutes=5), hour, 240) == pytest.approx(20)
    assert missed_requests(timedelta(minutes=5), hour, 239) is None
    assert missed_requests(timedelta(minutes=4, seconds=59), hour, 10_000) is None
