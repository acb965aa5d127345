"""A browser tab that notes what a page complains about, pictures of it, and what axe minds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, ViewportSize

ARTIFACTS = Path(__file__).parents[2] / "artifacts" / "dashboard"
DESKTOP: ViewportSize = {"width": 1440, "height": 900}
PHONE: ViewportSize = {"width": 390, "height": 844}


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
        page.on("console", lambda said: self.trouble.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.trouble.append(str(error)))
        page.on("request", lambda request: self._asked(request.url))

    def _asked(self, url: str) -> None:
        if not url.startswith((self.base, "data:", "blob:")):
            self.trouble.append(f"asked another host: {url}")
        if any(part in url for part in ("/_dash-update-component", "/figures/")):
            self.callbacks.append(url)

    def go(self, address: str) -> Page:
        """Open an address cold and wait until its charts stand."""
        self.page.goto(self.base + address)
        self.settled()
        return self.page

    def settled(self) -> None:
        """Wait for the page and for every chart in view."""
        self.page.wait_for_selector("#root [data-title]")
        self.page.wait_for_function(
            f"""() => !document.querySelector('#root[aria-busy=true]') && [...document.querySelectorAll('[data-chart]')].every(
                  (slot) => ({STANDS})(slot) || slot.getBoundingClientRect().top > innerHeight + 400)"""
        )


def looked_at(page: Page, name: str) -> bytes:
    """Leave a picture of the whole page, and return it."""
    ARTIFACTS.mkdir(parents=True, exist_ok=True)
    height = min(int(page.evaluate("document.documentElement.scrollHeight")), 3000)
    size = page.viewport_size or DESKTOP
    page.set_viewport_size({"width": size["width"], "height": max(height, size["height"])})
    page.wait_for_function(f"() => [...document.querySelectorAll('[data-chart]')].every({STANDS})")
    picture = page.screenshot(path=ARTIFACTS / f"{name}.png", animations="disabled", caret="hide")
    page.set_viewport_size(size)
    return picture


def grave(page: Page) -> list[str]:
    """Return what axe calls serious or critical."""
    found: Any = Axe().run(
        page, options={"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
    )
    return [
        f"{each['id']}: {[node['html'][:120] for node in each['nodes'][:3]]}"
        for each in found.response["violations"]
        if each["impact"] in ("serious", "critical")
    ]
