"""Percentiles of vLLM in Stagelens and those of an independent load generator at its client."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.soak
_ROOT = Path(__file__).parents[2]
_NEEDED = [_ROOT / ".venv" / name for name in ("vllm", "truth")]
_DIFFERENCE = re.compile(r"^\| (?P<pair>(?:client|server): .*?) \| p[0-9]+ \| .* \| [+-][0-9.]+ % \|$", re.MULTILINE)


@pytest.mark.timeout(900)
@pytest.mark.skipif(not all(each.is_dir() for each in _NEEDED), reason="make vllm truth: one of them is not installed")
def test_percentiles_are_within_two_percent_of_those_of_guidellm() -> None:
    command = [sys.executable, "benchmarks/client_truth.py", "--requests", "120", "--gate"]
    done = subprocess.run(command, cwd=_ROOT, check=False, capture_output=True, text=True)

    assert done.returncode == 0, done.stdout + done.stderr
    assert len(_DIFFERENCE.findall(done.stdout)) == 6 * 4
    assert "MISSED" not in done.stdout
