"""Advice: which stages are worth optimizing, for what cause, and in which order they are listed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelens.analysis.advice import (
    MIN_GAIN,
    RANKS,
    Advice,
    Facts,
    Mark,
    ReachableLatency,
    StageFinding,
    families,
    family_of,
    findings,
    largest_findings,
    replica_advice,
    slow_alone,
    worthwhile,
)
from stagelens.analysis.breakdown import Measures
from stagelens.analysis.replicas import HardwareDifference, ReplicaOutlier
from stagelens.core.hardware import GPU_CLOCK, GPU_HOT, HOST_CPU, THROTTLED, Measure
from stagelens.core.stages import OTHER, STAGES

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
Stages = dict[str, float]


def facts_of(median: Stages, tail: Stages, requests: int = 5000, service: str = "shop", **more: Any) -> Facts:
    """Return facts with these stages at p50 and at p99, in milliseconds."""
    p50, p99 = ({stage: each / 1e3 for stage, each in some.items()} for some in (median, tail))
    return Facts(service, Measures(requests, 0, sum(p50.values()), sum(p99.values()), p50, p99), **more)


def finding_of(found: Facts, stage: str, rank: str = "p99") -> StageFinding:
    return next(each for each in findings(found, rank) if each.stage == stage)


def test_every_stage_has_a_family_with_complete_options() -> None:
    assert all(family_of(stage.key) is not None for stage in STAGES)
    assert len({each.key for each in families()}) == len(families())
    for option in (option for family in families() for option in family.options):
        assert all(str(getattr(option, name)).strip() for name in option.__slots__)
        assert option.complexity in ("low", "medium", "high")


@pytest.mark.parametrize(
    ("stage", "median", "tail", "cause"),
    [
        # A queue that only the tail has is bursts; one that the median has too is load.
        ("queue", 1, 119, "bursts"),
        ("queue", 30, 119, "saturation"),
        ("load", 0, 300, "cold_starts"),
        ("load", 30, 40, "repeated_loads"),
        ("preprocess", 10, 30, "uneven_work"),
        ("preprocess", 10, 29, "steady_work"),
        # A stage that is absent at p50 does not take about as long for every request.
        ("lookup", 0, 140, "rare_work"),
        # Nearly nothing at p50 has no ratio.
        ("preprocess", 0.1, 155, "rare_work"),
        ("forward", 10, 10, "model_work"),
        ("dependency", 6, 50, "slow_calls"),
        ("overhead", 20, 20, "missing_stages"),
        ("handler", 20, 20, "endpoint_work"),
        ("framework", 20, 80, "framework_work"),
        ("untimed", 20, 20, "unrecorded_stages"),
    ],
)
def test_the_cause_follows_from_the_stage_at_both_percentiles(
    stage: str, median: float, tail: float, cause: str
) -> None:
    found = finding_of(facts_of({"decode": 40, stage: median}, {"decode": 45, stage: tail}), stage)

    assert found.cause == cause
    assert found.more == (pytest.approx((tail - median) / 1e3) if median >= 1 and tail >= 3 * median else None)


@pytest.mark.parametrize(
    ("tail", "facts", "cause"),
    [
        (80, {"response_tokens": (100.0, 400.0)}, "long_responses"),
        (80, {"response_tokens": (100.0, 300.0)}, "long_responses"),
        (80, {"response_tokens": (100.0, 290.0)}, "slow_tokens"),
        (80, {"response_tokens": (0.0, 290.0)}, "slow_decoding"),
        (80, {}, "slow_decoding"),
        (25, {"metric": "TPOT"}, "steady_pace"),
        (50, {"metric": "TPOT"}, "slow_pace"),
    ],
)
def test_the_cause_of_decode_follows_from_the_tokens(tail: float, facts: dict[str, Any], cause: str) -> None:
    assert finding_of(facts_of({"decode": 20}, {"decode": tail}, **facts), "decode").cause == cause


def test_unattributed_time_is_a_finding_from_15_percent_on() -> None:
    usual = findings(facts_of({"forward": 86, "overhead": 14}, {"forward": 86, "overhead": 14}), "p99")
    gaps = [
        facts_of({"forward": 84, "overhead": number}, {"forward": 84, "overhead": 20 - number}) for number in (4, 16)
    ]

    assert [each.stage for each in usual] == ["forward"]
    assert all(finding_of(gap, "overhead") for gap in gaps)


@given(
    st.dictionaries(st.sampled_from([stage.key for stage in STAGES] + ["own"]), st.floats(0, 1e3), min_size=1),
    st.dictionaries(st.sampled_from([stage.key for stage in STAGES] + ["own"]), st.floats(0, 1e3), min_size=1),
    st.sampled_from(RANKS),
)
def test_findings_are_sorted_and_none_is_small(median: Stages, tail: Stages, rank: str) -> None:
    found = findings(facts_of(median, tail), rank)

    assert all(each.weight(rank) >= MIN_GAIN for each in found)
    assert [each.expected(rank) for each in found] == sorted((each.expected(rank) for each in found), reverse=True)


@pytest.mark.parametrize(("rank", "needed"), [("p99", 1000), ("p50", 20), ("ttft", 1000), ("tpot", 1000), ("cost", 20)])
def test_findings_need_enough_requests(rank: str, needed: int) -> None:
    few, enough = (facts_of({"forward": 40}, {"forward": 90}, requests) for requests in (needed - 1, needed))

    assert findings(few, rank) == []
    assert [each.stage for each in findings(enough, rank)] == ["forward"]


def test_the_rest_of_many_stages_is_no_finding() -> None:
    assert findings(facts_of({"forward": 10, OTHER: 90}, {"forward": 10, OTHER: 90}), "p99")[0].stage == "forward"


def test_waiting_stages_have_no_cost() -> None:
    median, tail = {"forward": 40.0, "queue": 80.0}, {"forward": 40.0, "queue": 300.0}
    means = {"forward": 0.06, "tokenize": 0.02, "queue": 0.1}

    assert [each.stage for each in findings(facts_of(median, tail), "cost")] == ["forward"]
    assert finding_of(facts_of(median, tail, means=means), "tokenize", "cost").weight("cost") == pytest.approx(0.25)


def test_each_service_has_its_largest_finding() -> None:
    services = [
        facts_of({"forward": 50, "queue": 0}, {"forward": 50, "queue": 30, "preprocess": 20}, service="b"),
        facts_of({"forward": 50, "queue": 0}, {"forward": 50, "queue": 50}, service="c"),
        facts_of({"forward": 50, "queue": 0}, {"forward": 50, "queue": 30, "preprocess": 20}, service="a"),
        facts_of({"forward": 81, "queue": 0}, {"forward": 81, "queue": 19}, service="small"),
        facts_of({"forward": 50, "queue": 0}, {"forward": 50, "queue": 50}, 999, service="few"),
    ]
    found = largest_findings(services, "p99")

    assert [(each.facts.service, each.stage) for each in found] == [("c", "queue"), ("a", "queue"), ("b", "queue")]


@pytest.mark.parametrize(
    ("seconds", "alone"),
    [
        ({"1": 0.1, "2": 0.2}, ("2", "1")),
        ({"1": 0.1, "2": 0.19}, None),
        ({"/a": 0.1, "/b": 0.3, "/c": 0.15}, ("/b", "/c")),
        ({"/a": 0.1, "/b": 0.3, "/c": 0.3}, None),
        ({"1": None, "2": 0.2}, None),
        ({}, None),
    ],
)
def test_one_version_or_route_is_slow_alone(seconds: dict[str, float | None], alone: tuple[str, str] | None) -> None:
    assert slow_alone(seconds) == alone


@pytest.mark.parametrize(
    ("usual", "uneven", "after", "gain"), [(0.6, True, 0.6, 0.4), (0.98, True, 0.98, 0.02), (0.991, False, 0.5, 0.5)]
)
def test_the_reachable_latency_is_the_ceiling_if_all_requests_are_alike(
    usual: float, uneven: bool, after: float, gain: float
) -> None:
    reach = ReachableLatency("p99", 1.0, usual, 0.5)

    assert (reach.is_uneven, reach.after, reach.gain, reach.ceiling) == (uneven, after, pytest.approx(gain), 0.5)
    assert ReachableLatency("p99", 0.0, 0.0, 0.0).gain == 0


@given(*[st.floats(0, 1)] * 4)
def test_a_prediction_never_promises_more_than_the_breakdown_allows(
    median: float, tail: float, usual: float, without: float
) -> None:
    facts = facts_of({"forward": 100, "queue": 100 * median}, {"forward": 100, "queue": 100 * tail})
    finding = StageFinding(facts, "queue", next(each for each in families() if each.key == "batching"))
    p99 = facts.measures.p99 or 0.0
    reach = ReachableLatency.within(finding, 0.99, usual, without)

    assert reach.before == p99
    assert p99 - facts.tail("queue") <= reach.without + 1e-12
    assert p99 - max(facts.tail("queue") - facts.median("queue"), 0) <= reach.usual + 1e-12
    assert reach.without <= reach.usual <= p99


def test_stages_that_are_slow_for_some_requests_come_first() -> None:
    found = facts_of({"forward": 80, "h2d": 20}, {"forward": 80, "h2d": 20, "queue": 50, "load": 30, "network": 20})
    reaches = {
        "forward": ReachableLatency("p99", 0.2, 0.2, 0.12),
        "queue": ReachableLatency("p99", 0.2, 0.16, 0.15),
        "load": ReachableLatency("p99", 0.2, 0.15, 0.15),
        "network": ReachableLatency("p99", 0.2, 0.196, 0.1941),
    }
    advice = [Advice(each, reaches.get(each.stage), None) for each in findings(found, "p99")]

    assert [each.finding.stage for each in worthwhile(advice, "p99")] == ["load", "queue", "forward", "h2d"]
    assert [each.finding.stage for each in worthwhile(advice, "cost")] == ["forward", "h2d"]


@pytest.mark.parametrize(
    ("mark", "hidden"),
    [
        (None, False),
        (Mark("open", NOW), False),
        (Mark("dismissed", NOW), True),
        (Mark("done", NOW), True),
        (Mark("snoozed", NOW, NOW + timedelta(seconds=1)), True),
        (Mark("snoozed", NOW, NOW), False),
    ],
)
def test_a_mark_hides_advice(mark: Mark | None, hidden: bool) -> None:
    finding = finding_of(facts_of({"forward": 10}, {"forward": 10}), "forward")

    assert Advice(finding, None, mark).is_hidden(NOW) is hidden


@pytest.mark.parametrize(
    ("measures", "expected"),
    [
        ((GPU_CLOCK, GPU_HOT), "Cool the GPU of a, or move it to another machine"),
        ((GPU_CLOCK,), "Raise the clock or power limit of the GPU of a, or move it to another machine"),
        ((THROTTLED,), "Raise the CPU limit of a"),
        ((HOST_CPU,), "Move a to a less busy machine"),
        ((), "Take a out of the traffic, and restart or replace it"),
    ],
)
def test_advice_about_a_slow_replica_follows_its_machine(measures: tuple[Measure, ...], expected: str) -> None:
    hardware = tuple(HardwareDifference(measure, 2.0, 1.0) for measure in measures)
    slow = ReplicaOutlier("a:1", "a", 2, 0.5, 0.2, 0.1, 500, 0, is_dated=True, growth=(), hardware=hardware)

    assert replica_advice(slow) == expected
