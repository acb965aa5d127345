"""Inspection of a command: its interpreter, started as the command would start it, its environment and its sources."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from . import probe
from .sources import Sources
from .target import Target

# Where we were tested; see pyproject's requires-python and dependencies.
OLDEST_PYTHON = (3, 11)
OLDEST_OPENTELEMETRY = (1, 30)


class Finding(NamedTuple):
    """One problem or hint.

    Args:
        text: What is so, and what follows from it.
        fix: What to write, as it is to be written; "" where nothing can be done.
        hurts: Whether something is lost by it: not timed, not delivered, wrong. Else it is worth knowing.
    """

    text: str
    fix: str = ""
    hurts: bool = True


@dataclass(frozen=True, slots=True)
class Interpreter:
    """Facts about the command's interpreter, started as the command would start it.

    Args:
        executable: Its path.
        version: Its version.
        implementation: `cpython` or another.
        gil: Whether it has the lock.
        ignores_environment: Whether it was started with `-E` or `-I`.
        no_site: Whether it was started with `-S`.
        no_user_site: Whether what is installed for the user only is left out.
        sitecustomize: The file that ran as `sitecustomize`, "" for none.
        stagelens: Whether ours is `loaded`, and the `error` of importing it; its `version` and `file` where there is none.
        thread_error: Why it cannot start a thread, "" where it can.
        distributions: What is installed, and in which version.
        places: The folders of some packages.
        environment: The variables checks ask for, as they arrive.
    """

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
    places: Mapping[str, str]
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Inspection:
    """The inspected command: its target, environment, interpreter and sources.

    Args:
        command: The command as it was given.
        target: What it comes to.
        environment: Its environment, as far as it is known.
        interpreter: What its interpreter says; None where it was not asked or did not answer.
        silence: Why it did not answer, "" where it did or was not asked.
        sources: The modules of the command's own that were found.
        kept_here: Whether the run would be kept by `stagelens run` itself, so that no collector is needed.
        alone: Whether that is so only because no collector answers, and a person waits at a terminal.
    """

    command: Sequence[str]
    target: Target
    environment: Mapping[str, str]
    interpreter: Interpreter | None = None
    silence: str = ""
    sources: Sources = field(default_factory=lambda: Sources({}))
    kept_here: bool = False
    alone: bool = False

    def installed(self, distribution: str) -> str:
        """Return the version of *distribution* in the command's environment, "" where it is not there or not known."""
        return self.interpreter.distributions.get(distribution, "") if self.interpreter else ""

    def option(self, *names: str) -> str | None:
        """Return the value of the first of the options *names*, "" for an option without value; None if absent."""
        words = self.target.words
        for place, word in enumerate(words):
            name, sign, value = word.partition("=")
            if name in names:
                following = words[place + 1] if place + 1 < len(words) else ""
                return value if sign else "" if following.startswith("-") else following
            # -w4 is -w 4.
            if word[:2] in names and not word.startswith("--"):
                return word[2:]
        return None


Check: TypeAlias = Callable[[Inspection], Iterator[Finding]]


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


def ask_interpreter(target: Target, env: Mapping[str, str]) -> tuple[Interpreter | None, str]:
    """Start the interpreter of *target* in *env* and return its facts; None and the reason if it does not answer."""
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
    """Return the output of *command*; end all processes that it has started."""
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
