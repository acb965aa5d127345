"""Temporary folders: gone in the end, whoever used them."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from stagelens.cli.files import temporary_folder
from stagelens.core.errors import StagelensError

KILLED = """
import os, signal
from stagelens.cli.files import temporary_folder

with temporary_folder("run") as folder:
    (folder / "run.db").touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def test_files_of_a_killed_process_are_removed_at_the_next_start(place: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(list(place.glob("stagelens-run-*/run.db"))) == 1

    with temporary_folder("run") as folder:
        assert list(place.iterdir()) == [folder]
    assert list(place.iterdir()) == []


def test_files_in_use_and_foreign_files_are_not_removed(place: Path) -> None:
    (place / "theirs").mkdir()
    (place / "theirs" / "kept").touch()
    (place / "stagelens-run-link").symlink_to("theirs", target_is_directory=True)
    (place / "stagelens-run-empty").mkdir()
    with temporary_folder("run") as one:
        (one / "run.db").touch()
        with temporary_folder("run"), temporary_folder("compare"):
            assert (one / "run.db").exists()

    assert sorted(path.name for path in place.iterdir()) == ["stagelens-run-empty", "stagelens-run-link", "theirs"]
    assert (place / "theirs" / "kept").exists()


def test_without_a_temporary_directory_the_fix_is_shown(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(place / "nowhere"))

    with pytest.raises(StagelensError, match="set TMPDIR"), temporary_folder("run"):
        pass
