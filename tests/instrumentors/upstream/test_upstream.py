"""The tests that httpx and Starlette bring themselves: what passes without us passes with us.

Those of the installed version are run under `stagelens run`, and what failed is run again without us: none may pass then.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Sink

pytestmark = pytest.mark.soak

HERE = Path(__file__).parent
INSTALLED = HERE.parents[2] / ".venv" / "upstream"
RUN = (sys.executable, "-m", "stagelens", "run", "--")
# Of a request that is kept the user's own OpenTelemetry SDK is told, and Starlette's tests count what theirs is told.
NOTHING_KEPT = {f"STAGELENS_KEEP_{each}": "0" for each in ("SLOW", "ERRORS", "UNIFORM", "COLD")}
# Where "traceparent" is looked for, nothing may be left out ("verbosity_assertions"). The garbage collector finds what one
# test left open while any other test runs, and would fail that one ("unraisableexception").
PYTEST = ("-p", "anyio", "-p", "harness", "-p", "no:unraisableexception", "-o", "verbosity_assertions=2")

# With other tests beside them; whoever hangs is ended.
MOST_SECONDS = 200


def sdist(library: str) -> Path:
    """Return what the installed version of *library* was built from; skipped where it cannot be had, never in CI."""
    version = metadata.version(library)
    archive = INSTALLED / f"{library}-{version}.tar.gz"
    if not archive.exists():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", library]
        subprocess.run([*command, "--dest", INSTALLED, f"{library}=={version}"], check=bool(os.environ.get("CI")))
    if not archive.exists():
        pytest.skip(f"no sdist of {library} {version}; run it again where pip can download it")
    return archive


class Suite:
    """The tests of a library.

    Args:
        library: Its name.
        folder: An empty one to unpack them in.
        sink: Who is told of the requests.
    """

    def __init__(self, library: str, folder: Path, sink: Sink) -> None:
        if not INSTALLED.exists() and not os.environ.get("CI"):
            pytest.skip("what they import is not installed; `make upstream` installs it, and `make test-stacks` does")
        with tarfile.open(sdist(library)) as archive:
            # Without the library itself: the installed one is tested.
            theirs = [each for each in archive if set(each.name.split("/")[1:2]) & {"tests", "pyproject.toml"}]
            archive.extractall(folder, theirs, filter="data")
        (self._folder,) = folder.iterdir()
        self._outcomes = folder / "outcomes.json"
        self._env = sink.environment(
            PYTHONPATH=os.pathsep.join((str(INSTALLED), str(HERE))),
            PYTEST_DISABLE_PLUGIN_AUTOLOAD="1",
            **NOTHING_KEPT,
        )

    def failed(self, *options: str, under: Iterable[str] = RUN, **env: str) -> dict[str, str]:
        """Run the tests and return the output of the failed ones by their id.

        Args:
            options: Of pytest; the ids of tests among them.
            under: What the command begins with.
            env: What else is in the environment.
        """
        command = (*under, sys.executable, "-m", "pytest", *PYTEST, f"--outcomes={self._outcomes}", *options)
        self._outcomes.unlink(missing_ok=True)
        ended = subprocess.run(
            command,
            cwd=self._folder,
            env=self._env | env,
            stdout=subprocess.PIPE,
            text=True,
            timeout=MOST_SECONDS,
            check=False,
        )

        assert self._outcomes.exists(), ended.stdout
        collected, failed = json.loads(self._outcomes.read_text())
        assert collected > 0, ended.stdout
        return failed


def broken_by_us(suite: Suite, *options: str) -> dict[str, str]:
    """Return the tests that fail twice with Stagelens and pass without it, with their output."""
    broken = suite.failed(*options)
    if broken:
        # Not the test that just ran when the garbage collector found what another one had left open.
        broken = suite.failed(*options, *broken)
    # They compare all headers that were sent, and the request's trace is one: they are run again without handing it on.
    counting = [test for test, output in broken.items() if "traceparent" in output]
    if counting:
        still = suite.failed(*options, *counting, STAGELENS_PROPAGATE="false")
        broken = {test: output for test, output in broken.items() if test not in counting or test in still}
    if broken:
        without_us = suite.failed(*broken, under=())
        broken = {test: output for test, output in broken.items() if test not in without_us}
    return broken


def counted(sink: Sink) -> Counter[str]:
    """Return how many requests had each stage."""
    stages = Counter[str]()
    for name, _, point in sink.points():
        if name == "inference.stage.duration":
            stages[point["attributes"]["inference.stage"]] += int(point["count"])
    return stages


def test_the_httpx_tests_pass_inside_recorded_requests(tmp_path: Path, sink: Sink) -> None:
    """Sync and async, on asyncio and on trio: each test is a request, and what it asks of a client is part of it."""
    suite = Suite("httpx", tmp_path, sink)
    # Not what needs the internet, and not what sends nothing: it makes clients by the dozen, 20 to 80 ms each.
    left_out = ("-m", "not network", "--ignore=tests/models", "--ignore=tests/client/test_proxies.py")

    assert broken_by_us(suite, "-p", "in_requests", *left_out) == {}
    assert counted(sink)["dependency"] > 100


def test_the_starlette_tests_pass_with_instrumentation(tmp_path: Path, sink: Sink) -> None:
    """Each request of the tests is a recorded request."""
    broken = broken_by_us(Suite("starlette", tmp_path, sink))
    stages = counted(sink)

    assert broken == {}
    assert min(stages[each] for each in ("network", "serialize", "queue")) > 20
