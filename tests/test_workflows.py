"""The workflows of GitHub run commands that exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z][a-z -]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_each_make_target_and_file_exists(path: Path) -> None:
    workflow: dict[str, Any] = yaml.safe_load(path.read_text())
    commands = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    targets = {target for command in commands for target in re.findall(r"^make ([a-z-]+)", command)}

    assert targets
    assert targets <= {name for names in TARGETS for name in names.split()}
    assert (ROOT / "constraints-dev.txt").is_file()
