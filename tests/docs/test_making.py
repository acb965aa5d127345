"""Developer commands: each `make` target on a page exists, and the hooks can be installed."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, pages

# In a block or within a line: `make site`.
TARGETS = sorted(
    {name for page in pages() for name in re.findall(r"(?:^|`)make ([a-z-]+)", page.read_text(), re.MULTILINE)}
)


@pytest.mark.parametrize("target", TARGETS)
def test_every_make_target_of_a_page_exists(target: str) -> None:
    done = subprocess.run(["make", "--dry-run", target], cwd=ROOT, check=False, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr


def test_the_hooks_can_be_installed(tmp_path: Path) -> None:
    shutil.copy(ROOT / ".pre-commit-config.yaml", tmp_path)
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    for command in ("validate-config", "install"):
        subprocess.run([sys.executable, "-m", "pre_commit", command], cwd=tmp_path, check=True, capture_output=True)

    assert (tmp_path / ".git" / "hooks" / "pre-commit").exists()
