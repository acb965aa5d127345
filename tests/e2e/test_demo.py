"""The whole way, for real: the demo's service, its load, a bad release, the pages in a browser and the alert."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.ports import free_port
from tests.support.process_output import Printing

pytestmark = pytest.mark.stacks

ROOT = Path(__file__).parent.parent.parent
ARTIFACTS = ROOT / "artifacts"
# The alert needs the release, about a minute of bad requests, and the next evaluation.
TIMEOUT_SECONDS = 300
# The alert leaves the version out where a busy machine answered too little of version 1 to compare with; the pages below have it.
BLAMED = r"ALERT  \w+: (magika.*preprocess.*)"


class Demo(Printing):
    """A running `make demo`, without make."""

    def __init__(self) -> None:
        # Long enough for the first release to be judged at p90.
        options = ["--healthy-seconds", "45", "--healthy-requests", "260", "--export-interval", "1s"]
        # Half the usual load: on a busy machine version 1 would not keep up, and its queue would be what burns.
        options += ["--rate", "6"]
        # Of its own: those it takes by itself are those of anybody.
        for name in ("--port", "--collector-port", "--service-port"):
            options += [name, str(free_port())]
        super().__init__([sys.executable, ROOT / "examples" / "demo" / "run.py", *options])

    def stop(self) -> int:
        """Press Ctrl-C and return the exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.wait()


@pytest.fixture(scope="module")
def demo() -> Generator[Demo]:
    """The demo, up to and including the alert."""
    running = Demo()
    try:
        running.wait_for(BLAMED, TIMEOUT_SECONDS)
        yield running
    finally:
        if running.process.poll() is None:
            running.stop()


@pytest.fixture
def url(demo: Demo) -> str:
    """Address of the pages, as printed by the demo."""
    return demo.wait_for(r"open (http://127\.0\.0\.1:\d+)")[1]


@pytest.fixture
def page(browser: Browser) -> Generator[Page]:
    """A fresh browser tab of a laptop's size."""
    context = browser.new_context(viewport={"width": 1440, "height": 900}, color_scheme="light")
    yield context.new_page()
    context.close()


def test_the_alert_names_the_planted_stage(demo: Demo) -> None:
    """Whoever is woken reads what burns, and in which stage."""
    alert = demo.wait_for(BLAMED)[1]

    assert "latency SLO burning" in alert


def test_the_overview_blames_the_planted_stage(page: Page, url: str) -> None:
    """The first page names version 2.0.0 and the slower stage."""
    page.goto(url)
    expect(page.locator("table").first).to_contain_text("magika", timeout=30_000)
    page.screenshot(path=ARTIFACTS / "demo-overview.png", full_page=True)

    expect(page.locator("main, body").first).to_contain_text("2.0.0")
    expect(page.locator("main, body").first).to_contain_text(re.compile("Preprocess", re.IGNORECASE))


def test_the_service_page_shows_the_stage_table(page: Page, url: str) -> None:
    """The planted stage is the first row of the tail."""
    page.goto(f"{url}/s/magika?v=2.0.0")
    rows = page.locator(".insp .nm")
    expect(rows.first).to_contain_text("Preprocess", timeout=30_000)
    expect(page.locator(".js-plotly-plot").first).to_be_visible(timeout=30_000)
    page.screenshot(path=ARTIFACTS / "demo-service.png", full_page=True)

    labels = rows.all_inner_texts()
    assert {"Preprocess", "Forward", "Network"} <= {label.strip() for label in labels}


def test_comparing_the_two_versions_is_a_regression(page: Page, url: str) -> None:
    """The verdict is on the page a link in the alert can open cold. At p90, because few of 260 requests are beyond p95."""
    page.goto(f"{url}/compare?svc=magika&a=1.0.0&b=2.0.0&p=90")
    expect(page.locator(".verdict")).to_contain_text("Regression", timeout=30_000)
    page.screenshot(path=ARTIFACTS / "demo-compare.png", full_page=True)

    expect(page.locator(".verdict")).to_contain_text("Preprocess")


def test_a_slow_request_is_a_waterfall(page: Page, url: str) -> None:
    """From the service page one click leads to one slow request and its stages."""
    page.goto(f"{url}/s/magika?v=2.0.0")
    link = page.locator("#root a[href^='/traces/']").first
    expect(link).to_be_visible(timeout=30_000)
    link.click()
    expect(page.locator(".wf")).to_contain_text("Preprocess", timeout=30_000)
    page.screenshot(path=ARTIFACTS / "demo-trace.png", full_page=True)

    # The slowest request may be the first of its process.
    expect(page.locator(".wf")).to_contain_text(re.compile("Forward|Cold start"))


def test_ctrl_c_leaves_no_process_behind(demo: Demo) -> None:
    """Every process of the demo ends with it, and the output reports that."""
    children = _descendants(demo.process.pid)

    code = demo.stop()

    assert code == 0
    assert [pid for pid in children if _alive(pid)] == []


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    # A process or a thread may end while it is looked at.
    with suppress(FileNotFoundError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):
                for child in (task / "children").read_text().split():
                    found += [int(child), *_descendants(int(child))]
    return found


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
