"""The libraries that `make around` puts beside the others."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from stagelens.instrumentors import recorder

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
    """Run the test inside a request; the function returns the stages recorded so far."""
    opened = recorder.begin()
    assert opened is not None
    marks, token = opened
    yield lambda: [key for key in marks[::3] if key[0] != "@"]
    recorder.end(token)
