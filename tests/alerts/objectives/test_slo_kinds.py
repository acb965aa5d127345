"""Kinds of SLOs besides request latency, and errors for invalid combinations."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from stagelens.alerts.objectives.slo_file import LiveSloFile
from stagelens.store.selection import Indicator
from tests.alerts.conftest import Problems, ReadSlos

BASE = """\
slos:
  - name: chat
    service: chat
    objective: 0.99
    window: 30d
"""


@pytest.mark.parametrize(
    ("keys", "indicator", "promise"),
    [
        ("threshold: 250ms", Indicator("latency", 0.25), "99 % of requests to chat succeed within 250 ms"),
        ("kind: availability", Indicator("availability"), "99 % of requests to chat succeed"),
        ("kind: ttft, threshold: 500ms", Indicator("ttft", 0.5), "have their first token within 500 ms"),
        (
            "kind: tpot, threshold: 50ms, definition: first_chunk, model: llama",
            Indicator("tpot", 0.05, "first_chunk"),
            "chat, model llama, definition first_chunk need at most 50 ms per token after the first",
        ),
        ("stage: queue, threshold: 50ms", Indicator("stage", 0.05, "queue"), "spend at most 50 ms in queue"),
        ("kind: coverage", Indicator("coverage"), "stages cover 99 % of the time of requests to chat"),
        (
            "kind: freshness, threshold: 5m",
            Indicator("freshness", 300.0),
            "99 % of the time, the newest data of chat is at most 5 minutes old",
        ),
    ],
)
def test_every_kind_of_slo_is_parsed(read_slos: ReadSlos, keys: str, indicator: Indicator, promise: str) -> None:
    found = read_slos(BASE + "".join(f"    {key}\n" for key in keys.split(", "))).slos[0]

    assert found.indicator == indicator
    assert found.in_words().endswith(f"{promise}, over 30 days")


def test_several_thresholds_are_several_slos(read_slos: ReadSlos) -> None:
    text = BASE.replace("    objective: 0.99\n", "") + (
        "    thresholds:\n"
        "      - {objective: 0.95, threshold: 200ms}\n"
        "      - {objective: 0.99, threshold: 1s, name: at worst}\n"
    )
    found = read_slos(text).slos

    assert [(slo.name, slo.objective, slo.threshold_seconds) for slo in found] == [
        ("chat (200 ms)", 0.95, 0.2),
        ("chat (at worst)", 0.99, 1.0),
    ]


def test_a_budget_is_split_among_stages_and_counted_from_its_reset(read_slos: ReadSlos) -> None:
    keys = ("threshold: 450ms", "budgets: {queue: 150ms, forward: 300ms}", "reset: 2026-11-01T01:00+01:00")
    found = read_slos(BASE + "".join(f"    {key}\n" for key in keys)).slos[0]

    assert found.budgets == (("queue", timedelta(seconds=0.15)), ("forward", timedelta(seconds=0.3)))
    assert found.reset == datetime(2026, 11, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        ("kind: ttft", "2: slos[0].threshold is missing; add `threshold: 500ms`"),
        ("kind: stage", "2: slos[0].stage is missing; add `stage: queue`"),
        ("kind: coverage\n    threshold: 1s", "7: slos[0].threshold is not valid with kind coverage; remove it"),
        ("kind: ttft\n    stage: queue\n    threshold: 1s", "7: slos[0].stage is not valid with kind ttft; write"),
        ("threshold: 1s\n    definition: generate", "7: slos[0].definition is valid only with kind ttft and tpot;"),
        ("kind: freshness\n    threshold: 30s", "7: slos[0].threshold is not between 1m and 7d; write the maximum"),
        ("threshold: 500ms\n    budgets: {queue: 300ms, forward: 300ms}", "7: slos[0].budgets add up to 600 ms, more"),
        ("budgets: {queue: 300ms}", "6: slos[0].budgets are valid only with kind latency; remove them"),
        ("budgets: {queue: 300ms}\n    kind: coverage", "6: slos[0].budgets are valid only with kind latency; remove"),
        ("thresholds: [{objective: 0.9, threshold: 1s}]", "4: slos[0].objective is set next to thresholds; move it"),
    ],
)
def test_invalid_combinations_are_reported(problems: Problems, keys: str, complaint: str) -> None:
    found = problems(BASE + f"    {keys}\n")

    assert any(line.startswith(f"slo.yaml:{complaint}") for line in found), found


def test_duplicate_thresholds_are_errors(problems: Problems) -> None:
    bare = BASE.replace("    objective: 0.99\n", "")
    twice = bare + "    thresholds: [{objective: 0.9, threshold: 1s}, {objective: 0.99, threshold: 1s}]\n"

    assert problems(twice)[0].endswith(
        "slos[0].thresholds[1].threshold is listed twice; write one objective for each threshold"
    )
    assert problems(bare + "    thresholds: []\n") == [
        "slo.yaml:5: slos[0].thresholds is empty; write `- {objective: 0.99, threshold: 250ms}`"
    ]


def test_a_stage_similar_to_a_known_one_gets_a_warning(slo_yaml: Path, read_slos: ReadSlos) -> None:
    found = read_slos(BASE + "    stage: queu\n    threshold: 1s\n")

    assert found.slos[0].stage == "queu"
    assert found.warnings == (
        f"{slo_yaml}:6: slos[0].stage names 'queu', which is not a built-in stage; did you mean queue?",
    )


def test_maintenance_applies_to_the_named_slos(read_slos: ReadSlos) -> None:
    text = """\
slos:
  - {name: a, service: shop, objective: 0.99, window: 30d}
  - {name: b, service: chat, window: 30d, thresholds: [{objective: 0.9, threshold: 1s}, {objective: 0.99, threshold: 2s}]}
maintenance:
  - {from: 2026-11-28T02:00Z, to: 2026-11-28T04:00Z, services: [shop]}
  - {every: [saturday, sunday], from: "02:00", to: 12:30, zone: Europe/Berlin, slos: [b], why: index rebuild}
  - {every: day, from: "23:30", to: "00:30", zone: UTC}
"""
    planned = {slo.name: slo.maintenance.planned for slo in read_slos(text).slos}

    assert [len(planned[name]) for name in ("a", "b (1 s)", "b (2 s)")] == [2, 2, 2]
    assert planned["a"][0].why == ""
    assert planned["b (1 s)"][0].why == "index rebuild"


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        ("{from: 2026-11-28T02:00Z, to: 2026-11-28T01:00Z}", "maintenance[0].to is not after `from`; write a later"),
        ('{every: sundays, from: "02:00", to: "04:00", zone: UTC}', "maintenance[0].every is 'sundays'; write one of"),
        ('{every: sunday, from: "25:00", to: "04:00", zone: UTC}', "maintenance[0].from is '25:00'; write a time of"),
        ('{every: sunday, from: "02:00", to: "04:00"}', "maintenance[0].zone is missing; add `zone: Europe/Berlin`"),
        (
            '{every: sunday, from: "02:00", to: "04:00", zone: Europe/Berln}',
            "maintenance[0].zone is 'Europe/Berln', which is not a known time zone; write one such as Europe/Berlin or UTC; did you mean Europe/Berlin?",
        ),
        ('{every: sunday, from: "02:00", to: "02:00", zone: UTC}', "maintenance[0].to is equal to `from`; write the"),
        (
            '{every: sunday, from: "02:00", to: "03:00", zone: UTC, services: chatt}',
            "maintenance[0].services has 'chatt', but this file has no such service; did you mean chat?",
        ),
    ],
)
def test_errors_in_maintenance_windows_are_reported(problems: Problems, entry: str, complaint: str) -> None:
    found = problems(f"{BASE}maintenance:\n  - {entry}\n")

    assert len(found) == 1
    assert found[0].startswith(f"slo.yaml:7: {complaint}")


def test_a_changed_included_file_reloads_the_slo_file(slo_yaml: Path, tmp_path: Path) -> None:
    included = tmp_path / "open.yaml"
    included.write_text((Path(__file__).parent / "openslo.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    slo_yaml.write_text(f"{BASE}include: [open.yaml]\n", encoding="utf-8")
    now = datetime(2026, 11, 20, tzinfo=UTC)
    live = LiveSloFile(slo_yaml, {})
    live.refresh(now)
    good = live.current
    included.write_text("kind: [", encoding="utf-8")
    live.refresh(now)
    broken = live.errors
    included.write_text("apiVersion: openslo/v1\nkind: Service\nmetadata: {name: x}\nspec: {}\n", encoding="utf-8")
    live.refresh(now)

    assert good is not None
    assert len(good.slos) == 3
    assert broken[0].startswith(f"{included}:")
    assert live.errors == ()
    assert live.current is not None
    assert len(live.current.slos) == 1
