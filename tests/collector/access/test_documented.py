"""The table of attacks in docs/security.md names tests that there are."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_each_attack_of_the_documentation_has_its_test() -> None:
    """A test that is renamed takes its line along."""
    text = (ROOT / "docs" / "security.md").read_text()
    table = text.partition("# Attacks that were tried")[2].splitlines()
    rows = [line.rpartition("|")[0].rpartition("|")[2] for line in table if line.startswith("| ")][2:]
    named: list[tuple[str, str]] = []
    for row in rows:
        file = ""
        for place, _, test in (each.partition("::") for each in re.findall(r"`([^`]+)`", row)):
            file = place if place != "…" else file
            named.append((file, test))

    assert len(named) >= len(rows) > 10
    assert [
        (file, test) for file, test in named if f"def {test}" not in (ROOT / "tests" / file).read_text(encoding="utf-8")
    ] == []
