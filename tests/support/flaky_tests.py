"""A pytest plugin: prints under FLAKY which tests passed only when run again, and fails the run at the third time in a row.

pytest-rerunfailures runs them again; `tests/conftest.py` says which ones it may. How often in a row is kept in the user's
cache folder, so that clones of the repository on one machine share it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path

import pytest

# Runs in a row in which a test needed a second attempt, before that fails the run.
MOST_IN_A_ROW = 2


class FlakyTests:
    def __init__(self, history: Path) -> None:
        self._history = history
        self._reasons: dict[str, str] = {}
        self._passed: set[str] = set()
        self._failed: set[str] = set()
        self._in_a_row: dict[str, int] = {}

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if str(report.outcome) == "rerun":
            self._reasons[report.nodeid] = _reason(report)
        elif report.failed:
            self._failed.add(report.nodeid)
        elif report.when == "call" and report.passed:
            self._passed.add(report.nodeid)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None]:
        """Count, keep the counts, and fail the run where a test needed a second attempt too often."""
        flaky = self._reasons.keys() & (self._passed - self._failed)
        before = self._read()
        self._in_a_row = {name: before.get(name, 0) + 1 for name in flaky}
        counts = {name: count for name, count in before.items() if name not in self._passed} | self._in_a_row
        if counts or before:
            self._history.parent.mkdir(parents=True, exist_ok=True)
            self._history.write_text(json.dumps(counts, indent=1, sort_keys=True))
        if session.exitstatus == pytest.ExitCode.OK and any(map(_is_too_often, self._in_a_row.values())):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        yield

    @pytest.hookimpl
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._in_a_row:
            return
        terminalreporter.section("FLAKY", red=True)
        for name, count in sorted(self._in_a_row.items()):
            verdict = "fails the run; fix it before anything else" if _is_too_often(count) else "passed when run again"
            terminalreporter.line(f"FLAKY {name}: {verdict} ({count} in a row): {self._reasons[name]}")

    def _read(self) -> dict[str, int]:
        try:
            return json.loads(self._history.read_text())
        except (OSError, ValueError):
            return {}


def _is_too_often(in_a_row: int) -> bool:
    return in_a_row > MOST_IN_A_ROW


def _reason(report: pytest.TestReport) -> str:
    lines = [line[1:].strip() for line in report.longreprtext.splitlines() if line.startswith("E ")]
    return lines[0] if lines else report.longreprtext.strip().rpartition("\n")[2]


def pytest_configure(config: pytest.Config) -> None:
    """Register the plugin in the process that sees all reports: not in one of pytest-xdist's."""
    if hasattr(config, "workerinput"):
        return
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    config.pluginmanager.register(FlakyTests(folder / "stagelens" / "flaky_tests.json"), "flaky_tests")
