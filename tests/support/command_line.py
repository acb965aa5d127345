"""The command line in this process, with its errors raised."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from stagelens.cli.commands import find_command, run_command


def run(*words: str | Path, environment: Mapping[str, str] = os.environ) -> int:
    given = list(map(str, words))
    command = find_command(given)
    assert command is not None
    return run_command(command, given, environment)
