"""The libraries that `make around` puts beside the others."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from stagelens.instrumentors import recorder
from stagelens.instrumentors.records import current
from stagelens.instrumentors.request_marks import read_marks

AROUND = Path(__file__).parents[4] / ".venv" / "around"


@pytest.fixture
def around(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with the libraries, which the test can import; without it the test is skipped, never in CI."""
    if not AROUND.exists() and not os.environ.get("CI"):
        pytest.skip("no libraries; `make around` installs them, and `make test-stacks` does")
    monkeypatch.setattr(sys, "path", [*sys.path, str(AROUND)])
    return AROUND


@pytest.fixture(autouse=True)
def every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Record calls of any duration, so that no test depends on the machine."""
    monkeypatch.setattr("stagelens.instrumentors.instrumentor.MIN_CALL_NS", 0)


@pytest.fixture
def stages() -> Generator[Callable[[], list[str]]]:
    """Run the test inside a request; the function returns the stages so far, except calls inside of calls of the same stage."""
    opened = recorder.begin()
    assert opened is not None
    marks, token = opened

    def outermost() -> list[str]:
        found = read_marks(marks).intervals
        return [
            stage
            for place, (stage, start, _) in enumerate(found)
            if not any(outer == stage and begun <= start for outer, begun, _ in found[place + 1 :])
        ]

    yield outermost
    recorder.end(token)


@pytest.fixture
def failed_calls(stages: Callable[[], list[str]]) -> Callable[[], list[str]]:
    """The function returns the outcomes of the failed calls of the request so far."""
    assert stages() == []
    marks = current.get()
    assert marks is not None
    return lambda: [outcome for outcome, _ in read_marks(marks).facts.get("@failed", ())]
