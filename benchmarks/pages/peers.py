"""What peers need for their latency page: arize-phoenix (from PyPI, in its own venv) and Prometheus' own graph page.

Phoenix shows percentiles of 2,000 traces of 8 spans (its newest week), which it takes minutes to take in; Prometheus shows the p99 of
one service over 6 hours, from classic histograms of the same streams of requests as ours.
"""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode

import httpx
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from playwright.sync_api import Browser, Page
from storage.dataset import NOW, Shape
from storage.prometheus import serving

from .visits import Loaded, load

_TRACES, _A_POST = 2000, 250
_STAGES = ("queue", "preprocess", "tokenize", "forward", "postprocess", "serialize", "network")
_DAY_SECONDS = 86_400
_NS = 1_000_000_000
_START_SECONDS = 600
_QUERY = 'histogram_quantile(0.99, sum by (le) (rate(request_duration_seconds_bucket{service="service-2"}[3m])))'


def visits(browser: Browser, shape: Shape, data: Path, rounds: int) -> Iterator[tuple[str, list[Loaded]]]:
    """Yield the visits of each peer's page, each with an empty cache."""
    with _phoenix(data) as url:
        yield "phoenix: metrics of a project", [load(browser, url, _percentiles_stand) for _ in range(rounds)]
    with serving(shape, data) as server:
        query = {"g0.expr": _QUERY, "g0.tab": "0", "g0.range_input": "6h", "g0.end_input": _stamp(NOW)}
        url = f"{server.address}/graph?{urlencode(query)}"
        yield "Prometheus: graph of p99, 6 h", [load(browser, url, _graph_stands) for _ in range(rounds)]


def _stamp(at: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at))


def _percentiles_stand(page: Page) -> None:
    page.wait_for_function(
        "() => [...document.querySelectorAll('svg.recharts-surface path.recharts-curve')].length > 5", timeout=120_000
    )


def _graph_stands(page: Page) -> None:
    page.wait_for_selector(".rickshaw_graph path, .graph-legend .legend-item", state="attached", timeout=120_000)


@contextmanager
def _phoenix(data: Path) -> Generator[str]:
    """Start Phoenix with its traces, and give the address of its latency page."""
    port, other = _free_port(), _free_port()
    environment = {
        **os.environ,
        "PHOENIX_WORKING_DIR": str(data / "phoenix"),
        "PHOENIX_PORT": str(port),
        "PHOENIX_GRPC_PORT": str(other),
        "PHOENIX_TELEMETRY_ENABLED": "false",
    }
    program = _installed(data)
    quiet = subprocess.DEVNULL
    process = subprocess.Popen([str(program), "serve"], env=environment, stdout=quiet, stderr=quiet)
    base = f"http://127.0.0.1:{port}"
    try:
        _wait(base)
        project = _project(base) or _feed(base)
        yield f"{base}/projects/{project}/metrics"
    finally:
        process.terminate()
        process.wait()


def _installed(data: Path) -> Path:
    folder = data / "phoenix.venv"
    if not (folder / "bin" / "phoenix").exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([folder / "bin" / "pip", "install", "--quiet", "arize-phoenix"], check=True)
    return folder / "bin" / "phoenix"


def _project(base: str) -> str | None:
    """Return the id of the project when it has its traces."""
    query = "{ projects { edges { node { id traceCount } } } }"
    found = httpx.post(f"{base}/graphql", json={"query": query}).json()["data"]["projects"]["edges"]
    return next((each["node"]["id"] for each in found if each["node"]["traceCount"] >= _TRACES), None)


def _feed(base: str) -> str:
    """Send the traces, and wait until they are there."""
    source = random.Random(1)
    for _ in range(0, _TRACES, _A_POST):
        body = _spans(source, time.time_ns()).SerializeToString()
        headers = {"content-type": "application/x-protobuf"}
        httpx.post(f"{base}/v1/traces", content=body, headers=headers, timeout=60).raise_for_status()
    deadline = time.monotonic() + _START_SECONDS
    while (project := _project(base)) is None:
        if time.monotonic() > deadline:
            msg = "Phoenix did not take the traces"
            raise RuntimeError(msg)
        time.sleep(0.5)
    return project


def _spans(source: random.Random, now: int) -> ExportTraceServiceRequest:
    request = ExportTraceServiceRequest()
    spans = request.resource_spans.add().scope_spans.add().spans
    for _ in range(_A_POST):
        trace, root, start = source.randbytes(16), source.randbytes(8), now - source.randrange(_DAY_SECONDS * _NS)
        end = start
        for stage in _STAGES:
            begin, end = end, end + int(source.lognormvariate(3, 1) * 1e6)
            times = {"start_time_unix_nano": begin, "end_time_unix_nano": end}
            spans.add(trace_id=trace, span_id=source.randbytes(8), parent_span_id=root, name=stage, **times)
        spans.add(trace_id=trace, span_id=root, name="predict", start_time_unix_nano=start, end_time_unix_nano=end)
    return request


def _wait(url: str) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            httpx.get(url, timeout=5)
        except httpx.HTTPError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
        else:
            return


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]
