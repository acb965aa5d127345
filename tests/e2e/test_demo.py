"""`make demo` in a fresh clone and an empty environment: its service, its load, a bad release, the pages in a browser and the alert."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import urllib.request
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from urllib.error import HTTPError

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.docs.blocks import blocks, expected_output, normalized
from tests.support.ports import free_port
from tests.support.process_output import Printing

# The installation alone takes a minute where nothing else runs.
pytestmark = [pytest.mark.stacks, pytest.mark.timeout(900)]

ROOT = Path(__file__).parent.parent.parent
ARTIFACTS = ROOT / "artifacts"
# An installation from an index that is far away.
INSTALL_SECONDS = 600
# The alert needs the release, about a minute of bad requests, and the next evaluation.
TIMEOUT_SECONDS = 300
# The alert leaves the version out where a busy machine answered too little of version 1 to compare with; the pages below have it.
BLAMED = r"ALERT  \w+: (magika.*preprocess.*)"
# All that a new terminal has, and where pip finds packages.
NEW = re.compile("PATH|HOME|LANG|TERM|PIP_.*|.*_proxy", re.IGNORECASE)
# What an installation leaves.
INSTALLED = {".venv", "stagelens.egg-info", "__pycache__"}


class Demo(Printing):
    def __init__(self, clone: Path, temporary: Path) -> None:
        # Long enough for the first release to be judged at p90.
        options = ["--healthy-seconds", "45", "--healthy-requests", "260", "--export-interval", "1s"]
        # Less than the usual load: on a busy machine version 1 would not keep up, and its queue would be what burns.
        options += ["--rate", "6"]
        # Of its own: those it takes by itself are those of anybody.
        for name in ("--port", "--collector-port", "--service-port"):
            options += [name, str(free_port())]
        environment = {name: value for name, value in os.environ.items() if NEW.fullmatch(name)}
        environment["TMPDIR"] = str(temporary)
        self.files_before = _files(clone)
        super().__init__(
            ["make", "demo", f"DEMO={' '.join(options)}"], cwd=clone, env=environment, start_new_session=True
        )

    def stop(self) -> None:
        """Press Ctrl-C, which a terminal sends to make and to the demo, and wait for the end."""
        os.killpg(self.process.pid, signal.SIGINT)
        self.wait()


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clone")
    command = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in listed.split("\0"):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("temporary")


@pytest.fixture(scope="module")
def demo(clone: Path, temporary: Path) -> Generator[Demo]:
    running = Demo(clone, temporary)
    try:
        running.wait_for("starting the collector", INSTALL_SECONDS)
        running.wait_for(BLAMED, TIMEOUT_SECONDS)
        yield running
    finally:
        if running.process.poll() is None:
            running.stop()


@pytest.fixture
def url(demo: Demo) -> str:
    return demo.wait_for(r"open (http://127\.0\.0\.1:\d+)")[1]


@pytest.fixture
def page(browser: Browser) -> Generator[Page]:
    context = browser.new_context(viewport={"width": 1440, "height": 900}, color_scheme="light")
    yield context.new_page()
    context.close()


def test_the_alert_names_the_planted_stage(demo: Demo) -> None:
    alert = demo.wait_for(BLAMED)[1]

    assert "latency SLO burning" in alert


def test_the_overview_says_what_is_wrong_and_where_to_click(page: Page, url: str) -> None:
    page.goto(url)
    card = page.locator(".ins").first
    expect(card).to_contain_text(re.compile(r"Slow requests since .* more in Preprocess"), timeout=30_000)
    expect(page.locator("body")).to_contain_text("2.0.0")
    page.screenshot(path=ARTIFACTS / "demo-overview.png", full_page=True)
    card.get_by_text("See what spends the budget").click()

    expect(page).to_have_url(re.compile("/slo/magika-latency"))
    expect(page.locator("#root")).to_contain_text("What spent the budget", timeout=30_000)


def test_it_prints_what_the_readme_shows(demo: Demo) -> None:
    (expected, *_) = expected_output(list(blocks(ROOT / "README.md"))).values()
    demo.wait_for("the first card")

    assert {line for line in expected if "ALERT" not in line} <= set(map(normalized, demo.lines))


@pytest.mark.parametrize("body", [b"\x80", b"{", b"[]", b"{}"])
def test_what_is_no_alert_is_refused(demo: Demo, temporary: Path, body: bytes) -> None:
    (slo,) = temporary.glob("*/slo.yaml")
    channel = re.search(r"kind: webhook\n +url: (\S+)", slo.read_text())

    assert demo.process.poll() is None
    assert channel is not None
    with pytest.raises(HTTPError, match="not an alert"):
        urllib.request.urlopen(channel[1], body, timeout=30)


def test_ctrl_c_leaves_nothing_behind(demo: Demo, clone: Path, temporary: Path) -> None:
    children = _descendants(demo.process.pid)

    demo.stop()

    assert "nothing left behind" in demo.lines[-1]
    assert children
    assert [pid for pid in children if _alive(pid)] == []
    assert list(temporary.iterdir()) == []
    assert _files(clone) == demo.files_before


def _files(clone: Path) -> set[Path]:
    paths = (path.relative_to(clone) for path in clone.rglob("*") if path.is_file())
    return {path for path in paths if not INSTALLED & set(path.parts)}


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
