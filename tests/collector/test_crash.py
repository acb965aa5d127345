"""Kills of a collector under load: acknowledged batches are stored once."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx
import pytest

from stagelens.core import names
from stagelens.store import Store

pytestmark = [pytest.mark.stacks, pytest.mark.flaky(reruns=0)]

COLLECTOR = """
import sys
from stagelens.collector.serve import Collector, CollectorConfig
from stagelens.store import Store

store = Store.open(sys.argv[1])
collector = Collector(CollectorConfig(port=0), store, maintenance_seconds=0.05)
collector.start()
print(collector.address[1], flush=True)
sys.stdin.read()
collector.stop()
store.close()
"""
KILLS = 2
SENDERS = 8


class Process:
    def __init__(self, url: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", COLLECTOR, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdin
        assert self._process.stdout
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self.port = int(self._stdout.readline())

    def kill(self) -> None:
        self._process.kill()
        self._close()

    def stop(self) -> int:
        self._stdin.close()
        return self._close()

    def _close(self) -> int:
        code = self._process.wait(timeout=60)
        if not self._stdin.closed:
            self._stdin.close()
        self._stdout.close()
        return code


def send(port: int, bodies: Iterable[tuple[str, bytes]], acknowledged: set[str], enough: threading.Event) -> None:
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
        for name, body in bodies:
            if enough.is_set():
                return
            headers = {"content-type": "application/json", names.BATCH_HEADER: name}
            try:
                response = client.post("/v1/metrics", content=body, headers=headers)
            except httpx.HTTPError:
                return
            assert response.status_code == 200
            acknowledged.add(name)


def in_store(url: str) -> tuple[set[str], int]:
    store = Store.open(url)
    try:
        with store.engine.connect() as connection:
            batches = {str(row[0]) for row in connection.exec_driver_sql("SELECT id FROM batches")}
            finest = "SELECT coalesce(sum(count), 0) FROM points WHERE tier = 10"
            return {batch.removeprefix("metrics:") for batch in batches}, connection.exec_driver_sql(
                finest
            ).scalar_one()
    finally:
        store.close()


def test_killing_the_collector_neither_loses_nor_duplicates(tmp_path: Path, bodies: Any) -> None:
    url = f"sqlite:///{tmp_path}/stagelens.db"
    generator = random.Random(1)
    sizes = {f"pod:{number}": 1 + number % 7 for number in range(1500)}
    batches = {name: json.dumps(bodies.metrics(bodies.point((0.1,) * size))).encode() for name, size in sizes.items()}
    acknowledged: set[str] = set()
    for _ in range(KILLS):
        process = Process(url)
        target = len(acknowledged) + generator.randint(1, 150)
        # One in ten batches is sent by two senders at the same time, like a client after a timeout.
        left = [item for item in batches.items() if item[0] not in acknowledged]
        shares = [left[sender::SENDERS] + left[sender + 1 :: SENDERS * 10] for sender in range(SENDERS)]
        enough = threading.Event()
        senders = [threading.Thread(target=send, args=(process.port, share, acknowledged, enough)) for share in shares]
        for sender in senders:
            sender.start()
        while len(acknowledged) < target:
            assert any(sender.is_alive() for sender in senders)
            time.sleep(0.002)
        process.kill()
        enough.set()
        for sender in senders:
            sender.join()
        counted, requests = in_store(url)

        assert acknowledged <= counted
        assert requests == sum(sizes[name] for name in counted)

    assert KILLS <= len(acknowledged) < len(batches)
    process = Process(url)
    # All batches are sent again, including those unacknowledged at the last kill.
    again = [(name, batches[name]) for name in [*acknowledged, *list(batches)[:600]]]
    redelivered: set[str] = set()
    send(process.port, again, redelivered, threading.Event())
    code = process.stop()
    counted, requests = in_store(url)

    assert code == 0
    assert redelivered | acknowledged <= counted
    assert requests == sum(sizes[name] for name in counted)
