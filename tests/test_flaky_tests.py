"""A test that needed a second attempt is named, and fails the run at the third time in a row."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROGRAM = """
import pathlib
import pytest

STATE = pathlib.Path(__file__).with_name("state")

@pytest.mark.flaky(reruns=1)
def test_the_first_attempt_fails():
    attempts = int(STATE.read_text())
    STATE.write_text(str(attempts + 1))
    assert attempts != 0, "the server was away"

def test_always_passes():
    pass
"""


def run(folder: Path, attempts: int, *options: str) -> tuple[int, list[str]]:
    """Run the two tests; return the exit code and the report under FLAKY."""
    (folder / "test_program.py").write_text(PROGRAM)
    (folder / "state").write_text(str(attempts))
    plugins = [
        word for name in ("pytest_rerunfailures", "xdist.plugin", "tests.support.flaky_tests") for word in ("-p", name)
    ]
    command = ["-m", "pytest", "-c", os.devnull, *plugins, "-p", "no:cacheprovider", *options]
    done = subprocess.run(
        [sys.executable, *command, f"--rootdir={folder}", str(folder / "test_program.py")],
        cwd=ROOT,
        env=os.environ | {"XDG_CACHE_HOME": str(folder / "cache"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        check=False,
        capture_output=True,
        text=True,
    )
    return done.returncode, re.findall(r"^FLAKY .*$", done.stdout, re.MULTILINE)


def test_the_third_run_in_a_row_fails(tmp_path: Path) -> None:
    two_processes = ("--numprocesses", "2")
    runs = [run(tmp_path, 0), run(tmp_path, 0, *two_processes), run(tmp_path, 0), run(tmp_path, 1), run(tmp_path, 0)]
    codes, lines = zip(*runs, strict=True)
    name, reason = "test_program.py::test_the_first_attempt_fails", "AssertionError: the server was away"
    first, second, third = (
        [f"FLAKY {name}: {verdict}: {reason}"]
        for verdict in (
            "passed when run again (1 in a row)",
            "passed when run again (2 in a row)",
            "fails the run; fix it before anything else (3 in a row)",
        )
    )

    assert codes == (0, 0, 1, 0, 0)
    assert lines == (first, second, third, [], first)
