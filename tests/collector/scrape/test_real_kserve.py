"""A real KServe model server, its metrics scraped as they are."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Generator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from stagelens.collector.scrape.scraper import Scraper
from stagelens.collector.scrape.section import Target
from stagelens.collector.store import Selection, Store

HERE = Path(__file__).parent
INSTALLED = HERE.parents[2] / ".venv" / "kserve"
CALLS = 5


@pytest.fixture(scope="module")
def kserve() -> Generator[str]:
    """The address of a running server; where KServe is not installed its test is skipped, never in CI."""
    if not INSTALLED.exists() and not os.environ.get("CI"):
        pytest.skip("no KServe; `make kserve` installs it, and `make test` does")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, HERE / "served_by_kserve.py", str(port)]
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(INSTALLED)}) as server:
        try:
            while server.poll() is None and not is_up(port):
                threading.Event().wait(0.1)

            assert server.poll() is None

            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()


def is_up(port: int) -> bool:
    """Say whether anybody answers on *port*."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


def predict(kserve: str) -> None:
    """Have the model answer once."""
    body = json.dumps({"instances": [[1, 2]]}).encode()
    request = urllib.request.Request(f"{kserve}/v1/models/iris:predict", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert json.load(answer) == {"predictions": [3]}


def test_steps_of_kserve_are_stages(kserve: str, tmp_path: Path) -> None:
    """Every prediction since the first reading, in the stages it went through; not as whole requests, which it does not time."""
    target = Target(f"{kserve}/metrics", "iris", every=1.0)
    store = Store.open(f"sqlite:///{tmp_path}/s.db")
    scraper = Scraper(store, lambda: (target,), {})
    predict(kserve)
    asyncio.run(scraper.scrape(target))
    for _ in range(CALLS):
        predict(kserve)
    asyncio.run(scraper.scrape(target))
    now = datetime.now(UTC)
    (iris,) = store.read.engines(Selection(now - timedelta(hours=1), now + timedelta(hours=1)))
    store.close()
    forward = iris.stages["forward"].quantile(0.5)

    assert (iris.service, iris.model, iris.count) == ("iris", "iris", CALLS)
    assert {stage: found.count for stage, found in iris.stages.items()} == dict.fromkeys(
        ("forward", "preprocess", "postprocess"), CALLS
    )
    assert iris.requests.count == 0
    assert forward is not None
    # It sleeps 20 ms, and buckets end at 10, 25, 50, ... ms.
    assert forward.low > 0.0097
    assert (iris.stages["forward"].mean or 0) >= 0.020
    assert (iris.stages["preprocess"].mean or 0) >= 0.002
