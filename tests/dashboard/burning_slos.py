"""A store in which objectives burn for different reasons, with incidents and events of the last hour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import ModuleType

from stagelens.alerts.evaluation.evaluator import Evaluator
from stagelens.alerts.objectives.slo_file import read_slo_file
from stagelens.store import Event, Store
from tests.dashboard.served_versions import NOW, SLOW, Served, write

SLO = """slos:
  - {name: hot-latency, service: hot, objective: 0.99, threshold: 30ms, window: 30d}
  - {name: failing-up, service: failing, objective: 0.99, window: 30d}
  - {name: calm-latency, service: calm, objective: 0.9, threshold: 1s, window: 7d}
  - {name: silent-latency, service: silent, objective: 0.99, threshold: 1s, window: 7d}
channels:
  - {name: ops, kind: webhook, url: "http://127.0.0.1:9/hook"}
"""
ENV: Mapping[str, str] = {}
_AT_ONCE = {"forward": 1, "overhead": 0.1}
FLEET = (
    *(Served("hot", "1", 70, 40, rate=8), Served("hot", "2", 40, 0, SLOW, rate=8)),
    *(Served("failing", "1", 70, rate=4), Served("failing", "1", 40, 0, _AT_ONCE, rate=1, status="error")),
    Served("calm", "1", 70, rate=1),
)
EVENTS = (
    Event(NOW - timedelta(minutes=45), "hot", "deploy", "2", "version 2 goes out", "https://ci.example/7"),
    Event(NOW - timedelta(minutes=30), "", "config", "", "two replicas <b>more</b>"),
    Event(NOW - timedelta(minutes=20), "hot", "advice", "batching", "done", "/s/hot/advice"),
    Event(NOW - timedelta(hours=30), "calm", "note", "", "a look from outside"),
)


def fill(folder: Path, traffic: ModuleType) -> Store:
    """Return the store in *folder*, its SLO file beside it."""
    path = folder / "slo.yaml"
    path.write_text(SLO, encoding="utf-8")
    store = Store.open(f"sqlite:///{folder / 'burning.db'}", clock=NOW.timestamp)
    write(store, traffic, *FLEET)
    for event in EVENTS:
        store.add_event(event)
    definitions = replace(read_slo_file(path, ENV), dashboard_url="http://127.0.0.1:8600")
    evaluator = Evaluator(store, "tests", lease_seconds=600)
    for minutes in range(30, -1, -10):
        evaluator.tick(definitions, NOW - timedelta(minutes=minutes))
    return store
