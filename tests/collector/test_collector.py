"""The collector from end to end: clients, duplicates, start and shutdown."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

from stagelens.collector.config import CollectorConfig
from stagelens.collector.ingest import pipeline
from stagelens.collector.ingest.writer import UncommittedError, Writer
from stagelens.collector.scrape.scraper import Scraper
from stagelens.collector.self_metrics import SelfMetrics
from stagelens.collector.serve import Collector
from stagelens.core import names
from stagelens.core.errors import StagelensError, StoreError
from stagelens.store import Batch, Store
from tests.collector.conftest import last_day
from tests.collector.metrics import DELTA, export_requests


@pytest.mark.parametrize("compression", [Compression.Gzip, Compression.NoCompression])
def test_the_opentelemetry_sdk_can_send_our_metrics(served: Any, compression: Compression) -> None:
    url = f"{served.url}/v1/metrics"
    export_requests(OTLPMetricExporter(url, compression=compression, preferred_temporality=DELTA), 101)

    assert served.counted() == 101
    assert served.metric('stagelens_collector_ignored_total{signal="metrics"}') >= 1
    assert served.metric("stagelens_collector_healthy") == 1


AGENT = """
import stagelens
from stagelens.instrumentors.recorder import clock, current
for _ in range(20):
    with stagelens.request("job", batch=3):
        with stagelens.stage("forward"):
            sum(range(1000))
with stagelens.request("chat"):
    with stagelens.stage("prefill"):
        sum(range(1000))
    current.get().extend(("@first_token", clock(), "generate", "@tokens_in", 7, 0, "@tokens_out", 3, 0))
    with stagelens.request("inner"), stagelens.stage("decode"):
        sum(range(1000))
    current.get().extend(("@per_token", 2000, 2, "@gap", 1500, 0))
"""


def test_all_data_of_the_agent_are_stored(served: Any, tmp_path: Path) -> None:
    endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": served.url, "OTEL_SERVICE_NAME": "job"}
    environment = {"PATH": os.environ["PATH"], **endpoint}
    subprocess.run([sys.executable, "-c", AGENT], env=environment, cwd=tmp_path, check=True, timeout=60)
    read, job = served.store.read, last_day("job")
    counts = {
        metric: {key: histogram.count for key, histogram in read.streams(job, metric).items()}
        for metric in (names.FIRST_TOKEN, names.OUTPUT_TOKEN, names.STREAM_GAP, names.TOKENS)
    }
    trace = read.trace(read.exemplars(replace(job, route="chat")).iloc[0]["trace_id"])

    assert (served.counted(), served.rejected()) == (21, 0)
    assert {band: histogram.count for band, histogram in read.batches(job).items()} == {"2-3": 20}
    assert counts == {
        names.FIRST_TOKEN: {"generate": 1},
        names.OUTPUT_TOKEN: {"generate": 1},
        names.STREAM_GAP: {"generate": 1},
        names.TOKENS: {"input": 1, "output": 1},
    }
    stages = [(span["name"], span["stage"]) for span in trace.spans]
    assert stages == [("prefill", "prefill"), ("inner", ""), ("decode", "decode")]


def test_a_batch_without_a_name_delivered_twice_counts_once(served: Any, bodies: Any) -> None:
    body = json.dumps(bodies.metrics(bodies.point())).encode()
    first = served.post("/v1/metrics", body)
    again = served.post("/v1/metrics", gzip.compress(body), content_encoding="gzip")

    assert (first.status_code, again.status_code, served.counted()) == (200, 200, 1)


def test_one_name_serves_both_signals(served: Any, bodies: Any) -> None:
    served.post("/v1/metrics", bodies.metrics(bodies.point()), x_stagelens_batch="pod-1:7")
    served.post("/v1/traces", bodies.spans(*bodies.trace({"forward": 5})), x_stagelens_batch="pod-1:7")

    assert served.counted() == 1
    assert served.store.read.trace("ab" * 16) is not None


def test_many_senders_at_once_are_counted_exactly(served: Any, bodies: Any) -> None:
    body = json.dumps(bodies.metrics(bodies.point((0.1, 0.2, 0.3)))).encode()
    names_twice = [f"pod:{number}" for number in range(100)] * 2
    with ThreadPoolExecutor(16) as pool:
        responses = list(pool.map(lambda name: served.post("/v1/metrics", body, x_stagelens_batch=name), names_twice))

    assert {response.status_code for response in responses} == {200}
    assert served.counted() == 300
    assert served.metric('stagelens_collector_batches_total{outcome="counted"}') == 100


@pytest.mark.parametrize(("hours", "counted"), [(3, 1), (25, 0)])
def test_late_batches_count_while_their_names_are_retained(
    serve: Callable[..., Any], bodies: Any, hours: int, counted: int
) -> None:
    served = serve(retention_10s=timedelta(hours=1))
    late = bodies.now_ns - hours * 3600 * 1_000_000_000
    point = bodies.point(startTimeUnixNano=str(late - 10_000_000_000), timeUnixNano=str(late))
    response = served.post("/v1/metrics", bodies.metrics(point))

    assert (response.status_code, served.counted()) == (200, counted)
    assert ("too long ago" in response.text) == (not counted)


def test_a_duplicate_waits_for_the_commit_of_the_first(
    serve_slow: Any, slow: Any, bodies: Any, until: Callable[..., None]
) -> None:
    served = serve_slow()
    slow.open.clear()
    body = json.dumps(bodies.metrics(bodies.point())).encode()
    with ThreadPoolExecutor(2) as pool:
        first, second = (pool.submit(served.post, "/v1/metrics", body, x_stagelens_batch="a:1") for _ in range(2))
        waiting = served.collector._writer._queue
        until(lambda: [len(entry.senders) for entry in list(waiting.values())] == [2])
        answered_early = first.done() or second.done()
        slow.open.set()
        codes = {first.result().status_code, second.result().status_code}

    assert (answered_early, codes, served.counted()) == (False, {200}, 1)


def test_stopping_does_not_wait_for_a_failing_store(serve_slow: Any, slow: Any, bodies: Any) -> None:
    served = serve_slow()
    slow.failure = StoreError("the disk is full")
    response = served.post("/v1/metrics", bodies.metrics(bodies.point()))
    served.collector.stop()
    served.collector.stop()

    assert (response.status_code, served.counted()) == (503, 0)


def test_an_unstarted_collector_can_be_stopped(store: Store) -> None:
    collector = Collector(CollectorConfig(port=0), store)
    collector.stop()
    with pytest.raises(StagelensError, match="before its start"):
        _ = collector.address


def test_a_server_that_cannot_start_is_an_error(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    async def end(*_: object) -> None:
        raise SystemExit(3)

    monkeypatch.setattr("uvicorn.Server.startup", end)
    before = set(threading.enumerate())
    with pytest.raises(StagelensError, match="stopped during startup"):
        Collector(CollectorConfig(port=0), store).start()

    # Threads of other tests may stop at the same time.
    assert set(threading.enumerate()) <= before


def test_a_stopping_writer_refuses_batches(store: Store) -> None:
    writer = Writer(store, max_batches=1, max_bytes=1, metrics=SelfMetrics())
    writer.start()
    writer.stop()
    with pytest.raises(UncommittedError, match="shutting down"):
        writer.submit(Batch("late"), 1)


def test_a_failed_writer_fails_the_probes(
    served: Any, bodies: Any, monkeypatch: pytest.MonkeyPatch, until: Callable[..., None]
) -> None:
    def broken(*_: object) -> None:
        raise ArithmeticError

    monkeypatch.setattr(pipeline, "MAX_COMMIT_SECONDS", 0.5)
    monkeypatch.setattr(served.collector.metrics, "committed", broken)
    response = served.post("/v1/metrics", bodies.metrics(bodies.point()))
    until(lambda: served.client.get("/livez").status_code == 503)
    sick = served.client.get("/readyz")
    dead = served.client.get("/livez")

    assert (response.status_code, sick.status_code, "restart the collector" in sick.text) == (503, 503, True)
    assert dead.text == "the thread stagelens-writer has stopped; see the log and restart the collector\n"
    assert (sick.headers["retry-after"], dead.headers["retry-after"]) == ("5", "5")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_failed_scraper_fails_the_liveness_probe(
    serve: Any, monkeypatch: pytest.MonkeyPatch, until: Callable[..., None]
) -> None:
    def broken(_self: Scraper) -> None:
        raise ArithmeticError

    monkeypatch.setattr(Scraper, "_run", broken)
    served = serve()
    until(lambda: "the thread stagelens-scraper has stopped" in served.client.get("/livez").text)

    assert served.client.get("/livez").status_code == 503


def test_a_port_in_use_is_reported_with_the_fix(served: Any, store: Store) -> None:
    _, port = served.collector.address
    with pytest.raises(StagelensError, match=rf"127\.0\.0\.1:{port} .*in use[\s\S]*STAGELENS_COLLECTOR_PORT"):
        Collector(CollectorConfig(port=port), store).start()
    with pytest.raises(StagelensError, match=r"cannot listen on 192\.0\.2\.1:0"):
        Collector(CollectorConfig(host="192.0.2.1", port=0, is_open=True), store).start()


_LIFE = """
import sys
from stagelens.cli.servers import server_parts
from stagelens.collector.config import CollectorConfig
from stagelens.store.store_factory import open_store

environment = {
    "STAGELENS_DATABASE": sys.argv[1], "STAGELENS_COLLECTOR_PORT": "0", "STAGELENS_COLLECTOR_GRPC_PORT": "0"
}
store = open_store(CollectorConfig.from_env(environment))
[(collector, _)] = server_parts("collector", environment, store)
collector.start()
collector.stop()  # folds and maintains once
assert collector.metrics.samples()["store_bytes", ()]
store.close()
rooms = {".".join(name.split(".")[:2]) for name in sys.modules if name.startswith("stagelens.")}
print(*sorted({"pandas", "pyarrow", "dash", "plotly", *rooms} & {*sys.modules}))
"""


def test_a_collector_loads_no_modules_of_pages_or_alerts(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _LIFE, f"sqlite:///{tmp_path / 'store.db'}"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == [f"stagelens.{text}" for text in ("analysis", "cli", "collector", "core", "store")]
