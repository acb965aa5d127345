"""Run a command again with an extra of the package, where `uvx` or `pipx run` made a throw-away environment without it."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

_NAME = "stagelens"
# Set in the second process, which must not start a third one.
_AGAIN = "STAGELENS_RERUN_WITH"


def command_with(extra: str, words: Sequence[str], env: Mapping[str, str], prefix: Path) -> list[str] | None:
    """Return the command that runs `stagelens` with *words* and with *extra*; None outside of a throw-away environment."""
    if env.get(_AGAIN) == extra:
        return None
    # uv sets UV for the programs that it starts; `uv run` starts them in a project's own environment, which uv does not cache.
    if env.get("UV") and "archive-v0" in prefix.parts:
        return [env["UV"], "tool", "run", "--from", _requirement(extra), _NAME, *words]
    pipx = shutil.which("pipx", path=env.get("PATH"))
    if pipx and (prefix / "pipx_metadata.json").exists() and prefix.parent.name == ".cache":
        return [pipx, "run", "--spec", _requirement(extra), _NAME, *words]
    return None


def _requirement(extra: str) -> str:
    named = f"{_NAME}[{extra}]"
    try:
        package = distribution(_NAME)
    except PackageNotFoundError:
        return named
    origin = package.read_text("direct_url.json")
    return f"{named} @ {json.loads(origin)['url']}" if origin else f"{named}=={package.version}"


def rerun_with(extra: str, words: Sequence[str]) -> None:
    """Replace this process by one that has *extra*, if `uvx` or `pipx run` started it; else return."""
    command = command_with(extra, words, os.environ, Path(sys.prefix))
    if command is not None:
        print(f"stagelens: this command needs the {extra} extra, which is being installed", file=sys.stderr, flush=True)
        os.environ[_AGAIN] = extra
        os.execv(command[0], command)  # noqa: S606 - the tool that started this process
