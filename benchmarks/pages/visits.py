"""What a page costs whoever opens it, as Chromium sees it: times to pixels, bytes, memory."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from shutil import which
from statistics import median
from typing import Any

from playwright.sync_api import Browser, CDPSession, Page, sync_playwright

VIEWPORT = {"width": 1440, "height": 900}
# Nothing may change for so long before a page counts as finished. [milliseconds]
QUIET_MS = 400
WATCH = Path(__file__).parent / "watch.js"
_PAINT = "() => { const e = performance.getEntriesByName('first-contentful-paint')[0]; return e ? e.startTime : null; }"
_QUIET = "(quiet) => window.__changed > 0 && performance.now() - window.__changed > quiet"


@dataclass(frozen=True)
class Loaded:
    """One visit with an empty cache.

    Args:
        first_paint: Until the first text or picture stood there. [milliseconds]
        ready: Until what the page is about stood there and nothing changed any more. [milliseconds]
        data: Bytes over the wire of the document and of what the page asked for itself. [bytes]
        files: Bytes of scripts, styles and fonts. [bytes]
        requests: How many requests there were.
        shift: Cumulative layout shift, as in https://web.dev/articles/cls.
    """

    first_paint: float
    ready: float
    data: int
    files: int
    requests: int
    shift: float


@dataclass
class _Wire:
    """The bytes of one tab, compressed as they came."""

    kinds: dict[str, str] = field(default_factory=dict[str, str])
    data: int = 0
    files: int = 0

    def watch(self, session: CDPSession) -> None:
        session.on("Network.requestWillBeSent", self._asked)
        session.on("Network.loadingFinished", self._came)
        session.send("Network.enable")

    def _asked(self, event: dict[str, Any]) -> None:
        # Pictures in style sheets.
        if event["request"]["url"].startswith("data:"):
            return
        self.kinds[event["requestId"]] = event.get("type", "Other")

    def _came(self, event: dict[str, Any]) -> None:
        size = int(event["encodedDataLength"])
        if self.kinds.get(event["requestId"]) in {"Document", "XHR", "Fetch"}:
            self.data += size
        else:
            self.files += size


@contextmanager
def chromium() -> Generator[Browser]:
    """Start a headless Chromium without a GPU."""
    path = which("chromium-headless-shell") or which("chromium") or which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


def load(browser: Browser, url: str, stands: Callable[[Page], None]) -> Loaded:
    """Open *url* with nothing cached.

    Args:
        browser: The browser.
        url: The address.
        stands: Returns once what the page is about is drawn.
    """
    context = browser.new_context(viewport=VIEWPORT, reduced_motion="reduce")
    page = context.new_page()
    page.add_init_script(path=str(WATCH))
    wire = _Wire()
    wire.watch(context.new_cdp_session(page))
    page.goto(url, wait_until="commit")
    stands(page)
    ready = settled(page)
    painted = float(page.evaluate(_PAINT) or ready)
    shift = float(page.evaluate("window.__shift"))
    context.close()
    return Loaded(painted, ready, wire.data, wire.files, len(wire.kinds), shift)


def settled(page: Page) -> float:
    """Wait until nothing changes any more, and return when the last change was, in milliseconds of the page's clock."""
    page.wait_for_function(_QUIET, arg=QUIET_MS, timeout=120_000)
    return float(page.evaluate("window.__changed"))


def pressed(page: Page, press: Callable[[Page], None]) -> tuple[float, float]:
    """Return how long after *press* the page changed for the first and for the last time, in milliseconds."""
    page.evaluate(
        "() => { window.__pressed = window.__begun = 0; for (const kind of ['pointerdown', 'keydown']) "
        "addEventListener(kind, () => { window.__pressed = window.__pressed || performance.now(); }, { capture: true, once: true }); }"
    )
    press(page)
    last = settled(page)
    at, first = page.evaluate("[window.__pressed, window.__begun || window.__changed]")
    return float(first) - float(at), last - float(at)


def heap(session: CDPSession) -> float:
    """Return what scripts hold once all garbage is gone, in MB."""
    session.send("HeapProfiler.collectGarbage")
    session.send("Performance.enable")
    found = session.send("Performance.getMetrics")["metrics"]
    return next(each["value"] for each in found if each["name"] == "JSHeapUsedSize") / 1e6


def middle(visits: list[Loaded]) -> Loaded:
    """Return the median of each number."""
    return Loaded(
        median(each.first_paint for each in visits),
        median(each.ready for each in visits),
        int(median(each.data for each in visits)),
        int(median(each.files for each in visits)),
        int(median(each.requests for each in visits)),
        median(each.shift for each in visits),
    )
