"""The harness as a plugin of pytest."""

from __future__ import annotations

import inspect
from collections.abc import Generator

import harness  # pyright: ignore[reportMissingImports] - beside this file
import pytest


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests that are left out."""
    left_out = [item for item in items if not harness.is_selected(item.nodeid)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if harness.is_selected(item.nodeid)]


def pytest_itemcollected(item: pytest.Item) -> None:
    """Open the request inside of a coroutine: the task of an event loop may be older than the test."""
    if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
        scope = harness.request()
        if callable(scope):
            item.obj = scope(item.obj)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call() -> Generator[None]:
    """Open a request around the test."""
    with harness.request():
        yield


def pytest_runtest_logstart(nodeid: str) -> None:
    """Note the start of a test."""
    harness.outcomes.start(nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note one of its phases."""
    if report.outcome != harness.PASSED:
        harness.outcomes.note(report.nodeid, report.outcome, report.longreprtext)


def pytest_runtest_logfinish(nodeid: str) -> None:
    """Write its outcome."""
    harness.outcomes.finish(nodeid)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Note a file that cannot be read."""
    if report.failed:
        harness.outcomes.note(report.nodeid, harness.FAILED, report.longreprtext)
