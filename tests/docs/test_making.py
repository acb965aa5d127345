"""Developer commands: each `make` target on a page and in a workflow exists, and the hooks can be installed."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, pages

# In a block or within a line of a page, `make site`, or a step of a workflow.
FILES = [*pages(), *(ROOT / ".github" / "workflows").glob("*.yml")]
TARGETS = sorted(
    {name for file in FILES for name in re.findall(r"(?:^|`|run: )make ([a-z-]+)", file.read_text(), re.MULTILINE)}
)


@pytest.mark.parametrize("target", TARGETS)
def test_every_make_target_of_a_page_or_workflow_exists(target: str) -> None:
    done = subprocess.run(["make", "--dry-run", target], cwd=ROOT, check=False, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr


def test_the_hooks_can_be_installed(tmp_path: Path) -> None:
    shutil.copy(ROOT / ".pre-commit-config.yaml", tmp_path)
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    for command in ("validate-config", "install"):
        subprocess.run([sys.executable, "-m", "pre_commit", command], cwd=tmp_path, check=True, capture_output=True)

    assert (tmp_path / ".git" / "hooks" / "pre-commit").exists()
