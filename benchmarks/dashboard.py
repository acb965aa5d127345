"""Cost of the dashboard's pages in a real browser, and in CPU time of the server.

    python benchmarks/dashboard.py [--data FOLDER] [--rounds N] [--parts browser,windows]

The stores are those of `benchmarks/fleet.py` (--data keeps them). Times are medians, from the start of the navigation or the press of
the button to the last change of the document; the server, the browser and this program share the machine.

- browser: visits of 10 services and 2 days, with an empty cache of the browser: the first one after the start of the server, and
  later ones. Bytes are compressed, as they came over the wire.
- windows: fleets of 10, 40 and 200 services: CPU time of the server for pages about 6 hours to a year, and clicks on *Last 30 d*.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from fleet import NOW, Fleet, make, open_store
from pages.visits import chromium, click, load, middle
from pages.windows import PAGES, show_costs_by_window
from playwright.sync_api import Browser
from tables import Table

from stagelens.alerts.objectives.slo_file import LiveSloFile
from stagelens.alerts.reader import AlertsReader
from stagelens.dashboard.config import DashboardConfig
from stagelens.dashboard.web.app import Dashboard

PARTS = ("browser", "windows")
FLEETS = (Fleet(10, 365, 1), Fleet(40, 365, 1), Fleet(200, 30, 1))
SMALL = Fleet(10, 2, 1)


def serve(folder: Path) -> None:
    """Serve the dashboard at `NOW` until standard input is closed; print its address."""
    store = open_store(folder)
    alerts = AlertsReader(store, LiveSloFile(folder / "slo.yaml", {}))
    dashboard = Dashboard(DashboardConfig(port=0), store, alerts, clock=lambda: NOW)
    dashboard.start()
    print(f"http://127.0.0.1:{dashboard.address[1]}", flush=True)
    sys.stdin.read()
    dashboard.stop()
    store.close()


@contextmanager
def dashboard_of(folder: Path) -> Generator[str]:
    command = [sys.executable, __file__, "--serve", str(folder)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None  # noqa: S101 - asked for above
    yield process.stdout.readline().strip()
    process.communicate()


def show_visits(browser: Browser, folder: Path, rounds: int) -> None:
    columns = (
        "first visit ready [ms]",
        "first paint [ms]",
        "ready [ms]",
        "data [kB]",
        "files [kB]",
        "requests",
        "shift",
    )
    table = Table("Visits with an empty browser cache", *columns)
    with dashboard_of(folder) as base:
        for name, path in PAGES.items():
            first, *later = (load(browser, base + path) for _ in range(rounds + 1))
            visit = middle(later)
            table.row(
                name,
                f"{first.ready:.0f}",
                f"{visit.first_paint:.0f}",
                f"{visit.ready:.0f}",
                f"{visit.data / 1000:.0f}",
                f"{visit.files / 1000:.0f}",
                f"{visit.requests:.0f}",
                f"{visit.shift:.3f}",
            )
    table.print()


def show_clicks(browser: Browser, folder: Path, rounds: int) -> None:
    """Print times of clicks on *Last 30 d*: of a new server, and of one that has answered the same click."""
    columns = [f"{part} [ms]" for part in ("first part", "last part", "first part again", "last part again")]
    table = Table("Clicks", *columns)
    for name in ("overview", "service"):
        visits: list[list[tuple[float, float]]] = [[], []]
        for _ in range(rounds):
            with dashboard_of(folder) as base:
                for visit in visits:
                    visit.append(click(browser, base + PAGES[name], ".menu.time summary", "[data-window='now-30d']"))
        medians = [f"{median(times):.0f}" for visit in visits for times in zip(*visit, strict=True)]
        table.row(f"{name}, to 30 d", *medians)
    table.print()


def folder_of(fleet: Fleet, data: Path) -> Path:
    folder = data / f"fleet.{fleet.services}x{fleet.days}d"
    if not folder.exists():
        folder.mkdir(parents=True)
        make(folder, fleet).close()
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="where the stores are kept (default: nowhere)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return
    parts = options.parts.split(",")
    with tempfile.TemporaryDirectory() as temporary, chromium() as browser:
        data = options.data or Path(temporary)
        if "browser" in parts:
            show_visits(browser, folder_of(SMALL, data), options.rounds)
        for fleet in FLEETS if "windows" in parts else ():
            folder = folder_of(fleet, data)
            show_costs_by_window(folder, f"{fleet.services} services, {fleet.days} days", options.rounds)
            show_clicks(browser, folder, options.rounds)


if __name__ == "__main__":
    main()
