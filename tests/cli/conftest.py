"""`stagelens run` as a user types it, with nothing of ours in the environment."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.cli.programs import RUN, TIMEOUT_SECONDS, environment
from tests.support.ports import free_port


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def go(*words: str | Path, command: Sequence[str] = RUN, **variables: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*command, *map(str, words)],
            cwd=tmp_path,
            env=environment(tmp_path, **variables),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )

        assert list((tmp_path / "tmp").glob("stagelens-*")) == []

        return done

    return go


@pytest.fixture(name="free_port")
def _free_port() -> int:
    return free_port()
