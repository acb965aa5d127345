"""`promtool` of a real Prometheus: checks of metrics and rules."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def run(*arguments: str | Path, given: bytes = b"") -> tuple[int, str]:
    """Return exit status and output; without promtool the test is skipped, except in CI."""
    program = shutil.which("promtool")
    if program is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("no promtool; `apt-get install prometheus` has it")
    done = subprocess.run(
        [program, *arguments], input=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    return done.returncode, done.stdout.decode()
