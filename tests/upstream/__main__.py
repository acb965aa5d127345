"""Run the tests of other libraries without and with the agent; fail if a test passes only without it.

python -m tests.upstream --word httpx      # the suites with this in their name
python -m tests.upstream --write           # and write the table of docs/design/upstream.md
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.support.http_server import http_server
from tests.upstream import table
from tests.upstream.runs import PROFILE, REQUEST, WAYS, WITHOUT, Compared, Outcomes, Runner
from tests.upstream.suites import Suite, built_wheel, read_suites


@dataclass(frozen=True, slots=True)
class Result:
    suite: Suite
    before: Outcomes
    ways: dict[str, Compared]
    problem: str = ""

    @property
    def succeeded(self) -> bool:
        return not self.problem and not any(way.differences for way in self.ways.values())


def check(suite: Suite, wheel: Path, python: str, endpoint: str, report: Callable[[str], None]) -> Result:
    started = time.monotonic()
    try:
        suite.prepare(wheel, python)
        report(f"{suite.name}: installed in {time.monotonic() - started:.0f} s")
        with suite.serving():
            return _run(Runner(suite, endpoint), report)
    except (OSError, subprocess.CalledProcessError) as error:
        return Result(suite, Outcomes(), {}, f"{suite.name}: {error}")


def _run(runner: Runner, report: Callable[[str], None]) -> Result:
    suite = runner.suite
    for log in suite.work.glob("*.log"):
        log.unlink()
    before = runner.run(WITHOUT)
    report(_line(suite, WITHOUT, before))
    ways: dict[str, Compared] = {}
    for way in WAYS[1:]:
        ways[way] = runner.compare(way, before)
        report(_line(suite, way, ways[way].outcomes) + f", {len(ways[way].differences)} different")
        _save(suite, way, ways[way], report)
    return Result(suite, before, ways, _problem(suite, before, ways))


def _line(suite: Suite, way: str, outcomes: Outcomes) -> str:
    return f"{suite.name}: {way}: {outcomes.number('passed')} passed, {outcomes.number('failed')} failed"


def _save(suite: Suite, way: str, compared: Compared, report: Callable[[str], None]) -> None:
    for label in ("flaky", "known", "differences"):
        for test in sorted(getattr(compared, label)):
            report(f"  {label}: {suite.name}: {way}: {test}")
    output = {test: compared.outcomes.output.get(test, "") for test in sorted(compared.differences | compared.known)}
    (suite.work / f"{way}.differences.json").write_text(json.dumps(output, indent=1))


def _problem(suite: Suite, before: Outcomes, ways: dict[str, Compared]) -> str:
    passed = before.number("passed")
    if passed <= len(before.by_test) / 2:
        return f"{suite.name}: most tests do not pass without the agent: see {suite.work}/{WITHOUT}.log"
    for way in (REQUEST, PROFILE):
        # A test may end its requests in a process of its own, or with the whole process.
        if ways[way].outcomes.requests < passed / 2:
            return f"{suite.name}: {way}: only {ways[way].outcomes.requests} requests were recorded for {passed} tests"
    if not ways[PROFILE].outcomes.samples:
        return f"{suite.name}: the profiler sampled nothing"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.upstream", description=__doc__)
    parser.add_argument("--word", default="", help="part of the names of the suites to run, or a regular expression")
    parser.add_argument("--python", default=sys.executable, help="interpreter that runs them")
    parser.add_argument("--jobs", type=int, default=2, help="number of suites at a time")
    parser.add_argument("--write", action="store_true", help="write their rows into docs/design/upstream.md")
    options = parser.parse_args()
    suites = read_suites(options.word)
    if not suites:
        print(f"No suite has {options.word!r} in its name.")
        return 2

    def report(line: str) -> None:
        print(line, flush=True)

    with built_wheel() as wheel, http_server() as collector, ThreadPoolExecutor(options.jobs) as pool:
        results = list(pool.map(lambda suite: check(suite, wheel, options.python, collector.url, report), suites))
    rows = {
        result.suite.title: table.row(result.suite, result.before, result.ways) for result in results if result.ways
    }
    print(*table.HEAD, *rows.values(), sep="\n")
    if options.write:
        table.write(rows, read_suites(""))
    print(f"{sum(result.before.tests for result in results):,} tests")
    for result in results:
        for way, compared in result.ways.items():
            for test in sorted(compared.differences):
                print(f"DIFFERENT {result.suite.name} {way}: {test}")
        known = set[str]().union(*(compared.known for compared in result.ways.values()))
        for pattern in result.suite.differences:
            if not fnmatch.filter(known, pattern):
                print(f"UNUSED {result.suite.name}: {pattern}: no test differs any more")
        if result.problem:
            print(f"PROBLEM {result.problem}")
    return 0 if all(result.succeeded for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
