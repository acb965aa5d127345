"""Life cycle of incidents: one open incident per cause, hysteresis, and one notification per transition."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stagelens.alerts.delivery.message import Finding
from stagelens.alerts.delivery.message_text import headline
from stagelens.alerts.formatting import TIMES
from stagelens.alerts.incidents.journal import build_message
from stagelens.alerts.incidents.lifecycle import IncidentRecord, Step, next_step
from stagelens.analysis.comparison import StageGrowth
from stagelens.analysis.policies import default_burn_rate_policy
from stagelens.analysis.profile import FunctionGrowth
from stagelens.questions.changed import Failures

HYSTERESIS = default_burn_rate_policy().hysteresis
MINUTE = 60.0
START = 1_795_143_840.0


def decide(record: IncidentRecord | None, finding: Finding | None, at: float, *, has_data: bool = True) -> Step | None:
    return next_step(record, finding, cause="slo:x", now=at, has_data=has_data, hysteresis=HYSTERESIS)


def step(record: IncidentRecord | None, finding: Finding | None, at: float, *, has_data: bool = True) -> Step:
    taken = decide(record, finding, at, has_data=has_data)
    assert taken is not None
    return taken


def at_rate(finding: Finding, rate: float) -> Finding:
    assert finding.burn is not None
    return replace(finding, burn=replace(finding.burn, rate=rate))


def opened(finding: Finding) -> IncidentRecord:
    return step(None, finding, START).record


def live(record: IncidentRecord, finding: Finding | None, *minutes: float, has_data: bool = True) -> list[str]:
    transitions: list[str] = []
    for minute in minutes:
        taken = decide(record, finding, START + minute * MINUTE, has_data=has_data)
        record = taken.record if taken else record
        transitions.append(taken.happening if taken else "")
    return transitions


def test_repeated_findings_open_one_incident(finding: Finding) -> None:
    first = step(None, finding, START)

    assert decide(None, None, START) is None
    assert first.happening == "opened"
    assert live(first.record, finding, 1, 2, 30, 300) == [""] * 4


def test_an_incident_resolves_after_two_minutes_without_a_finding(finding: Finding) -> None:
    record = opened(finding)
    quiet = step(record, None, START + MINUTE)
    relapse = step(quiet.record, finding, START + 2 * MINUTE)

    assert live(record, None, 1, 2, 3) == ["", "", "resolved"]
    assert live(relapse.record, None, 3, 4, 5) == ["", "", "resolved"]


@pytest.mark.parametrize(("minutes", "same"), [(14.0, True), (16.0, False)])
def test_a_relapse_within_15_minutes_reopens_the_incident(finding: Finding, minutes: float, same: bool) -> None:
    over = {"resolved_at": START, "ending": "recovered", "acked_at": START, "acked_by": "ann"}
    record = replace(opened(finding), **over, sequence=2)
    again = step(record, finding, START + minutes * MINUTE)

    assert again.happening == ("reopened" if same else "opened")
    assert (again.record.id == record.id, again.record.acked_at, again.record.acked_by) == (same, None, "")


def test_a_ticket_escalated_to_a_page_is_notified(finding: Finding) -> None:
    record = opened(replace(finding, severity="ticket"))
    worse = step(record, finding, START + 10)
    calmer = step(worse.record, replace(finding, severity="ticket"), START + 20)

    assert worse.happening == "updated"
    assert (calmer.happening, calmer.record.finding.severity) == ("", "page")


def test_a_changed_cause_is_notified_with_a_rate_limit(finding: Finding) -> None:
    record = opened(finding)
    other = replace(finding, growth=(StageGrowth("queue", 0.3, 0.8),))
    early, late = step(record, other, START + 4 * MINUTE), step(record, other, START + 6 * MINUTE)

    assert (early.happening, early.record.finding.growth[0].stage) == ("", "preprocess")
    assert (late.happening, late.record.finding.growth[0].stage) == ("updated", "queue")


RESIZE = FunctionGrowth("preprocess", "resize (serve.py:41)", 2.0, 166.0, 178.0, is_cause=True)


@pytest.mark.parametrize(("before", "after"), [({"version": ""}, {}), ({}, {"functions": (RESIZE,)})])
def test_a_release_or_function_found_later_is_notified_once(
    finding: Finding, before: dict[str, Any], after: dict[str, Any]
) -> None:
    unnamed, explained = replace(finding, **before), replace(finding, **after)
    named = step(opened(unnamed), explained, START + 10)
    later = step(named.record, unnamed, START + 20)
    again = step(later.record, explained, START + 30)
    acknowledged = step(replace(opened(unnamed), acked_at=START), explained, START + 10)

    assert [each.happening for each in (named, later, again, acknowledged)] == ["updated", "", "", ""]
    for each in (later, acknowledged):
        assert (each.record.finding.version, each.record.finding.functions) == ("2", explained.functions)


def test_another_stage_has_other_functions(finding: Finding) -> None:
    record = opened(replace(finding, functions=(RESIZE,)))
    queued = replace(finding, growth=(StageGrowth("queue", 0.3, 0.8),))
    early, late = step(record, queued, START + MINUTE), step(record, queued, START + 16 * MINUTE)

    assert early.record.finding.functions == (RESIZE,)
    assert late.record.finding.functions == ()


def test_an_acknowledged_incident_notifies_escalations_only(finding: Finding) -> None:
    record = replace(opened(replace(finding, severity="ticket")), acked_at=START, acked_by="ann")
    other = replace(finding, severity="ticket", growth=(StageGrowth("queue", 0.3, 0.8),))

    assert live(record, other, 6, 60) == ["", ""]
    assert live(record, finding, 6) == ["updated"]


def test_without_data_an_incident_is_closed_as_unknown_after_a_day(finding: Finding) -> None:
    record = opened(finding)
    day = 24 * 60
    given_up = step(record, None, START + day * MINUTE, has_data=False)

    assert live(record, None, 5, 60, day - 1, has_data=False) == [""] * 3
    assert (given_up.happening, given_up.record.ending) == ("resolved", "no_data")


def test_silence_is_no_recovery(finding: Finding) -> None:
    quiet = step(opened(finding), None, START + MINUTE)
    silent = step(quiet.record, None, START + 2 * MINUTE, has_data=False)
    text = headline(build_message(silent.record, "acknowledged", START + 3 * MINUTE))
    served = step(silent.record, None, START + 60 * MINUTE)

    assert (silent.happening, silent.record.finding.cause_kind) == ("", "no_data")
    assert f"has no data, burned 31{TIMES} in 5 minutes before" in text
    assert "no request since 03:05 UTC on 20 November; before, slow requests spent +180 ms" in text
    assert decide(silent.record, None, START + 3 * MINUTE, has_data=False) is None
    assert (served.happening, served.record.finding.silent_since) == ("", None)
    assert live(served.record, None, 61, 62) == ["", "resolved"]


def test_failures_found_later_are_another_cause(finding: Finding) -> None:
    lost = replace(finding, cause="failures", failures=Failures(90, 100, 200), growth=())
    late = step(opened(finding), lost, START + 6 * MINUTE)

    assert (late.happening, late.record.finding.blames) == ("updated", "failures")
    assert late.record.finding.blamed is None
    assert Finding.from_json(late.record.finding.to_json()) == late.record.finding


def test_the_resolved_message_has_the_highest_burn_rate(finding: Finding) -> None:
    record = opened(finding)
    for minute, rate in ((1, 88.0), (2, 15.0)):
        record = step(record, at_rate(finding, rate), START + minute * MINUTE).record

    assert build_message(record, "resolved", START + 9 * MINUTE).finding.size == 88.0


EVENTS = st.lists(
    st.tuples(st.sampled_from(["page", "ticket", "quiet", "silence"]), st.integers(1, 20 * 60)), max_size=60
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(events=EVENTS)
def test_transitions_always_alternate(finding: Finding, events: list[tuple[str, int]]) -> None:
    record, now, transitions = None, START, list[tuple[str, str]]()
    for kind, seconds in events:
        now += seconds
        found = replace(finding, severity=kind) if kind in ("page", "ticket") else None
        taken = decide(record, found, now, has_data=kind != "silence")
        record = taken.record if taken else record
        if taken and taken.happening:
            transitions.append((taken.record.id, taken.happening))

    last: dict[str, str] = {}
    for name, happening in transitions:
        allowed = {"": {"opened"}, "resolved": {"reopened"}}.get(last.get(name, ""), {"updated", "resolved"})
        assert happening in allowed
        last[name] = happening
