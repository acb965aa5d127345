"""Asking the command's interpreter: it is started as the command would start it, with `probe.py` for a program."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import probe
from .environment import Interpreter
from .target import Target

# A busy machine may take a second; an environment with thousands of packages on a network's disk many.
PATIENCE_SECONDS = 60.0
# Nothing may be sent by what is started along with the interpreter, and no environment be changed.
QUIET = {
    "DD_INSTRUMENTATION_TELEMETRY_ENABLED": "false",
    "DD_TRACE_ENABLED": "false",
    "NEW_RELIC_MONITOR_MODE": "false",
    "OTEL_LOGS_EXPORTER": "none",
    "OTEL_METRICS_EXPORTER": "none",
    "OTEL_TRACES_EXPORTER": "none",
    "PIXI_FROZEN": "true",
    "PIXI_NO_INSTALL": "true",
    "UV_NO_SYNC": "1",
}


def ask(target: Target, env: Mapping[str, str]) -> tuple[Interpreter | None, str]:
    """Return what the interpreter of *target* says, started in *env*; None and why, where it does not answer."""
    command = [*target.prefix, target.interpreter, *target.flags, "-c", Path(probe.__file__).read_text()]
    try:
        said, problems = _output(command, {**env, **QUIET})
    except OSError as error:
        return None, f"{error.filename or command[0]}: {error.strerror}"
    except subprocess.TimeoutExpired:
        return None, f"it did not answer within {PATIENCE_SECONDS:g} s"
    answers = [line.removeprefix(probe.MARK) for line in said.splitlines() if line.startswith(probe.MARK)]
    if not answers:
        return None, problems.strip().splitlines()[-1] if problems.strip() else "it said nothing"
    facts: dict[str, Any] = json.loads(answers[-1])
    facts["environment"] = {
        **{name: value for name, value in facts["environment"].items() if name not in QUIET},
        **{name: env[name] for name in QUIET if name in env},
    }
    return Interpreter(**facts), ""


def _output(command: list[str], env: Mapping[str, str]) -> tuple[str, str]:
    """Return what *command* writes; whatever it has started ends with it."""
    # A session of its own: what is typed in the terminal is not for it, and all of it can be ended together.
    process = subprocess.Popen(  # noqa: S603 - the user's own
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        return process.communicate(timeout=PATIENCE_SECONDS)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
