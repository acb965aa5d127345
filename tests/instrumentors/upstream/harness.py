"""A pytest plugin: writes how many tests there are and which of them failed to the file that `--outcomes` names.

And a server that would listen at uvicorn's own port, where others on this machine may do so too, gets a free one.
"""

from __future__ import annotations

import functools
import json
import socket
from pathlib import Path
from typing import Final

import pytest
import uvicorn

_failed: Final[dict[str, str]] = {}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take the file."""
    parser.addoption("--outcomes")


def pytest_configure() -> None:
    """Find a port; `tests.support` is not at hand, the library's own tests have that name."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
    vars(uvicorn)["Config"].__init__ = functools.partialmethod(uvicorn.Config.__init__, port=port)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Note a file that cannot be read."""
    if report.failed:
        _failed[report.nodeid] = report.longreprtext


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note a test that failed."""
    if report.failed:
        _failed[report.nodeid] = report.longreprtext


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write all of it."""
    Path(str(session.config.getoption("outcomes"))).write_text(json.dumps([session.testscollected, _failed]))
