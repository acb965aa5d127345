"""No writable file system: the agent works, and `stagelens run` reports what it cannot store."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.instrumentors.conftest import Sink

PROGRAM = """
import stagelens
for number in range(20):
    with stagelens.request("/work"), stagelens.stage("preprocess"):
        pass
print("done")
"""
# Fills the disk while it runs.
FILLING = f"""{PROGRAM}
try:
    with open("/tmp/full", "wb", 0) as file:
        while file.write(bytes(4096)):
            pass
except OSError as error:
    print(error.strerror)
"""
# Shell commands for a separate mount namespace: all file systems read-only, a full /tmp, or a small one.
_READ_ONLY = "mount -o remount,bind,ro / && mount -t tmpfs -o ro none /tmp && mount -t tmpfs -o ro none /var/tmp"
_SMALL = "mount -t tmpfs -o size={} none /tmp && mount -t tmpfs -o ro none /var/tmp"
_FULL = f"{_SMALL.format('64k')}; ! head -c 1M /dev/zero 2>/dev/null > /tmp/full"


def run(surroundings: str, program: str, env: dict[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "stagelens", "run", *options, "--", sys.executable, "-c", program]
    inside = ["unshare", "--map-root-user", "--mount", "sh", "-c", f'{surroundings}; exec "$@"', "sh", *command]
    # Candidates for temporary files: these variables, /tmp, and last the working directory; /proc is never writable.
    plain = {name: value for name, value in env.items() if name not in ("TMPDIR", "TEMP", "TMP")}
    return subprocess.run(inside, cwd="/proc", env=plain, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(autouse=True, scope="module")
def namespaces() -> None:
    """Skip where mount namespaces are not allowed, or would hide the interpreter."""
    if Path(sys.executable).parts[1] == "tmp" or Path(sys.executable).parts[1:3] == ("var", "tmp"):
        pytest.skip("the tests mount over /tmp and /var/tmp, and this Python is there")
    command = ["unshare", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a mount namespace may not be made here")


@pytest.mark.parametrize("surroundings", [_READ_ONLY, _FULL], ids=["read only", "full"])
def test_requests_are_counted_where_nothing_can_be_written_and_no_run_is_saved(sink: Sink, surroundings: str) -> None:
    completed = run(surroundings, PROGRAM, sink.environment())

    assert (completed.returncode, completed.stdout, completed.stderr) == (0, "done\n", "")
    assert sink.requests() == 20

    completed = run(surroundings, PROGRAM, sink.environment(), "--summary")

    assert (completed.returncode, completed.stdout) == (1, "")
    assert completed.stderr.startswith("stagelens: no directory for temporary files: ")
    assert completed.stderr.endswith("; set TMPDIR to a directory with free space\n")


def test_a_full_disk_loses_the_summary_not_the_run(sink: Sink) -> None:
    completed = run(_SMALL.format("2m"), FILLING, sink.environment(), "--summary")

    assert completed.stdout == "done\nNo space left on device\n"
    assert completed.returncode == 1
    assert "some requests of the run were not counted" in completed.stderr
    assert "the disk is full" in completed.stderr
    assert "No request was recorded" not in completed.stderr
    assert "Traceback" not in completed.stderr
