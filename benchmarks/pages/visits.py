"""What Chromium measures of a page: times to pixels, and bytes."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from shutil import which
from statistics import median
from typing import Any

from playwright.sync_api import Browser, CDPSession, Page, ViewportSize, sync_playwright

VIEWPORT: ViewportSize = {"width": 1440, "height": 900}
# Nothing may change for so long before a page counts as finished. [milliseconds]
QUIET_MS = 400
WATCH = Path(__file__).parent / "watch.js"
_PAINT = "() => { const e = performance.getEntriesByName('first-contentful-paint')[0]; return e ? e.startTime : null; }"
_QUIET = "(quiet) => window.__changed > 0 && performance.now() - window.__changed > quiet"
_DRAWN = """() => document.querySelector('html:not([data-loading]) #root [data-title]') && !document.querySelector('#root[aria-busy=true]')
  && [...document.querySelectorAll('[data-chart]')].every((slot) => slot.dataset.drawn || slot.getBoundingClientRect().top > innerHeight)"""
_NOTE_PRESS = """() => { window.__pressed = window.__begun = 0; for (const kind of ['pointerdown', 'keydown'])
  addEventListener(kind, () => { window.__pressed = window.__pressed || performance.now(); }, { capture: true, once: true }); }"""


@dataclass(frozen=True)
class Visit:
    """One visit with an empty cache; times in milliseconds.

    *data* are the bytes of the document and of what the page fetched itself, *files* those of scripts, styles and fonts; *shift* is the
    cumulative layout shift of https://web.dev/articles/cls.
    """

    first_paint: float
    ready: float
    data: float
    files: float
    requests: float
    shift: float


@dataclass
class _Wire:
    kinds: dict[str, str] = field(default_factory=dict[str, str])
    data: int = 0
    files: int = 0

    def watch(self, session: CDPSession) -> None:
        session.on("Network.requestWillBeSent", self._requested)
        session.on("Network.loadingFinished", self._finished)
        session.send("Network.enable")

    def _requested(self, event: dict[str, Any]) -> None:
        # Not pictures in style sheets.
        if not event["request"]["url"].startswith("data:"):
            self.kinds[event["requestId"]] = event.get("type", "Other")

    def _finished(self, event: dict[str, Any]) -> None:
        size = int(event["encodedDataLength"])
        if self.kinds.get(event["requestId"]) in {"Document", "XHR", "Fetch"}:
            self.data += size
        else:
            self.files += size


@contextmanager
def chromium() -> Generator[Browser]:
    path = which("chromium-headless-shell") or which("chromium") or which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@contextmanager
def _tab(browser: Browser) -> Generator[Page]:
    context = browser.new_context(viewport=VIEWPORT, reduced_motion="reduce")
    page = context.new_page()
    page.add_init_script(path=str(WATCH))
    yield page
    context.close()


def load(browser: Browser, url: str) -> Visit:
    with _tab(browser) as page:
        wire = _Wire()
        wire.watch(page.context.new_cdp_session(page))
        page.goto(url, wait_until="commit")
        ready = _settled(page)
        painted = float(page.evaluate(_PAINT) or ready)
        shift = float(page.evaluate("window.__shift"))
        return Visit(painted, ready, wire.data, wire.files, len(wire.kinds), shift)


def click(browser: Browser, url: str, opened: str, clicked: str) -> tuple[float, float]:
    """Return when the first and the last part of the page changed after a click, in milliseconds."""
    with _tab(browser) as page:
        page.goto(url)
        _settled(page)
        page.locator(opened).first.click()
        page.evaluate(_NOTE_PRESS)
        page.locator(clicked).first.click()
        last = _settled(page)
        at, first = page.evaluate("[window.__pressed, window.__begun || window.__changed]")
        return float(first) - float(at), last - float(at)


def _settled(page: Page) -> float:
    """Wait until all charts in view are drawn and nothing changes any more; return the time of the last change."""
    page.wait_for_function(_DRAWN, timeout=120_000)
    page.wait_for_function(_QUIET, arg=QUIET_MS, timeout=120_000)
    return float(page.evaluate("window.__changed"))


def middle(visits: list[Visit]) -> Visit:
    return Visit(*(median(getattr(visit, each.name) for visit in visits) for each in fields(Visit)))
