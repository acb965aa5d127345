"""The harness as a plugin of pytest."""

from __future__ import annotations

import inspect
from collections.abc import Generator

import harness  # pyright: ignore[reportMissingImports] - beside this file
import pytest


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = [item for item in items if not harness.is_selected(item.nodeid)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if harness.is_selected(item.nodeid)]


def pytest_itemcollected(item: pytest.Item) -> None:
    if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
        scope = harness.request()
        if callable(scope):
            item.obj = scope(item.obj)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call() -> Generator[None]:
    with harness.request():
        yield


def pytest_runtest_logstart(nodeid: str) -> None:
    harness.outcomes.start(nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.outcome != harness.PASSED:
        harness.outcomes.note(report.nodeid, report.outcome, report.longreprtext)


def pytest_runtest_logfinish(nodeid: str) -> None:
    harness.outcomes.finish(nodeid)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        harness.outcomes.note(report.nodeid, harness.FAILED, report.longreprtext)
