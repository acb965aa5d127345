"""Alerts about Stagelens: each fires for its failure only, and the runbook describes it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import nan
from pathlib import Path
from typing import Any

import pytest
import yaml

from stagelens.__main__ import main
from stagelens.alerts import export
from tests.alerts.export.rule_evaluation import firing

RUNBOOK = (Path(__file__).parents[3] / export.RUNBOOK).read_text(encoding="utf-8")
PARTS = ("Sign", "The numbers", "Look", "Do", "Over when")
MINUTES = 45


def flat(value: float) -> list[float]:
    return [value] * MINUTES


def growing(by: float) -> list[float]:
    return [max(0.0, by * (minute - 10)) for minute in range(MINUTES)]


def ago(seconds: float) -> list[float]:
    """Return a timestamp that is always *seconds* in the past; test time starts at 0, which means never."""
    return [max(60.0 * minute - seconds, 0) for minute in range(MINUTES)]


OWN, ALERTS = "stagelens_collector_", "stagelens_alerts_"
REQUESTS = OWN + 'requests_total{signal="metrics",instance="a",code="%s"}'
COMMITS = OWN + 'commit_seconds_bucket{instance="a",le="%s"}'
WELL: dict[str, Sequence[float]] = {
    OWN + 'healthy{instance="a"}': flat(1),
    REQUESTS % "200": growing(60),
    REQUESTS % "429": flat(7),
    REQUESTS % "400": flat(7),
    OWN + 'batches_total{outcome="unwritable"}': flat(3),
    OWN + 'batches_total{outcome="duplicate"}': growing(5),
    OWN + 'rejected_total{signal="metrics",reason="time"}': flat(2),
    OWN + 'rejected_total{signal="metrics",reason="sum"}': growing(2),
    OWN + "agent_dropped_requests_total": flat(50),
    COMMITS % "0.1": growing(60),
    COMMITS % "2.5": growing(60),
    COMMITS % "+Inf": growing(60),
    OWN + "store_bytes": flat(91),
    OWN + "store_budget_bytes": flat(100),
    OWN + "store_folds": flat(0),
    OWN + "spans_oldest_timestamp_seconds": ago(1300),
    OWN + "spans_waiting_bytes": flat(1000),
    OWN + 'scrape_up{target="triton"}': flat(1),
    OWN + "histograms": flat(1000),
    OWN + "histograms_limit": flat(1000),
    ALERTS + "last_evaluation_timestamp_seconds": ago(10),
    ALERTS + "oldest_page_wait_seconds": flat(30),
    ALERTS + 'messages{channel="slack",state="dead"}': flat(2),
    ALERTS + 'messages{channel="slack",state="sent"}': growing(1),
}
SICK: dict[str, dict[str, Sequence[float]]] = {
    "StagelensCannotStore": {OWN + 'healthy{instance="a"}': flat(0)},
    "StagelensRefusesExports": {REQUESTS % "429": growing(60)},
    "StagelensTurnsSendersAway": {REQUESTS % "400": growing(1)},
    "StagelensDropsExports": {OWN + 'batches_total{outcome="unwritable"}': growing(1)},
    "StagelensClockIsOff": {OWN + 'rejected_total{signal="metrics",reason="time"}': growing(1)},
    "StagelensAgentsDrop": {OWN + "agent_dropped_requests_total": growing(1)},
    "StagelensCommitsAreSlow": {COMMITS % "0.1": growing(50)},
    "StagelensStoreNearlyFull": {OWN + "store_bytes": flat(96)},
    "StagelensDimensionsFold": {OWN + "store_folds": flat(1)},
    "StagelensSpansWait": {OWN + "spans_waiting_bytes": flat(5_000_000)},
    "StagelensScrapeDown": {OWN + 'scrape_up{target="triton"}': flat(0)},
    "StagelensHistogramsFull": {OWN + "histograms": flat(1001)},
    "StagelensAlertsDoNotEvaluate": {ALERTS + "last_evaluation_timestamp_seconds": ago(150)},
    "StagelensPagesDoNotGetOut": {ALERTS + "oldest_page_wait_seconds": flat(121)},
    "StagelensMessagesAreRefused": {ALERTS + 'messages{channel="slack",state="dead"}': growing(1)},
}
# Further series and the alerts they fire; no budget, no objectives and an empty outbox are no failures.
SCENES: dict[str, tuple[dict[str, Sequence[float]], set[str]]] = {
    "well": (WELL, set()),
    "idle": (
        WELL
        | {
            OWN + "store_budget_bytes": flat(0),
            OWN + "spans_oldest_timestamp_seconds": flat(0),
            OWN + "histograms_limit": flat(0),
            OWN + "histograms": flat(0),
            ALERTS + "last_evaluation_timestamp_seconds": flat(0),
        },
        set(),
    ),
    "all gone": ({'up{job="other"}': flat(1)}, {"StagelensCollectorGone"}),
    "alerts gone": (
        WELL | {name: [*each[:20], *[nan] * (MINUTES - 20)] for name, each in WELL.items() if name.startswith(ALERTS)},
        {"StagelensAlertsDoNotEvaluate"},
    ),
    **{alert: (WELL | seen, {alert}) for alert, seen in SICK.items()},
}


@pytest.mark.stacks
@pytest.mark.parametrize("scene", SCENES)
def test_each_failure_fires_its_alert_only(tmp_path: Path, scene: str) -> None:
    seen, expected = SCENES[scene]

    assert {name for (name,) in firing(tmp_path, export.write_self_monitoring_rules(), seen, "alertname")} == expected


def test_the_runbook_has_a_complete_section_for_each_alert() -> None:
    sections = dict(part.split("\n", 1) for part in RUNBOOK.split("\n## ")[1:])
    alerts = {rule["alert"] for rule in rules(export.write_self_monitoring_rules())}

    assert {name for name in sections if name.startswith("Stagelens")} == alerts
    assert set().union(*(expected for _, expected in SCENES.values())) == alerts
    for name, text in sections.items():
        normalized = re.sub(r"\*\*Look and do\.\*\*", "**Look.** **Do.**", text)
        assert re.findall(r"\*\*([A-Z][\w ]+)\.\*\*", normalized) == list(PARTS), name


def test_links_lead_to_the_configured_runbook(capsys: pytest.CaptureFixture[str]) -> None:
    main(["export", "itself", "--runbook", "https://docs.example/runbook.html"])

    for rule in rules(capsys.readouterr().out):
        assert rule["annotations"]["runbook_url"] == f"https://docs.example/runbook.html#{rule['alert'].lower()}"
        assert rule["labels"]["severity"] in ("page", "ticket")


def rules(written: str) -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(written)["groups"] for rule in group["rules"]]
