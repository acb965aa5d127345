"""Inspection of a command: facts about its interpreter, which `probe.py` prints when it is started as the command would."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from . import probe
from .target import CommandTarget

# Oldest tested versions, as in requires-python and dependencies of pyproject.toml.
OLDEST_PYTHON = (3, 11)
OLDEST_OPENTELEMETRY = (1, 30)
# A start takes about a second on a busy machine, and longer with thousands of packages on a network disk.
RESPONSE_TIMEOUT_SECONDS = 60.0
# Settings that keep wrappers of the interpreter from sending data or changing an environment.
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


class DoctorFinding(NamedTuple):
    text: str
    fix: str = ""
    hurts: bool = True


@dataclass(frozen=True, slots=True)
class Interpreter:
    """Facts about the interpreter of the command, from a test start in the command's environment."""

    executable: str
    version: Sequence[int]
    implementation: str
    gil: bool
    ignores_environment: bool
    no_site: bool
    no_user_site: bool
    sitecustomize: str
    stagelens: Mapping[str, Any]
    thread_error: str
    distributions: Mapping[str, str]
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Inspection:
    target: CommandTarget
    environment: Mapping[str, str]
    interpreter: Interpreter | None = None
    silence: str = ""
    saved_here: bool = False
    alone: bool = False

    def installed(self, distribution: str) -> str:
        return self.interpreter.distributions.get(distribution, "") if self.interpreter else ""


Check: TypeAlias = Callable[[Inspection], Iterator[DoctorFinding]]


def inspect_interpreter(target: CommandTarget, env: Mapping[str, str]) -> tuple[Interpreter | None, str]:
    """Start the interpreter of *target* in *env* and return its facts; None and the reason if it does not respond."""
    command = [*target.prefix, target.interpreter, *target.flags, "-c", Path(probe.__file__).read_text()]
    try:
        output, problems = _interpreter_output(command, {**env, **QUIET})
    except OSError as error:
        return None, f"{error.filename or command[0]}: {error.strerror}"
    except subprocess.TimeoutExpired:
        return None, f"it did not respond within {RESPONSE_TIMEOUT_SECONDS:g} s"
    reports = [line.removeprefix(probe.MARK) for line in output.splitlines() if line.startswith(probe.MARK)]
    if not reports:
        return None, problems.strip().splitlines()[-1] if problems.strip() else "it printed no output"
    facts: dict[str, Any] = json.loads(reports[-1])
    facts["environment"] = {
        **{name: value for name, value in facts["environment"].items() if name not in QUIET},
        **{name: env[name] for name in QUIET if name in env},
    }
    return Interpreter(**facts), ""


def _interpreter_output(command: list[str], env: Mapping[str, str]) -> tuple[str, str]:
    # A session of its own: no input from the terminal, and all processes can be terminated together.
    process = subprocess.Popen(  # noqa: S603 - the user's own command
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
        return process.communicate(timeout=RESPONSE_TIMEOUT_SECONDS)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
