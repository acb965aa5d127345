"""The page of the collectors in a browser: themes, phones, no collector, and a collector that stops."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from playwright.sync_api import expect

from stagelens.store import Store
from stagelens.store.collectors import Report, Vitals, write_report
from tests.dashboard.goldens import complaint
from tests.dashboard.tabs import PHONE, OpenTab, Serve, screenshot, serious_violations

pytestmark = pytest.mark.stacks

AT = datetime(2026, 11, 20, 12, 0, 3, tzinfo=UTC).timestamp()
DOWN = {"http://vllm-0:8000/metrics": "connection refused"}
REPORTS = (
    Report("a", "pod-a:4318", "1.2.3", AT - 86_400, AT - 3, Vitals({"metrics": 52.0, "traces": 120.0}, targets_up=3)),
    Report(
        "b",
        "pod-b:4318",
        "1.2.3",
        AT - 8640,
        AT - 8,
        Vitals({"metrics": 48.0}, {"429": 3.2}, {"metrics too_old": 4}, 17, 2e6, targets_down=DOWN,
               failing=(("committing", "database or disk is full", AT - 312),)),
    ),
    Report("c", "pod-c:4318", "1.2.2", AT - 86_400, AT - 700),
)  # fmt: skip


class Clock:
    now = AT

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[Store]:
    store = Store.open(f"sqlite:///{tmp_path}/stagelens.db", clock=clock)
    yield store
    store.close()


@pytest.fixture
def address(serve: Serve, store: Store, clock: Clock) -> str:
    return serve(store, clock=clock)


def write(store: Store, *reports: Report) -> None:
    with store.transaction() as connection:
        for report in reports:
            write_report(connection, report)


@pytest.mark.parametrize("name", ["collectors", "collectors-none"])
def test_the_page_has_no_errors_and_fits_phones(open_tab: OpenTab, store: Store, address: str, name: str) -> None:
    write(store, *(REPORTS if name == "collectors" else ()))
    differences: list[str] = []
    for theme in ("light", "dark"):
        visit = open_tab(address, color_scheme=theme, reduced_motion="reduce")
        page = visit.go("/collectors")
        differences.append(complaint(screenshot(page, f"{name}-{theme}"), f"{name}-{theme}"))
        complaints = serious_violations(page)
        page.set_viewport_size(PHONE)
        width = page.evaluate("document.documentElement.scrollWidth")

        assert complaints == []
        assert width == PHONE["width"]
        assert visit.trouble == []
    assert [difference for difference in differences if difference] == []


def test_a_stopped_collector_is_shown_without_a_reload(
    open_tab: OpenTab, store: Store, address: str, clock: Clock
) -> None:
    write(store, REPORTS[0])
    page = open_tab(address).go("/collectors")
    row = page.get_by_role("row", name="pod-a:4318").first
    expect(row).to_contain_text("OK")
    clock.now += 60
    page.evaluate("stagelens.refresh()")
    expect(row).to_contain_text("Silent")
