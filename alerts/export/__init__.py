"""Prometheus rules and a Grafana dashboard over the collector's /metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

SELF_MONITORING_RULES = Path(__file__).parent / "itself.yaml"
# Path of the runbook in the repository; an installation passes the URL of its copy.
RUNBOOK = "docs/runbook.md"


def write_self_monitoring_rules(runbook: str = RUNBOOK) -> str:
    rules: dict[str, Any] = yaml.safe_load(SELF_MONITORING_RULES.read_text(encoding="utf-8"))
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule["annotations"]["runbook_url"] = f"{runbook}#{rule['alert'].lower()}"
    dumped = yaml.safe_dump(rules, sort_keys=False, allow_unicode=True, width=10_000)
    return f"# Made by `stagelens export itself`: alerts about Stagelens, based on the /metrics of its processes.\n{dumped}"
