"""Part of the process of a suite: writes the outcome of each test as one line of JSON, and runs each test in a recorded request.

`harness_pytest.py` is this for pytest. For suites of `unittest`, this file is the command that starts them:

    python harness.py -m MODULE [ARGUMENT ...]
    python harness.py FILE [ARGUMENT ...]

The environment has the file for the outcomes (`UPSTREAM_OUTCOMES`), the tests to run (`UPSTREAM_SELECTION`), and the way to run them
(`UPSTREAM_WAY`, one of `__main__.WAYS`).
"""

from __future__ import annotations

import atexit
import contextlib
import contextvars
import fnmatch
import functools
import importlib
import importlib.util
import json
import os
import re
import runpy
import sys
import time
import traceback
import unittest
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, TypeAlias

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
WAY: Final = os.environ["UPSTREAM_WAY"]
_WITH_REQUESTS: Final = frozenset({"request", "profile"})
# Of the output of a test that failed.
_MAX_CHARS: Final = 6000
_PID: Final = os.getpid()
_samples = 0

Test: TypeAlias = unittest.TestCase


def _is_selected() -> Callable[[str], bool]:
    selection: dict[str, list[str]] = json.loads(Path(os.environ["UPSTREAM_SELECTION"]).read_text())
    only, done = set(selection["only"]), set(selection["done"])
    left_out = re.compile("|".join(map(fnmatch.translate, selection["left_out"])) or "(?!)")
    return lambda test: (not only or test in only) and test not in done and left_out.match(test) is None


is_selected: Final = _is_selected()


def write(*line: object) -> None:
    if os.getpid() == _PID:
        file = _open(os.environ.get("UPSTREAM_OUTCOMES", _OUTCOMES), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        _write(file, json.dumps(line).encode() + b"\n")
        _close(file)


_OUTCOMES: Final = os.environ["UPSTREAM_OUTCOMES"]
_open, _write, _close = os.open, os.write, os.close


class Outcomes:
    def __init__(self) -> None:
        self._running: dict[str, tuple[str, str]] = {}

    def start(self, test: str) -> None:
        self._running[test] = (PASSED, "")
        write("started", test)

    def note(self, test: str, outcome: str, output: str = "") -> None:
        """Note an outcome of *test*; of one that was not started, such as that of a whole class, at once."""
        if test not in self._running:
            if outcome == FAILED:
                write(outcome, test, output[-_MAX_CHARS:])
        elif self._running[test][0] != FAILED:
            self._running[test] = (outcome, output[-_MAX_CHARS:])

    def finish(self, test: str) -> None:
        outcome, output = self._running.pop(test, (PASSED, ""))
        write(outcome, test, output)


outcomes: Final = Outcomes()


def request() -> AbstractContextManager[object]:
    """Return a recorded request, or nothing in the ways that have none."""
    if WAY not in _WITH_REQUESTS:
        return contextlib.nullcontext()
    import stagelens  # noqa: PLC0415 - not in the process without us

    return stagelens.request("test")


def _end() -> None:
    recorder = sys.modules.get("stagelens.instrumentors.recorder")
    write("ended", next(recorder.arrivals) if recorder is not None else 0, _samples)


def _mark_nothing() -> None:
    names: Any = importlib.import_module("stagelens.core.names")
    names.COUNTED = ""


def _start_agent() -> None:
    with request():
        pass
    recorder = importlib.import_module("stagelens.instrumentors.recorder")
    while recorder.state.register is None:
        time.sleep(0.01)
    # This starts the thread that exports, too: some tests compare the threads.
    recorder.flush()


def _profile_all() -> None:
    profile: Any = importlib.import_module("stagelens.instrumentors.agent.profile")
    profile.IDLE_SECONDS, profile.IDLE_SHARE, profile.SLOW_SHARE = profile.SLOW_SECONDS, 1.0, 1.0
    profile.RecentDurations.threshold = lambda *_: 0
    profile.RecentDurations.shortest = property(lambda _: 0, lambda *_: None)
    samples_of = profile.Profiler.samples_of

    def counted(*arguments: Any) -> Any:
        global _samples  # noqa: PLW0603 - written at the end
        _samples += 1
        return samples_of(*arguments)

    profile.Profiler.samples_of = counted


def _in_requests() -> None:
    run = Test.run

    @functools.wraps(run)
    def in_a_request(self: Test, result: unittest.TestResult | None = None) -> unittest.TestResult | None:
        if not is_selected(self.id()) and "pytest" not in sys.modules:
            return None
        with request():
            if hasattr(self, "_asyncioTestContext"):
                # It was copied when the test was made, before the request.
                vars(self)["_asyncioTestContext"] = contextvars.copy_context()
            return run(self, result)

    Test.run = in_a_request


def _record_unittest() -> None:
    results = vars(unittest)["TestResult"]

    def around(name: str, note: Callable[..., None]) -> None:
        original = getattr(results, name)

        @functools.wraps(original)
        def call(self: unittest.TestResult, test: Test, *details: Any) -> None:
            note(test.id(), *details)
            original(self, test, *details)

        setattr(results, name, call)

    def fail(test: str, error: Any = None) -> None:
        outcomes.note(test, FAILED, "".join(traceback.format_exception(*error)) if error else "")

    def fail_part(test: str, _: Test, error: Any) -> None:
        if error is not None:
            fail(test, error)

    around("startTest", outcomes.start)
    around("stopTest", outcomes.finish)
    around("addError", fail)
    around("addFailure", fail)
    around("addUnexpectedSuccess", fail)
    around("addSubTest", fail_part)
    for name in ("addSkip", "addExpectedFailure"):
        around(name, lambda test, *_: outcomes.note(test, SKIPPED))


def _drop_missing() -> None:
    for name in sys.argv[1:]:
        if importlib.util.find_spec(f"test.{name}") is None:
            sys.argv.remove(name)
            write(SKIPPED, f"test.{name}: this Python does not have it", "")


def main() -> None:
    _record_unittest()
    if sys.argv[1] == "-m":
        sys.argv[:3] = sys.argv[2:3]
        sys.path[0] = os.getcwd()  # noqa: PTH109 - as the interpreter does
        if sys.argv[0] == "test.regrtest":
            _drop_missing()
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        del sys.argv[0]
        sys.path[0] = str(Path(sys.argv[0]).absolute().parent)
        runpy.run_path(sys.argv[0], run_name="__main__")


# A process that `multiprocessing` starts imports this file again.
if __name__ != "__mp_main__":
    atexit.register(_end)
    _in_requests()
    if "UPSTREAM_UNMARKED" in os.environ:
        _mark_nothing()
    if WAY == "profile":
        _profile_all()
    if WAY in _WITH_REQUESTS:
        _start_agent()
if __name__ == "__main__":
    main()
