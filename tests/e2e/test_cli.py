"""The command line: help texts are readable, and every error names the fix."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.stacks, pytest.mark.flaky(reruns=0)]


@pytest.fixture(scope="module")
def used_port() -> Generator[str]:
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield str(other.getsockname()[1])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("up --database sqlite:////nowhere/at/all/store.db", "/nowhere/at/all"),
        ("up --dashboard-port 70000 --collector-port 0", "STAGELENS_DASHBOARD_PORT"),
        ("up --dashboard-host 0.0.0.0 --collector-port 0", "STAGELENS_DASHBOARD_TOKEN"),
        ("up --collector-port {port} --dashboard-port 0", "{port}"),
        ("collector --check --collector-config nowhere.yaml", "nowhere.yaml"),
        ("check nowhere.yaml", "nowhere.yaml"),
        ("run", "stagelens run -- "),
        ("run -- no-such-program-anywhere", "no-such-program-anywhere"),
    ],
)
def test_an_error_names_what_was_wrong(words: str, expected: str, used_port: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "stagelens", *words.format(port=used_port).split()]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)

    assert result.returncode != 0
    assert expected.format(port=used_port) in result.stderr
    assert "Traceback" not in result.stderr
