"""Two real replicas behind a round robin, one of them slowed: named within three minutes of its requests."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from itertools import cycle
from pathlib import Path
from threading import Event

import httpx
import pytest

from stagelens.alerts.evaluation.replica_evidence import slow_replica
from stagelens.analysis.replicas import ReplicaOutlier
from stagelens.collector.serve import Collector, CollectorConfig
from stagelens.store import Selection, Store
from tests.support.ports import free_port

pytestmark = pytest.mark.soak
_APP = """
import os, time
from fastapi import FastAPI

app = FastAPI()

@app.get("/predict")
def predict():
    time.sleep(float(os.environ["WORK_SECONDS"]))
    return {}
"""
# Of both replicas together, and how long the slow one has to be named: its export is due within these.
_RATE, _LIMIT = 4.0, timedelta(minutes=3)


@contextmanager
def replica(folder: Path, collector: str, work: float) -> Generator[tuple[str, int]]:
    """Run a replica; give its address and its process id."""
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "stagelens",
        "run",
        "--",
        sys.executable,
        "-m",
        "uvicorn",
        "app:app",
        "--port",
        str(port),
    ]
    settings = {"OTEL_SERVICE_NAME": "shop", "OTEL_EXPORTER_OTLP_ENDPOINT": collector, "WORK_SECONDS": str(work)}
    with subprocess.Popen(command, cwd=folder, env=os.environ | settings) as process:
        yield f"http://127.0.0.1:{port}/predict", process.pid
        process.terminate()


def ask_until_named(store: Store, addresses: list[str]) -> ReplicaOutlier | None:
    """Send requests to one replica after the other until one is named, or the time is over."""
    began, started, pace = datetime.now(UTC), time.monotonic(), Event()
    found: ReplicaOutlier | None = None
    with httpx.Client(timeout=30) as client:
        for number, address in enumerate(cycle(addresses)):
            pace.wait(max(0.0, started + number / _RATE - time.monotonic()))
            client.get(address).raise_for_status()
            if number % 40 == 0:
                now = datetime.now(UTC)
                found = slow_replica(store.read, Selection(began - timedelta(minutes=5), now, service="shop"))
            if found or time.monotonic() - started > _LIMIT.total_seconds():
                return found
    return None


def test_the_slow_one_of_two_replicas_is_named_within_three_minutes(tmp_path: Path) -> None:
    """20 ms and 60 ms of work, at two requests per second each."""
    (tmp_path / "app.py").write_text(_APP)
    store = Store.open(f"sqlite:///{tmp_path / 'stagelens.db'}")
    collector = Collector(CollectorConfig(port=0), store)
    collector.start()
    endpoint = "http://{}:{}".format(*collector.address)
    with ExitStack() as stack:
        replicas = [stack.enter_context(replica(tmp_path, endpoint, work)) for work in (0.02, 0.06)]
        for address, _ in replicas:
            _wait_for(address)
        found = ask_until_named(store, [address for address, _ in replicas])
    collector.stop()
    store.close()

    assert found is not None
    assert found.place.endswith(f":{replicas[1][1]}")
    assert (found.others, found.quantile) == (1, 0.5)
    assert found.ratio == pytest.approx(3.0, rel=0.4)
    assert [each.stage for each in found.growth[:1]] == ["handler"]


def _wait_for(address: str) -> None:
    until = time.monotonic() + 60
    while True:
        try:
            httpx.get(address, timeout=5)
        except httpx.TransportError:
            assert time.monotonic() < until, f"{address} did not start"
        else:
            return
