"""CPU time of the server for pages about windows of different lengths."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median

from fleet import NOW, open_store
from tables import Table

from stagelens.alerts.objectives.slo_file import LiveSloFile
from stagelens.alerts.reader import AlertsReader
from stagelens.dashboard.config import DashboardConfig
from stagelens.dashboard.source import Source
from stagelens.dashboard.web.app import build

WINDOWS = ("6h", "24h", "7d", "30d", "90d", "365d")
SERVICE = "vision-1"
PAGES = {
    "overview": "/",
    "service": f"/s/{SERVICE}",
    "compare": f"/compare?svc={SERVICE}",
    "traces": "/traces",
    "SLO": "/slo",
    "capacity": f"/s/{SERVICE}/capacity",
}


def show_costs_by_window(folder: Path, title: str, rounds: int) -> None:
    table = Table(f"{title}: CPU-s of the first visit / of the next browser", *WINDOWS)
    for name, path in PAGES.items():
        costs = [page_costs(folder, with_window(path, window), rounds) for window in WINDOWS]
        table.row(name, *(f"{first:.2f} / {following:.2f}" for first, following in costs))
    table.print()


def with_window(path: str, window: str) -> str:
    return f"{path}{'&' if '?' in path else '?'}from=now-{window}"


def page_costs(folder: Path, path: str, rounds: int) -> tuple[float, float]:
    """Return the medians of the CPU time of the first visit to *path* after the start of the server, and of the next browser's visit."""
    costs: list[list[float]] = [[], []]
    # The first round imports and compiles what every round needs.
    for number in range(rounds + 1):
        # The caches belong to the store.
        store = open_store(folder)
        alerts = AlertsReader(store, LiveSloFile(folder / "slo.yaml", {}))
        config = DashboardConfig()
        server = build(Source(store, alerts, lambda: NOW, config=config), config)
        for visit in costs:
            client, before = server.test_client(), time.process_time()
            response = client.get(path)
            length = len(response.data)
            spent = time.process_time() - before
            if response.status_code != 200 or not length:
                msg = f"{path} answered {response.status_code}"
                raise SystemExit(msg)
            if number:
                visit.append(spent)
        store.close()
    return median(costs[0]), median(costs[1])
