"""The comparison finds each kind of difference; the suite here is a file of its own."""

from __future__ import annotations

import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.support.http_server import http_server
from tests.upstream import suites
from tests.upstream.runs import EXIT, FAILED, PROFILE, RUN, WITHOUT, Outcomes, Runner
from tests.upstream.suites import Suite, read_suites

TINY = """
import os, sys, time, unittest

def agent():
    return "stagelens" in sys.modules

def in_a_request():
    return agent() and sys.modules["stagelens.instrumentors.records"].current.get() is not None

class Tests(unittest.TestCase):
    def test_a_passing(self):
        pass

    def test_b_fails_everywhere(self):
        self.fail()

    def test_c_fails_in_a_part(self):
        with self.subTest("first"):
            self.assertFalse(agent())

    def test_d_crashes(self):
        if agent():
            os.abort()

    def test_e_hangs(self):
        while agent():
            time.sleep(1)

    def test_f_fails_in_a_request(self):
        self.assertFalse(in_a_request())

    def test_g_compares_headers(self):
        time.sleep(0.5)
        self.assertTrue(not agent() or os.environ.get("STAGELENS_PROPAGATE") == "false")

class Coroutines(unittest.IsolatedAsyncioTestCase):
    async def test_h_fails_in_a_request(self):
        self.assertFalse(in_a_request())
"""
CHANGED_BY_RUN = {"Tests.test_c_fails_in_a_part", "Tests.test_d_crashes", "Tests.test_e_hangs"}
CHANGED_IN_REQUESTS = {*CHANGED_BY_RUN, "Tests.test_f_fails_in_a_request", "Coroutines.test_h_fails_in_a_request"}


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Runner]:
    monkeypatch.setattr(suites, "WORK", tmp_path)
    monkeypatch.setattr(Suite, "python", Path(sys.executable))
    suite = Suite("tiny", "Tiny", command=("-m", "unittest", "tiny"), hang_seconds=5)
    suite.cwd.mkdir(parents=True)
    (suite.cwd / "tiny.py").write_text(TINY)
    with http_server() as collector:
        yield Runner(suite, collector.url)


@pytest.mark.soak
def test_each_difference_is_found(runner: Runner) -> None:
    before = runner.run(WITHOUT)
    ways = {way: runner.compare(way, before) for way in (RUN, PROFILE)}

    assert before.tests == 8
    assert {test for test, outcome in before.by_test.items() if outcome == FAILED} == {
        "tiny.Tests.test_b_fails_everywhere"
    }
    for way, expected in ((RUN, CHANGED_BY_RUN), (PROFILE, CHANGED_IN_REQUESTS)):
        assert {test.removeprefix("tiny.") for test in ways[way].differences} == expected, way
        assert ways[way].documented == {"tiny.Tests.test_g_compares_headers"}
        assert EXIT in ways[way].outcomes.passing()
    assert ways[RUN].outcomes.samples == 0
    assert ways[PROFILE].outcomes.samples > 0


def test_a_test_that_is_missing_is_a_difference() -> None:
    before = Outcomes({"one": "passed", "two": "skipped"})

    assert Outcomes({"two": "skipped"}).changed(before) == {"one"}
    assert Outcomes({"one": "passed", "two": "failed", "file": "failed"}).changed(before) == {"two", "file"}


def test_the_suites_can_be_read() -> None:
    found = read_suites("")

    assert len({suite.title for suite in found}) == len(found)
    assert all(suite.version or suite.source == "python" for suite in found)
