"""Record of past alerts: outcomes from what people did, precision, and the stricter search that keeps the budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from stagelens.alerts.delivery.message import Finding
from stagelens.alerts.incidents.lifecycle import IncidentRecord, save_incident
from stagelens.alerts.incidents.silences import create_silence
from stagelens.alerts.objectives.slo_file import ALL_SERVICES
from stagelens.alerts.regression.record import AlertCounts, AlertRecord, PastAlert, count_alerts, read_record
from stagelens.analysis.regression.policy import default_watch_policy
from stagelens.core.histogram import Histogram
from stagelens.core.names import REQUEST_DURATION
from stagelens.store import Batch, Point, Series, Store

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
POLICY = default_watch_policy().record
BUDGET = POLICY.budget
HOUR, WEEK = timedelta(hours=1), timedelta(weeks=1)
BEGAN = NOW - 10 * HOUR


@pytest.fixture
def store(open_store: Callable[..., Store]) -> Store:
    return open_store(clock=NOW.timestamp)


def incident(name: str = "sl-1", *, lasted: timedelta = HOUR, version: str = "") -> IncidentRecord:
    finding = Finding("tail", "shop", "", "tail", "ticket", BEGAN.timestamp(), version=version)
    began, ended = BEGAN.timestamp(), (BEGAN + lasted).timestamp()
    return IncidentRecord(
        name,
        f"tail:{name}",
        finding,
        began,
        ended,
        began,
        resolved_at=ended,
        ending="recovered",
        heard="over",
        story=name,
    )


def read(store: Store, *records: IncidentRecord) -> AlertRecord:
    with store.transaction() as connection:
        for each in records:
            save_incident(connection, each)
    return read_record(store, POLICY, ALL_SERVICES, NOW)


def silence(store: Store, at: datetime, **matchers: str) -> None:
    with store.transaction() as connection:
        matched = {"service": "shop", **matchers}
        create_silence(connection, matched, starts_at=at, ends_at=at + 24 * HOUR, author="ann")


def outcomes(record: AlertRecord) -> list[str]:
    return [each.outcome for each in record.alerts]


def served(store: Store, version: str, until: datetime) -> None:
    series = Series("shop", version, "", "", "", "/", "", "ok")
    at = int(until.timestamp()) // 10 * 10
    point = Point(series, REQUEST_DURATION, "forward", at, Histogram(buckets={0: 1}, sum=1.0))
    store.write([Batch(f"{version}:{until}", [point], [], 0, "test")])


ONE = incident()


@pytest.mark.parametrize(
    ("record", "outcome"),
    [
        (ONE, "wrong"),
        (replace(ONE, acked_at=BEGAN.timestamp(), acked_by="ann"), "right"),
        (replace(ONE, ending="accepted"), "right"),
        (incident(lasted=POLICY.lasting), "right"),
        (replace(incident(lasted=9 * HOUR), ending="", resolved_at=None), ""),
        (replace(ONE, ending="removed"), ""),
        (replace(ONE, ending="no_data", resolved_at=NOW.timestamp()), ""),
    ],
    ids=["recovered", "acknowledged", "accepted", "lasting", "open", "removed", "no data"],
)
def test_the_end_and_the_actions_of_people_decide_the_outcome(
    store: Store, record: IncidentRecord, outcome: str
) -> None:
    assert outcomes(read(store, record)) == [outcome]


@pytest.mark.parametrize(
    ("began", "matchers", "outcome"),
    [
        (BEGAN + HOUR, {"slo": "tail"}, "wrong"),
        (BEGAN + HOUR, {}, "right"),
        (BEGAN + HOUR, {"slo": "canary"}, "right"),
        (BEGAN - HOUR, {"slo": "tail"}, "right"),
    ],
    ids=["this rule", "the whole service", "another rule", "before"],
)
def test_a_silence_of_the_rule_during_the_alert_makes_it_wrong(
    store: Store, began: datetime, matchers: dict[str, str], outcome: str
) -> None:
    silence(store, began, **matchers)

    assert outcomes(read(store, incident(lasted=3 * HOUR))) == [outcome]


def test_an_alert_whose_version_was_rolled_back_was_right(store: Store) -> None:
    served(store, "2", BEGAN + HOUR / 2)
    served(store, "1", NOW)

    assert outcomes(read(store, incident(version="2"), incident("sl-2", version="1"))) == ["right", "wrong"]


def test_a_group_is_one_alert_and_a_muted_incident_is_none(store: Store) -> None:
    lead = replace(ONE, acked_at=BEGAN.timestamp(), acked_by="ann")
    grouped = replace(incident("sl-2"), story="sl-1", muted="notified together with shop (sl-1)", heard="")
    silent = replace(incident("sl-3"), muted="silenced by ann", heard="")

    assert outcomes(read(store, lead, grouped, silent)) == ["right"]


def test_other_rules_and_old_alerts_are_not_in_the_record(store: Store) -> None:
    old = (NOW - POLICY.over - HOUR).timestamp()
    record = read(store, replace(ONE, cause="slo:shop"), replace(incident("sl-2"), opened_at=old))

    assert (record.alerts, record.strictness("shop", "")) == ((), 1.0)


def alerts(*found: tuple[str, timedelta], service: str = "shop") -> tuple[PastAlert, ...]:
    return tuple(PastAlert(service, "", (NOW - age).timestamp(), outcome) for outcome, age in found)  # type: ignore[arg-type]


def record_of(*found: PastAlert, services: int = 200) -> AlertRecord:
    return AlertRecord(POLICY, NOW.timestamp(), services, tuple(sorted(found, key=lambda each: each.at)))


def test_a_wrong_alert_makes_its_service_stricter_until_it_leaks_out() -> None:
    ages = (timedelta(0), BUDGET.service / 2, BUDGET.service, 2 * BUDGET.service)
    found = [record_of(*alerts(("wrong", age), ("right", age))).strictness("shop", "") for age in ages]

    assert found == pytest.approx([BUDGET.step, BUDGET.step**0.5, 1.0, 1.0])
    assert record_of(*alerts(("wrong", HOUR))).strictness("other", "") == 1.0


def test_many_wrong_alerts_in_the_fleet_make_all_services_stricter() -> None:
    noise = [alert for number in range(4) for alert in alerts(("wrong", HOUR), service=f"s{number}")]
    one = record_of(*alerts(*[("wrong", HOUR)] * 50))

    assert record_of(*noise).strictness("quiet", "") == pytest.approx(BUDGET.step, rel=0.01)
    assert (one.strictness("shop", ""), one.strictness("quiet", "")) == (pytest.approx(BUDGET.most, rel=0.01), 1.0)


@pytest.mark.parametrize(("services", "weekly"), [(200, 0.24), (200, 0.02)])
def test_the_budget_is_kept_under_noise(services: int, weekly: float) -> None:
    """With noise alarms of random scores, the wrong alerts of the last year are within the budget of the fleet.

    *weekly* is the number of noise alarms of a service and week above the usual requirement.
    """
    rng, found = np.random.default_rng(5), list[PastAlert]()
    weeks, start = 78, NOW - 78 * WEEK
    for day in range(7 * weeks):
        now = start + timedelta(days=day)
        since = (now - POLICY.over).timestamp()
        for service in np.flatnonzero(rng.random(services) < weekly / 7).tolist():
            recent = tuple(each for each in found if each.at >= since)
            record = AlertRecord(POLICY, now.timestamp(), services, recent)
            if 1 + rng.exponential(0.25) >= record.strictness(str(service), ""):
                found.append(PastAlert(str(service), "", now.timestamp(), "wrong"))
    last_year = sum(each.at >= (NOW - 52 * WEEK).timestamp() for each in found)

    assert last_year / (52 * services) <= 0.01


def test_messages_state_how_many_alerts_were_right() -> None:
    right, wrong = ("right", HOUR), ("wrong", HOUR)
    few, many = alerts(right, wrong, ("", HOUR)), alerts(*[right] * 6, wrong, service="other")

    assert record_of(*few, *many).in_words("other", "") == "6 of the last 7 such alerts of this service were right."
    assert record_of(*few, *many).in_words("shop", "") == "7 of the last 9 such alerts of all services were right."
    assert record_of(*few).in_words("shop", "") == ""
    assert count_alerts(few) == AlertCounts(alerts=3, accepted=0, right=1, wrong=1)
    assert (count_alerts(few).precision, count_alerts(()).precision) == (0.5, None)
