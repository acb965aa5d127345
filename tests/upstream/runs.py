"""Runs a suite without the agent and in three ways with it, and finds the tests whose outcome differs."""

from __future__ import annotations

import contextlib
import fnmatch
import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.upstream.suites import HERE, Suite

WITHOUT, RUN, REQUEST, PROFILE = WAYS = ("without", "run", "request", "profile")
PASSED, FAILED = "passed", "failed"
# A suite that crashes or hangs goes on with the next test; not for ever.
MOST_STARTS = 8
# Of one of these processes, and of what it does before the first test, beside what a test may take.
MOST_SECONDS, STARTING_SECONDS = 3600, 60
EXIT = "the exit of the process"
_NOTHING_RETAINED = {f"STAGELENS_KEEP_{kind}": "0" for kind in ("SLOW", "ERRORS", "UNIFORM", "COLD")}
_NOT_THEIRS = ("OTEL_", "STAGELENS_", "PYTHON")


@dataclass(slots=True)
class Outcomes:
    by_test: dict[str, str] = field(default_factory=dict[str, str])
    output: dict[str, str] = field(default_factory=dict[str, str])
    requests: int = 0
    samples: int = 0

    def number(self, outcome: str) -> int:
        return Counter(self.by_test.values())[outcome]

    @property
    def tests(self) -> int:
        return len(self.by_test.keys() - {EXIT})

    def passing(self) -> set[str]:
        return {test for test, outcome in self.by_test.items() if outcome == PASSED}

    def changed(self, before: Outcomes) -> set[str]:
        failing = {test for test, outcome in self.by_test.items() if outcome == FAILED}
        return (before.passing() - self.passing()) | {test for test in failing if before.by_test.get(test) != FAILED}


@dataclass(slots=True)
class Compared:
    outcomes: Outcomes
    flaky: set[str]
    documented: set[str]
    known: set[str]
    differences: set[str]


@dataclass(frozen=True, slots=True)
class Runner:
    suite: Suite
    endpoint: str

    def compare(self, way: str, before: Outcomes) -> Compared:
        """Run the suite in one way and compare its outcomes with those *before*; what may be flaky runs again, with and without."""
        outcomes = self.run(way)
        changed = outcomes.changed(before)
        real, documented = self._confirm(way, before, changed) if changed else (changed, changed)
        rest = real - documented
        known = {
            test for test in rest if any(fnmatch.fnmatchcase(test, difference) for difference in self.suite.differences)
        }
        return Compared(outcomes, changed - real, documented, known, rest - known)

    def _confirm(self, way: str, before: Outcomes, changed: set[str]) -> tuple[set[str], set[str]]:
        # With their neighbours: some tests pass only after others.
        groups = {_group(test) for test in changed}
        only = {test for test in before.by_test.keys() | changed if _group(test) in groups}
        without = self.run(WITHOUT, only)
        real = changed & self.run(way, only).changed(without)
        if not real:
            return real, real
        unmarked = self.run(way, only, STAGELENS_PROPAGATE="false", UPSTREAM_UNMARKED="1")
        return real, real - unmarked.changed(without)

    def run(self, way: str, only: Collection[str] = (), **more: str) -> Outcomes:
        found = Outcomes()
        # The end of the process follows from all of its tests.
        only = () if EXIT in only else only
        for _ in range(MOST_STARTS):
            if not self._start(way, only, more, found):
                break
        return found

    def _start(self, way: str, only: Collection[str], more: Mapping[str, str], found: Outcomes) -> bool:
        suite = self.suite
        stem = f"{way}{'-again' if only else ''}"
        outcomes, selection, log = (suite.work / f"{stem}.{suffix}" for suffix in ("jsonl", "json", "log"))
        outcomes.unlink(missing_ok=True)
        choice = {"only": list(only), "done": list(found.by_test), "left_out": list(suite.left_out)}
        selection.write_text(json.dumps(choice))
        theirs = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_THEIRS)}
        env = {
            **theirs,
            "PYTHONPATH": str(HERE / "inside"),
            "PATH": f"{suite.python.parent}{os.pathsep}{os.environ['PATH']}",
            "UPSTREAM_OUTCOMES": str(outcomes),
            "UPSTREAM_SELECTION": str(selection),
            "UPSTREAM_WAY": way,
        }
        command = [str(suite.python), *suite.arguments()]
        if way != WITHOUT:
            env |= {"OTEL_EXPORTER_OTLP_ENDPOINT": self.endpoint, **more}
            command = [str(suite.python), "-m", "stagelens", "run", "--", *command]
        if suite.counts_spans:
            env |= _NOTHING_RETAINED
        if way in {REQUEST, PROFILE}:
            env["STAGELENS_OVERHEAD_BUDGET"] = "none"
        with log.open("ab") as output:
            process = subprocess.Popen(
                command,
                cwd=suite.cwd,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            hung = _hangs(process, outcomes, suite.hang_seconds)
        return _read(outcomes, found, process.returncode, "hung" if hung else "crashed")


def _group(test: str) -> str:
    file, _, name = test.partition("::")
    return file if name else test.rpartition(".")[0]


def _hangs(process: subprocess.Popen[bytes], outcomes: Path, hang_seconds: int) -> bool:
    """Wait for the end of *process*, or until no test has ended for long; end what it started. Return whether it hung."""
    size, since, hung = 0, time.monotonic() + STARTING_SECONDS, False
    last = time.monotonic() + MOST_SECONDS
    while process.poll() is None and not hung:
        time.sleep(0.5)
        now = outcomes.stat().st_size if outcomes.exists() else 0
        if now != size:
            size, since = now, time.monotonic()
        hung = time.monotonic() > min(since + hang_seconds, last)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return hung


def _read(outcomes: Path, found: Outcomes, code: int, otherwise: str) -> bool:
    started: dict[str, None] = {}
    ended = False
    for line in outcomes.read_text().splitlines() if outcomes.exists() else ():
        what, *details = json.loads(line)
        if what == "started":
            started[details[0]] = None
        elif what == "ended":
            ended = True
            found.requests += details[0]
            found.samples += details[1]
        else:
            test, output = details
            started.pop(test, None)
            found.by_test[test] = what
            if output:
                found.output[test] = output
    for test in started:
        found.by_test[test], found.output[test] = FAILED, f"the test {otherwise} (exit code {code})"
    if found.by_test:
        found.by_test[EXIT] = PASSED if ended and code >= 0 else FAILED
    return bool(started)
