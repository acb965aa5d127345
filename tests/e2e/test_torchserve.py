"""TorchServe: its scraped metrics equal what it logs for each request, and the agent times the model in its worker."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event
from time import monotonic
from typing import NamedTuple

import httpx
import pytest

from stagelens.collector.scrape.config import ScrapeTarget
from stagelens.collector.scrape.scraper import Scraper
from stagelens.collector.serve import Collector, CollectorConfig
from stagelens.store import Selection, Store
from tests.support.ports import free_port
from tests.support.serving import serving

pytestmark = pytest.mark.stacks
_HERE = Path(__file__).parent
_INSTALLED = _HERE.parents[1] / ".venv" / "torchserve"
_REQUESTS, _CLIENTS = 12, 4
_SETTINGS = """metrics_mode=prometheus
default_workers_per_model=1
disable_token_authorization=true
inference_address=http://127.0.0.1:{}
management_address=http://127.0.0.1:{}
metrics_address=http://127.0.0.1:{}
grpc_inference_port={}
grpc_management_port={}
"""
# The log has such a line for each response; the response is sent before the metrics count it.
_LOGGED = re.compile(r"Waiting time ns: (\d+), Backend time ns: (\d+)")


class TorchServe(NamedTuple):
    predictions: str
    metrics: str
    output: Path
    store: Store

    def send(self, numbers: Sequence[int | str]) -> int:
        return httpx.post(self.predictions, json=numbers, timeout=60).status_code

    def logged(self, count: int) -> list[tuple[float, float]]:
        """Return the seconds in the queue and after it of the requests with a result, once *count* of them are logged."""
        deadline = monotonic() + 60
        while len(found := _LOGGED.findall(self.output.read_text())) < count:
            assert monotonic() < deadline, f"{len(found)} of {count} requests were logged"
            Event().wait(0.05)
        return [(int(waiting) / 1e9, int(backend) / 1e9) for waiting, backend in found]


@contextmanager
def running(folder: Path, store: Store, collector: str) -> Generator[TorchServe]:
    ports = [free_port() for _ in range(5)]
    (folder / "config.properties").write_text(_SETTINGS.format(*ports))
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(_INSTALLED), os.environ.get("PYTHONPATH")))),
        # The sockets of the workers lie in the first, and the file with the process id in the second.
        "TEMP": str(folder),
        "TMPDIR": str(folder),
        "OTEL_SERVICE_NAME": "sums",
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector,
        "STAGELENS_EXPORT_INTERVAL": "200ms",
    }
    archive = ["--model-name", "sums", "--version", "1.0", "--handler", str(_HERE / "served_by_torchserve.py")]
    archiver = [sys.executable, str(_INSTALLED / "bin" / "torch-model-archiver")]
    subprocess.run([*archiver, *archive, "--export-path", str(folder)], env=env, check=True)
    server = [sys.executable, str(_INSTALLED / "bin" / "torchserve"), "--start", "--foreground", "--ncs"]
    options = ["--model-store", str(folder), "--models", "sums.mar", "--ts-config", str(folder / "config.properties")]
    command = [sys.executable, "-m", "stagelens", "run", "--", *server, *options]
    with (folder / "output").open("w") as output:
        process = subprocess.Popen(command, cwd=folder, env=env, stdout=output, stderr=output, start_new_session=True)
        try:
            inference, _, metrics, *_ = (f"http://127.0.0.1:{port}" for port in ports)
            yield TorchServe(f"{inference}/predictions/sums", f"{metrics}/metrics", folder / "output", store)
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(60)


@pytest.fixture(scope="module")
def torchserve(tmp_path_factory: pytest.TempPathFactory) -> Generator[TorchServe]:
    if not (_INSTALLED.is_dir() and shutil.which("java")) and not os.environ.get("CI"):
        pytest.skip("no TorchServe or no java; `make torchserve programs` installs both")
    folder = tmp_path_factory.mktemp("ts")
    store = Store.open(f"sqlite:///{folder}/stagelens.db")
    with serving(Collector(CollectorConfig(port=0), store)) as url, running(folder, store, url) as server:
        deadline = monotonic() + 120
        while not _responds(server):
            assert monotonic() < deadline, (folder / "output").read_text()
            Event().wait(0.1)
        yield server
    store.close()


def _responds(server: TorchServe) -> bool:
    try:
        return server.send([1, 2]) == 200
    except httpx.TransportError:
        return False


def everything() -> Selection:
    now = datetime.now(UTC)
    return Selection(now - timedelta(hours=1), now + timedelta(hours=1))


def test_scraped_means_equal_the_log_of_the_server(torchserve: TorchServe, tmp_path: Path) -> None:
    target = ScrapeTarget(url=torchserve.metrics, service="sums", every=timedelta(seconds=1))
    store = Store.open(f"sqlite:///{tmp_path}/stagelens.db")
    scraper = Scraper(store, lambda: (target,), {})
    before = len(torchserve.logged(1))
    asyncio.run(scraper.scrape(target))
    with ThreadPoolExecutor(_CLIENTS) as clients:
        statuses = list(clients.map(torchserve.send, [["x", 1], *([number, 1] for number in range(_REQUESTS))]))
    logged = torchserve.logged(before + _REQUESTS)[before:]
    asyncio.run(scraper.scrape(target))
    (engine,) = store.read.engines(everything())
    store.close()
    waiting, in_worker = (sum(times) for times in zip(*logged, strict=True))
    total = engine.requests.lows.sum

    assert statuses == [503, *[200] * _REQUESTS]
    assert (engine.model, engine.requests.count) == ("sums", _REQUESTS + 1)
    assert engine.stages["queue"].lows.sum == pytest.approx(waiting)
    # The log measures to the end of the response, and the metric to its start.
    assert waiting < total < waiting + in_worker


def test_the_model_in_the_worker_is_timed(torchserve: TorchServe) -> None:
    read = torchserve.store.read
    statuses = [torchserve.send(numbers) for numbers in ([1, 2], [3, 4], ["x", 1])]
    sent = int(float(httpx.get(torchserve.metrics).text.split("ts_inference_requests_total{")[1].split()[1]))
    deadline = monotonic() + 60
    while read.latency(everything()).count < sent:
        assert monotonic() < deadline, f"{read.latency(everything()).count} of {sent} requests arrived"
        Event().wait(0.1)
    failed = read.latency(replace(everything(), status="error")).count
    stages = read.stage_latency(everything())

    assert statuses == [200, 200, 503]
    assert (read.latency(everything()).count, stages["handler"].count) == (sent, sent)
    # The first run of a model is its warm-up.
    assert (stages["load"].count, stages["forward"].count) == (1, sent - failed - 1)
    assert failed >= 1
