"""A browser tab that notes what a page complains about, pictures of it, and what axe minds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, Request, ViewportSize, expect
from playwright.sync_api import TimeoutError as TooLong

ARTIFACTS = Path(__file__).parents[2] / "artifacts" / "dashboard"
DESKTOP: ViewportSize = {"width": 1440, "height": 900}
PHONE: ViewportSize = {"width": 390, "height": 844}
# What follows at once is waited for so long before it is tried again. [milliseconds]
SOON = 5_000
_TRIES = 8


# A chart stands once it is drawn, for this width of the screen and of its box.
STANDS = """(slot) => slot.dataset.drawn && slot.dataset.narrow === String(innerWidth < 760)
  && [...slot.querySelectorAll('.main-svg')].every((drawing) => Math.abs(drawing.clientWidth - slot.clientWidth) < 2)"""


class Visit:
    """One tab, and everything it complained about or asked others for."""

    def __init__(self, page: Page, base: str) -> None:
        self.page = page
        self.base = base
        self.trouble: list[str] = []
        self.callbacks: list[str] = []
        page.on("console", lambda log: self.trouble.append(log.text) if log.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.trouble.append(str(error)))
        page.on("request", self._asked)

    def _asked(self, request: Request) -> None:
        url = request.url
        if not url.startswith((self.base, "data:", "blob:")):
            self.trouble.append(f"asked another host: {url}")
        # The refresh asks by itself every 15 s, which a slow test sees.
        if "/figures/" in url or ("/parts?" in url and "seen=" not in url):
            self.callbacks.append(url)

    def go(self, address: str) -> Page:
        """Open an address cold and wait until its charts stand."""
        self.page.goto(self.base + address)
        self.settled()
        return self.page

    def prefer(self, theme: Literal["light", "dark"]) -> None:
        """Let the system prefer a theme, and wait until the charts have followed."""
        self.page.emulate_media(color_scheme=theme)
        self.settled()
        drawn = (
            "(theme) => [...document.querySelectorAll('[data-drawn]')].every((slot) => slot.dataset.drawn === theme)"
        )
        self.page.wait_for_function(drawn, arg=theme)

    def settled(self) -> None:
        """Wait for the page, its letters and every chart in view.

        Which page it is, it does not say: where one leads to another, wait for what is on the other only.
        """
        self.page.wait_for_selector("html:not([data-loading]) #root [data-title]")
        self.page.wait_for_function(
            f"""() => !document.querySelector('#root[aria-busy=true]') && document.fonts.status === 'loaded'
                  && [...document.querySelectorAll('[data-chart]')].every(
                  (slot) => ({STANDS})(slot) || slot.getBoundingClientRect().top > innerHeight + 400)"""
        )


OpenTab = Callable[..., Visit]
Serve = Callable[..., str]


def retry(attempt: Callable[[], object]) -> None:
    """Do what a person does once more where nothing comes of it: a chart that is drawn meanwhile lets go of the pointer."""
    for _ in range(_TRIES - 1):
        try:
            attempt()
        except (AssertionError, TooLong):
            continue
        return
    attempt()


def hover(page: Page, chart: str, across: float, seen: Callable[[], object]) -> None:
    """Point at a chart until *seen* is content.

    Args:
        page: The page.
        chart: The name of the chart.
        across: How far to the right in its plot. [0..1]
        seen: Waits no longer than SOON for what the pointer does, and raises where it does not come.
    """
    plot = page.locator(f"[data-chart={chart}] .nsewdrag").first

    def point() -> None:
        plot.scroll_into_view_if_needed()
        box = plot.bounding_box()
        assert box is not None
        for each in (across - 0.05, across):
            page.mouse.move(box["x"] + box["width"] * each, box["y"] + box["height"] / 2)
        seen()

    retry(point)


# While a page asks whether there is anything new it is dimmed, and what is muted hard to read: that is so on purpose.
UNDIMMED = "#root { opacity: 1 !important; }"


def screenshot(page: Page, name: str) -> bytes:
    """Leave a picture of the whole page, and return it."""
    ARTIFACTS.mkdir(parents=True, exist_ok=True)
    height = min(int(page.evaluate("document.documentElement.scrollHeight")), 3000)
    size = page.viewport_size or DESKTOP
    page.set_viewport_size({"width": size["width"], "height": max(height, size["height"])})
    page.wait_for_function(f"() => [...document.querySelectorAll('[data-chart]')].every({STANDS})")
    picture = page.screenshot(path=ARTIFACTS / f"{name}.png", animations="disabled", caret="hide", style=UNDIMMED)
    page.set_viewport_size(size)
    return picture


# Dialogs and menus that are open. Axe raises an error where there are none.
OVERLAYS = "dialog[open], .menu[open], :popover-open"


def serious_violations(page: Page, within: str | None = None) -> list[str]:
    """Return what axe calls serious or critical; *within* a selector where another test checks the rest."""
    if within is not None:
        # A key or a press may open it a moment later.
        expect(page.locator(within).first).to_be_visible()
    rules = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
    # It may be dimmed, and must not grow bright little by little while it is looked at.
    page.evaluate(
        "document.querySelector('#root')?.setAttribute('style', 'opacity: 1 !important; transition: none !important')"
    )
    # It would tell of every element that is as it should be, too.
    completed: Any = Axe().run(page, within, options={"runOnly": rules, "resultTypes": ["violations"]})
    page.evaluate("document.querySelector('#root')?.removeAttribute('style')")
    return [
        f"{violation['id']}: {[node['html'][:120] for node in violation['nodes'][:3]]}"
        for violation in completed.response["violations"]
        if violation["impact"] in ("serious", "critical")
    ]
