"""The streams of the command line: of any encoding, closed, or none at all."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from stagelens.cli.commands import COMMANDS

ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
STAGELENS = (sys.executable, "-m", "stagelens")


def run(*words: str, redirected: str = "", **environment: str) -> subprocess.CompletedProcess[bytes]:
    command = ("sh", "-c", f'exec "$@" {redirected}', "sh", *STAGELENS, *words)
    return subprocess.run(command, capture_output=True, env={**os.environ, **environment}, timeout=60, check=False)


@pytest.mark.parametrize("environment", [ASCII, {"PYTHONIOENCODING": "ascii"}, {"PYTHONIOENCODING": "latin-1"}])
def test_the_help_is_printed_in_every_encoding(environment: dict[str, str]) -> None:
    ran = run("--help", **environment)

    assert (ran.returncode, ran.stderr) == (0, b"")
    assert b"`silence`... manage incidents" in ran.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_every_command_is_printed_in_ascii(command: str) -> None:
    ran = run(command, "--help", **ASCII)

    assert (ran.returncode, ran.stderr) == (0, b"")
    assert ran.stdout.isascii()


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["doctor", "--help"], ["check", "missing.yaml"]])
def test_a_closed_stream_is_no_error(words: list[str]) -> None:
    open_streams, closed = run(*words), run(*words, redirected=">&-")
    silent = run(*words, redirected="2>&- >&-")

    assert closed.returncode == silent.returncode == open_streams.returncode
    assert closed.stderr == open_streams.stderr
    assert (silent.stdout, silent.stderr) == (b"", b"")


def test_the_command_of_a_run_gets_the_streams_of_stagelens_unchanged() -> None:
    code = "import sys; print(sys.stdout.encoding, sys.stdout.errors, sys.stdin, file=sys.stderr)"
    plain = subprocess.run([sys.executable, "-c", code], capture_output=True, env={**os.environ, **ASCII}, check=True)
    closed = run(
        "run", "--", sys.executable, "-c", "import os, sys; os.write(2, repr(sys.stdout).encode())", redirected=">&-"
    )

    assert run("run", "--", sys.executable, "-c", code, **ASCII).stderr == plain.stderr
    assert closed.stderr == b"None"
