"""A collector killed between acknowledgement and forwarding, or during forwarding, loses nothing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import yaml

from tests.collector.forward.otlp_server import Destination, FakeResponse, listening

pytestmark = [pytest.mark.stacks, pytest.mark.flaky(reruns=0)]

Until = Callable[[Callable[[], object]], None]

COLLECTOR = """
import sys
from pathlib import Path
from stagelens.collector.config import LiveConfig
from stagelens.collector.forward import forwarder
from stagelens.collector.serve import Collector, CollectorConfig
from stagelens.store import Store

forwarder._IDLE_SECONDS, forwarder._FIRST_PAUSE_SECONDS, forwarder._LONGEST_PAUSE_SECONDS = 0.02, 0.02, 0.1
# Whoever was killed holds its destination for longer than a test is patient.
forwarder._HOLD_SECONDS = forwarder._TURN_SECONDS = 1.0
store = Store.open(sys.argv[1])
collector = Collector(CollectorConfig(port=0), store, file=LiveConfig(Path(sys.argv[2]), {}))
collector.start()
print(collector.address[1], flush=True)
sys.stdin.read()
collector.stop()
store.close()
"""


class Process:
    """Collector in a separate process."""

    def __init__(self, url: str, file: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", COLLECTOR, url, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout
        self.port = int(self._process.stdout.readline())

    def post(self, body: bytes) -> None:
        """Send *body* and wait for its acknowledgement."""
        url = f"http://127.0.0.1:{self.port}/v1/logs"
        response = httpx.post(url, content=body, headers={"content-type": "application/json"}, timeout=30)
        assert response.status_code == 200

    def end(self, *, kill: bool = False) -> None:
        """Kill the process, or stop it."""
        if kill:
            self._process.kill()
        self._process.communicate(timeout=60)


def body(number: int) -> bytes:
    """Return unique log records."""
    return b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"body":{"stringValue":"%d"}}]}]}]}' % number


def test_a_killed_collector_loses_no_body_to_be_forwarded(tmp_path: Path, free_port: int, until: Until) -> None:
    url, file = f"sqlite:///{tmp_path}/stagelens.db", tmp_path / "collector.yaml"
    entry = {"name": "backend", "endpoint": f"http://127.0.0.1:{free_port}", "timeout": "2s"}
    file.write_text(yaml.safe_dump({"forward": {"destinations": [entry]}}))
    found = Destination(port=free_port)
    acknowledged: set[bytes] = set()

    process = Process(url, file)
    for number in range(20):
        process.post(body(number))
        acknowledged.add(body(number))
    process.end(kill=True)
    assert found.taken == {}

    with listening(free_port, found):
        # Some bodies are refused, so that sending is always in progress.
        found.decide = lambda _path, _body, count: FakeResponse(503) if count % 3 == 0 else None
        process = Process(url, file)
        for number in range(20, 40):
            process.post(body(number))
            acknowledged.add(body(number))
        until(lambda: found.taken)
        process.end(kill=True)
        process = Process(url, file)
        until(lambda: found.bodies("/v1/logs") == acknowledged)
        process.end()

    assert found.broken == []
