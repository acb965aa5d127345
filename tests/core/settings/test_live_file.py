"""Files that are removed, emptied or replaced while they are in use."""

from __future__ import annotations

import itertools
import logging
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from stagelens.alerts.objectives.slo_file import LiveSloFile
from stagelens.core.settings.live_file import LiveFile
from stagelens.dashboard.access import read_access_file
from stagelens.dashboard.web.users import Users, add_user

NOW = datetime(2026, 11, 20, tzinfo=UTC)


def empty(path: Path) -> None:
    """Leave the file empty, as an editor on a full disk."""
    path.write_text("\n")


def replace_by_a_folder(path: Path) -> None:
    """Put a folder in the place of the file, as a volume that is mounted without its source."""
    path.unlink()
    path.mkdir()


def remove_the_folder(path: Path) -> None:
    shutil.rmtree(path.parent)


def link_to_nothing(path: Path) -> None:
    """Replace the file by a link whose target is missing, as during the update of a volume."""
    path.unlink()
    path.symlink_to("absent")


def users_file(path: Path) -> Users:
    add_user(path, "ada", "correct horse")
    return Users(path)


def slo_file(path: Path) -> LiveSloFile:
    path.write_text("slos: [{name: a, service: shop, objective: 0.99, threshold: 250ms, window: 30d}]\n")
    return LiveSloFile(path, {})


def access_file(path: Path) -> LiveFile[Any]:
    path.write_text("groups: [{name: sre, role: admin, users: [ada]}]\n")
    return LiveFile(path, read_access_file)


BREAKS = (replace_by_a_folder, remove_the_folder, link_to_nothing)


@pytest.mark.parametrize(
    ("make", "break_file"),
    [
        *itertools.product((users_file, slo_file, access_file), BREAKS),
        # A user file without lines has no users.
        *itertools.product((slo_file, access_file), [empty]),
    ],
)
def test_the_last_valid_version_stays_in_effect(
    make: Callable[[Path], LiveFile[Any]],
    break_file: Callable[[Path], None],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = tmp_path / "mounted" / "file"
    path.parent.mkdir()
    file = make(path)
    file.refresh(NOW)
    before = file.current
    break_file(path)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            file.refresh(NOW)

    assert file.current is before is not None
    assert len([line for line in caplog.messages if "in effect" in line or "in force" in line]) == 1
    assert any(str(path) in line for line in file.errors)
