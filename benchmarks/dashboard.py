"""What the dashboard costs its reader, in a real browser, beside what peers need for their latency page.

    python benchmarks/dashboard.py [--data FOLDER] [--series N] [--days D] [--rounds N] [--parts ours,controls,memory,peers,windows]

Against the store of `benchmarks/store.py` (2,000 series, 30 days; --data keeps it): every page opened with an empty cache, every
control pressed, and an hour of refreshes. Times are medians, from the start of the navigation or the press of the button to the
last change of the document; the server, the browser and we share the machine. Bytes are as they came over the wire; data is the
document and what the page fetched for itself, files are scripts, styles and fonts, which a second visit does not fetch again. The part
windows is about fleets of 10, 40 and 200 services: the CPU time of the server for pages about 6 hours to a year, and clicks on 30 days.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from fleet import Fleet
from fleet import make as make_fleet
from pages import peers
from pages.hour import hour_of_refreshes
from pages.visits import VIEWPORT, WATCH, Loaded, chromium, load, middle, pressed, settled
from pages.windows import PAGES as FLEET_PAGES
from pages.windows import costs_by_window
from playwright.sync_api import Browser, Page
from storage.dataset import NOW, Shape
from storage.engines import sqlite
from storage.load import load as fill
from storage.tables import table

from stagelens.alerts.objectives.slo_file import LiveSloFile
from stagelens.alerts.reader import AlertsReader
from stagelens.dashboard.config import DashboardConfig
from stagelens.dashboard.web.app import Dashboard
from stagelens.store import Store

PARTS = ("ours", "controls", "memory", "peers", "windows")
FLEETS = (Fleet(10, 365, 1), Fleet(40, 365, 1), Fleet(200, 30, 1))
SERVICE = "service-2"
SLOS = f"slos: [{{name: speed, service: {SERVICE}, objective: 0.99, threshold: 250ms, window: 30d}}]\n"
PAGES = {
    "overview": "/",
    "service, 6 h": f"/s/{SERVICE}",
    "service, 30 d": f"/s/{SERVICE}?from=now-30d",
    "compare": f"/compare?svc={SERVICE}",
    "regressions": "/regressions",
    "SLO": "/slo",
    "traces": "/traces",
    "capacity": f"/s/{SERVICE}/capacity",
    "advice": "/advice",
    "events": "/events",
}
_DRAWN = """() => document.querySelector('html:not([data-loading]) #root [data-title]') && !document.querySelector('#root[aria-busy=true]')
  && [...document.querySelectorAll('[data-chart]')].every((slot) => slot.dataset.drawn || slot.getBoundingClientRect().top > innerHeight)"""


def drawn(page: Page) -> None:
    """Wait until the page and every chart in view are drawn."""
    page.wait_for_function(_DRAWN, timeout=120_000)


def serve(database: str, slos: str) -> None:
    """Serve the dashboard at `NOW` until somebody closes our input; print where."""
    store = Store.open(database, clock=lambda: NOW)
    served = Dashboard(
        DashboardConfig(port=0), store, AlertsReader(store, LiveSloFile(Path(slos), {})), clock=lambda: NOW
    )
    served.start()
    print(f"http://127.0.0.1:{served.address[1]}", flush=True)
    sys.stdin.read()
    served.stop()
    store.close()


@contextmanager
def dashboard(database: str, slos: Path) -> Generator[str]:
    """Start the dashboard in a process of its own and give its address."""
    command = [sys.executable, __file__, "--serve", database, str(slos)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None  # noqa: S101 - asked for above
    yield process.stdout.readline().strip()
    process.communicate()


def _first(page: Page, selector: str) -> None:
    page.locator(selector).first.click()


def controls() -> dict[str, tuple[str, Callable[[Page], None]]]:
    """Return what is pressed, by name: where, and how."""
    at = f"/s/{SERVICE}"
    return {
        "time / share": (at, lambda page: _first(page, "button[data-key=y]:not(.on)")),
        "tail / even": (at, lambda page: _first(page, "button[data-key=x]:not(.on)")),
        "over time: another percentile": (at, lambda page: _first(page, "button[data-key=t]:not(.on)")),
        "heatmap: stage / count": (at, lambda page: _first(page, "button[data-key=by]:not(.on)")),
        "theme": (at, lambda page: page.keyboard.press("d")),
        "an earlier window": (at, lambda page: page.keyboard.press("[")),
        "tab: capacity": (at, lambda page: _first(page, ".tabs a[href*=capacity]")),
        "to the overview": (at, lambda page: _first(page, "#side a.nav:has-text('Overview')")),
        "overview to a service": ("/", lambda page: _first(page, f"tbody a[href*='{SERVICE}']")),
        "to the SLOs": (at, lambda page: _first(page, "#side a.nav:has-text('SLOs')")),
    }


def ours(browser: Browser, base: str, rounds: int) -> str:
    """Return the table of our pages: the first visit of all, and the median of the next ones."""
    rows: list[tuple[str, ...]] = []
    for name, path in PAGES.items():
        cold, *warm = (load(browser, base + path, drawn) for _ in range(rounds + 1))
        rows.append((name, f"{cold.ready:.0f}", *_numbers(middle(warm))))
    return table(("page", "first visit ready [ms]", *_HEAD), rows)


_HEAD = ("first paint [ms]", "ready [ms]", "data [kB]", "files [kB]", "requests", "layout shift")


def _numbers(found: Loaded) -> tuple[str, ...]:
    sizes = (f"{found.data / 1000:.0f}", f"{found.files / 1000:.0f}", str(found.requests))
    return (f"{found.first_paint:.0f}", f"{found.ready:.0f}", *sizes, f"{found.shift:.3f}")


def of_controls(browser: Browser, base: str, rounds: int) -> str:
    """Return the table of the controls: how long after the press the last pixel stands."""
    rows: list[tuple[str, ...]] = []
    every: list[float] = []
    for name, (path, press) in controls().items():
        times = [_time(browser, base + path, press)[1] for _ in range(rounds)]
        every += times
        rows.append((name, f"{sorted(times)[len(times) // 2]:.0f}", f"{max(times):.0f}"))
    every.sort()
    rows.append(("p95 of all", "", f"{every[int(len(every) * 0.95)]:.0f}"))
    return table(("control", "median [ms]", "slowest [ms]"), rows)


def _time(
    browser: Browser, url: str, press: Callable[[Page], None], prepare: Callable[[Page], None] = lambda _: None
) -> tuple[float, float]:
    """Return when the first and the last part of the page changed after *press*, in milliseconds."""
    context = browser.new_context(viewport=VIEWPORT, reduced_motion="reduce")
    page = context.new_page()
    page.add_init_script(path=str(WATCH))
    page.goto(url)
    drawn(page)
    settled(page)
    prepare(page)

    def press_and_wait(page: Page) -> None:
        press(page)
        drawn(page)

    took = pressed(page, press_and_wait)
    context.close()
    return took


def of_clicks(browser: Browser, folder: Path, rounds: int) -> str:
    """Return the table of clicks on *Last 30 d*: of a new server, and of one that has answered the same click."""
    rows: list[tuple[str, ...]] = []
    for name in ("overview", "service"):
        found: list[list[tuple[float, float]]] = [[], []]
        for _ in range(rounds):
            with dashboard(f"sqlite:///{folder / 'fleet.db'}", folder / "slo.yaml") as base:
                for visit in found:
                    visit.append(
                        _time(
                            browser,
                            base + FLEET_PAGES[name],
                            lambda page: _first(page, "[data-window='now-30d']"),
                            lambda page: _first(page, ".menu.time summary"),
                        )
                    )
        medians = [f"{median(times):.0f}" for visit in found for times in zip(*visit, strict=True)]
        rows.append((f"{name}, to 30 d", *medians))
    return table(
        ("click", *(f"{part} [ms]" for part in ("first part", "last part", "first part again", "last part again"))),
        rows,
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="where the store and the peers' data are kept (default: nowhere)")
    parser.add_argument("--series", type=int, default=2000)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(*options.serve)
        return
    with tempfile.TemporaryDirectory() as temporary:
        data = options.data or Path(temporary)
        parts = options.parts.split(",")
        if "windows" in parts:
            windows(data, options.rounds)
        if parts != ["windows"]:
            measure(Shape(options.series, options.days), data, parts, options.rounds)


def windows(data: Path, rounds: int) -> None:
    """Print the cost of pages by window for each of `FLEETS`, which are kept in *data*."""
    for fleet in FLEETS:
        folder = data / f"fleet.{fleet.services}x{fleet.days}d"
        if not folder.exists():
            folder.mkdir(parents=True)
            make_fleet(folder, fleet).close()
        print(f"{fleet.services} services, {fleet.days} days\n\n{costs_by_window(folder, rounds)}\n", flush=True)
        with chromium() as browser:
            print(of_clicks(browser, folder, rounds), end="\n\n", flush=True)


def measure(shape: Shape, data: Path, parts: list[str], rounds: int) -> None:
    """Print the tables of *parts*."""
    with sqlite(data, shape.name) as site, chromium() as browser:
        note = data / f"sqlite.{shape.name}.json"
        if not note.exists():
            store = site.open()
            note.write_text(json.dumps(fill(store, shape)))
            store.close()
        slos = data / "slo.yaml"
        slos.write_text(SLOS)
        print(f"{shape.n_series:,} series, {shape.days} days\n", flush=True)
        with dashboard(site.url, slos) as base:
            if "ours" in parts:
                print(ours(browser, base, rounds), end="\n\n", flush=True)
            if "controls" in parts:
                print(of_controls(browser, base, rounds), end="\n\n", flush=True)
        if "memory" in parts:
            print(hour_of_refreshes(browser, drawn), end="\n\n", flush=True)
        if "peers" in parts:
            rows = [(name, *_numbers(middle(found))) for name, found in peers.visits(browser, shape, data, rounds)]
            print(table(("page", *_HEAD), rows), flush=True)


if __name__ == "__main__":
    main()
