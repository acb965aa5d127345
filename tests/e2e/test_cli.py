"""The command line: help texts are readable, and every error names the fix."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.stacks, pytest.mark.flaky(reruns=0)]


def stagelens(*words: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "stagelens", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["up", "--database", "sqlite:////nowhere/at/all/store.db"], "/nowhere/at/all"),
        (["up", "--dashboard-port", "70000", "--collector-port", "0"], "STAGELENS_DASHBOARD_PORT"),
        (["up", "--dashboard-host", "0.0.0.0", "--collector-port", "0"], "STAGELENS_DASHBOARD_TOKEN"),
        (["collector", "--check", "--collector-config", "nowhere.yaml"], "nowhere.yaml"),
        (["check", "nowhere.yaml"], "nowhere.yaml"),
        (["run"], "stagelens run -- "),
        (["run", "--", "no-such-program-anywhere"], "no-such-program-anywhere"),
    ],
)
def test_an_error_names_what_was_wrong(words: list[str], expected: str, tmp_path: Path) -> None:
    result = stagelens(*words, folder=tmp_path)

    assert result.returncode != 0
    assert expected in result.stderr
    assert "Traceback" not in result.stderr


def test_a_port_in_use_is_explained(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        result = stagelens("up", "--collector-port", port, "--dashboard-port", "0", folder=tmp_path)

    assert result.returncode == 1
    assert port in result.stderr
    assert "STAGELENS_COLLECTOR_PORT" in result.stderr or "--collector-port" in result.stderr
    assert "Traceback" not in result.stderr
