"""Alerting rules about Stagelens itself, each with the place in the runbook that says what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

FILE = Path(__file__).parent / "itself.yaml"
# Where the runbook is in the repository; an installation names its own copy.
RUNBOOK = "docs/runbook.md"


def write(runbook: str = RUNBOOK) -> str:
    """Return the rule file.

    Args:
        runbook: The address of the runbook; the name of the alert, in small letters, is the anchor in it.
    """
    rules: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule["annotations"]["runbook_url"] = f"{runbook}#{rule['alert'].lower()}"
    dumped = yaml.safe_dump(rules, sort_keys=False, allow_unicode=True, width=10_000)
    return (
        f"# Made by `stagelens export itself`: alerts about Stagelens itself, over the /metrics of its parts.\n{dumped}"
    )
