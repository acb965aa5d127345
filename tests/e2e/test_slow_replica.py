"""Two real replicas behind a round robin, one of them slowed: named within three minutes of its requests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from stagelens.collector.serve import Collector, CollectorConfig
from stagelens.store import Store
from tests.support.ports import free_port
from tests.support.slow_replicas import ask_until_named, wait_until_up

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
# Of both replicas together. [requests/s]
_RATE = 4.0


@contextmanager
def replica(folder: Path, collector: str, work: float) -> Generator[tuple[str, int]]:
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


def test_the_slow_one_of_two_replicas_is_named_within_three_minutes(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(_APP)
    store = Store.open(f"sqlite:///{tmp_path / 'stagelens.db'}")
    collector = Collector(CollectorConfig(port=0), store)
    collector.start()
    endpoint = "http://{}:{}".format(*collector.address)
    with ExitStack() as stack:
        replicas = [stack.enter_context(replica(tmp_path, endpoint, work)) for work in (0.02, 0.06)]
        addresses = [address for address, _ in replicas]
        for address in addresses:
            wait_until_up(address)
        client = stack.enter_context(httpx.Client(timeout=30))
        found = ask_until_named(
            store, lambda number: client.get(addresses[number % 2]).raise_for_status(), _RATE, ["shop"]
        ).get("shop")
    collector.stop()
    store.close()

    assert found is not None
    assert found.place.endswith(f":{replicas[1][1]}")
    assert (found.others, found.quantile) == (1, 0.5)
    assert found.ratio == pytest.approx(3.0, rel=0.4)
    assert [each.stage for each in found.growth[:1]] == ["handler"]
