"""The collector as a whole: real clients, duplicates, and a store that cannot commit for a while."""

from __future__ import annotations

import gzip
import json
import logging
import os
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import AggregationTemporality, PeriodicExportingMetricReader
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation, View
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from stagelens.collector import http
from stagelens.collector.config import CollectorConfig
from stagelens.collector.health import Health
from stagelens.collector.selfmetrics import SelfMetrics
from stagelens.collector.serve import Collector
from stagelens.collector.store import Batch, Store
from stagelens.collector.writer import UncommittedError, Writer
from stagelens.core import names
from stagelens.core.errors import ConfigError, StagelensError, StoreError


def test_an_export_is_in_the_store_when_it_is_answered(served: Any, bodies: Any) -> None:
    """A request answered with 200 can be read back at once."""
    answer = served.post("/v1/metrics", bodies.metrics(bodies.point((0.1, 0.2))))

    assert (answer.status_code, answer.json(), served.counted()) == (200, {}, 2)


# --- real clients ---


@pytest.mark.parametrize("compression", [Compression.Gzip, Compression.NoCompression])
def test_the_opentelemetry_sdk_can_send_our_metrics(served: Any, compression: Compression) -> None:
    """A histogram of ours recorded with the OpenTelemetry SDK arrives whole, by protobuf."""
    exporter = OTLPMetricExporter(
        f"{served.url}/v1/metrics",
        compression=compression,
        preferred_temporality={Histogram: AggregationTemporality.DELTA},
    )
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=1e9)
    view = View(instrument_name=names.REQUEST_DURATION, aggregation=ExponentialBucketHistogramAggregation())
    resource = Resource({names.SERVICE_NAME: "sdk", names.SERVICE_VERSION: "2", names.SERVICE_INSTANCE: "i"})
    provider = MeterProvider([reader], resource, views=[view])
    recorded = provider.get_meter("mine").create_histogram(names.REQUEST_DURATION, "s")
    for number in range(1, 101):
        recorded.record(number / 1000, {names.ROUTE: "/predict", names.DOMINANT: "forward"})
    provider.get_meter("mine").create_counter("of.my.own").add(1)
    assert provider.force_flush()
    recorded.record(0.5, {names.ROUTE: "/predict", names.DOMINANT: "forward"})
    provider.shutdown()

    assert served.counted() == 101
    assert served.metric('stagelens_collector_ignored_total{signal="metrics"}') >= 1
    assert served.metric("stagelens_collector_healthy") == 1


def test_the_opentelemetry_sdk_is_told_why_its_points_are_refused(
    served: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Cumulative temporality, the SDK's default, is declined by partial success and changes nothing."""
    reader = PeriodicExportingMetricReader(OTLPMetricExporter(f"{served.url}/v1/metrics"), export_interval_millis=1e9)
    view = View(instrument_name=names.REQUEST_DURATION, aggregation=ExponentialBucketHistogramAggregation())
    provider = MeterProvider([reader], views=[view])
    provider.get_meter("mine").create_histogram(names.REQUEST_DURATION, "s").record(0.1)
    with caplog.at_level(logging.DEBUG):
        provider.shutdown()

    assert served.metric('stagelens_collector_rejected_total{reason="temporality",signal="metrics"}') == 1
    assert served.counted() == 0


def test_the_opentelemetry_sdk_can_send_spans(served: Any) -> None:
    """Spans of the SDK are accepted and counted as not kept."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{served.url}/v1/traces")))
    with provider.get_tracer("mine").start_as_current_span("work"):
        pass
    provider.shutdown()

    assert served.metric('stagelens_collector_requests_total{code="200",signal="traces"}') == 1


AGENT = """
import stagelens
for _ in range(20):
    with stagelens.request("job"):
        with stagelens.stage("forward"):
            sum(range(1000))
"""


def test_the_agent_is_believed(served: Any, tmp_path: Path) -> None:
    """Everything the agent sends passes every rule: each of its requests is counted and its traces are kept."""
    environment = {
        "PATH": os.environ["PATH"],
        "OTEL_EXPORTER_OTLP_ENDPOINT": served.url,
        "OTEL_SERVICE_NAME": "job",
    }
    subprocess.run([sys.executable, "-c", AGENT], env=environment, cwd=tmp_path, check=True, timeout=60)

    assert served.counted() == 20
    assert served.metric("stagelens_collector_traces_total") > 0
    assert "stagelens_collector_rejected_total{" not in served.client.get("/metrics").text


# --- duplicates ---


@pytest.mark.parametrize("headers", [{"x_stagelens_batch": "pod-1:7"}, {}])
def test_a_batch_delivered_twice_counts_once(served: Any, bodies: Any, headers: dict[str, str]) -> None:
    """A retry, known by its name or by its body, is answered like the first and changes nothing."""
    body = json.dumps(bodies.metrics(bodies.point())).encode()
    first = served.post("/v1/metrics", body, **headers)
    again = served.post("/v1/metrics", gzip.compress(body), content_encoding="gzip", **headers)

    assert (first.status_code, again.status_code, served.counted()) == (200, 200, 1)


def test_one_name_serves_both_signals(served: Any, bodies: Any) -> None:
    """A client that numbers metrics and traces alike loses neither."""
    served.post("/v1/metrics", bodies.metrics(bodies.point()), x_stagelens_batch="pod-1:7")
    served.post("/v1/traces", bodies.spans(*bodies.trace({"forward": 5})), x_stagelens_batch="pod-1:7")

    assert served.counted() == 1
    assert served.store.read.trace("ab" * 16) is not None


def test_many_senders_at_once_are_counted_exactly(served: Any, bodies: Any) -> None:
    """Batches that arrive together, some of them twice at the same moment, are each counted once."""
    body = json.dumps(bodies.metrics(bodies.point((0.1, 0.2, 0.3)))).encode()
    names_twice = [f"pod:{number}" for number in range(100)] * 2
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda name: served.post("/v1/metrics", body, x_stagelens_batch=name), names_twice))

    assert {answer.status_code for answer in answers} == {200}
    assert served.counted() == 300
    assert served.metric('stagelens_collector_batches_total{outcome="counted"}') == 100


class SlowStore:
    """A store whose commits can be held up, and made to fail."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.open = threading.Event()
        self.open.set()
        self.entered = threading.Semaphore(0)
        self.failure: Exception | None = None
        self.broken_by: str | None = None
        self.maintenance_failure: Exception | None = None

    def write(self, batches: list[Batch]) -> list[bool]:
        """Write, once the test lets it, or fail as the test wants it."""
        self.entered.release()
        assert self.open.wait(20)
        if self.failure is not None:
            raise self.failure
        if any(batch.id == self.broken_by for batch in batches):
            msg = "this batch breaks the store"
            raise ArithmeticError(msg)
        return self._store.write(batches)

    def maintain(self) -> None:
        """Maintain, or fail as the test wants it."""
        if self.maintenance_failure is not None:
            raise self.maintenance_failure
        self._store.maintain()


@pytest.fixture
def slow(store: Store) -> SlowStore:
    return SlowStore(store)


@pytest.fixture
def serve_slow(slow: SlowStore, serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Starts a collector on the slow store."""
    real = Collector.__init__

    def on_slow(self: Collector, config: CollectorConfig, _store: Store) -> None:
        real(self, config, slow, maintenance_seconds=0.05)  # type: ignore[arg-type] - it has what a collector uses

    monkeypatch.setattr(Collector, "__init__", on_slow)
    return serve


def test_a_duplicate_waits_for_the_commit_of_the_first(
    serve_slow: Any, slow: SlowStore, bodies: Any, until: Callable[..., None]
) -> None:
    """A retry that arrives while the first still waits is not answered before both are on disk."""
    served = serve_slow()
    slow.open.clear()
    body = json.dumps(bodies.metrics(bodies.point())).encode()
    with ThreadPoolExecutor(2) as pool:
        first, second = (pool.submit(served.post, "/v1/metrics", body, x_stagelens_batch="a:1") for _ in range(2))
        waiting = served.collector._writer._queue
        until(lambda: [len(entry.senders) for entry in list(waiting.values())] == [2])
        answered_early = first.done() or second.done()
        slow.open.set()
        answers = {first.result().status_code, second.result().status_code}

    assert (answered_early, answers, served.counted()) == (False, {200}, 1)


# --- a store that cannot commit ---


def test_a_full_queue_asks_to_come_back(
    serve_slow: Any, slow: SlowStore, bodies: Any, until: Callable[..., None]
) -> None:
    """When as many batches wait as may, the next is answered 429 with Retry-After; the waiting ones are not lost."""
    served = serve_slow(queue_batches=2)
    slow.open.clear()
    body = json.dumps(bodies.metrics(bodies.point())).encode()
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(served.post, "/v1/metrics", body, x_stagelens_batch=f"a:{n}") for n in range(2)]
        assert slow.entered.acquire(timeout=10)
        until(lambda: served.metric("stagelens_collector_queue_batches") == 2)
        refused = served.post("/v1/metrics", body, x_stagelens_batch="a:2")
        slow.open.set()
        accepted = [answer.result().status_code for answer in waiting]

    assert (refused.status_code, refused.headers["retry-after"], refused.json()["code"]) == (429, "1", 8)
    assert (accepted, served.counted()) == ([200, 200], 2)


def test_a_queue_is_bounded_by_bytes(serve_slow: Any, slow: SlowStore, bodies: Any) -> None:
    """Large batches fill the queue before it is long."""
    body = json.dumps(bodies.metrics(bodies.point())).encode()
    served = serve_slow(queue_bytes=int(len(body) * 1.5))
    slow.open.clear()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(served.post, "/v1/metrics", body, x_stagelens_batch="a:1")
        assert slow.entered.acquire(timeout=10)
        refused = served.post("/v1/metrics", body, x_stagelens_batch="a:2")
        slow.open.set()

        assert (refused.status_code, waiting.result().status_code) == (429, 200)


def test_what_a_failing_store_could_not_take_is_kept_and_written_later(
    serve_slow: Any, slow: SlowStore, bodies: Any, until: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    """While commits fail senders get 503 and the reason; afterwards the batch is written, and its retry counts nothing."""
    served = serve_slow()
    slow.failure = StoreError("cannot write to stagelens.db: the disk is full")
    body = json.dumps(bodies.metrics(bodies.point())).encode()
    answers = [served.post("/v1/metrics", body, x_stagelens_batch="a:1") for _ in range(2)]
    sick = served.client.get("/healthz")
    slow.failure = None
    until(lambda: served.counted() == 1)
    until(lambda: served.client.get("/healthz").status_code == 200)
    again = served.post("/v1/metrics", body, x_stagelens_batch="a:1")

    assert [(answer.status_code, answer.headers["retry-after"]) for answer in answers] == [(503, "5")] * 2
    assert "the disk is full" in answers[0].json()["message"]
    assert (sick.status_code, "the disk is full" in sick.text) == (503, True)
    assert (again.status_code, served.counted()) == (200, 1)
    logged = [record.message for record in caplog.records if "committing to the store" in record.message]
    assert len(logged) == 2


def test_a_commit_that_takes_too_long_is_answered_before_the_sender_gives_up(
    serve_slow: Any, slow: SlowStore, bodies: Any, until: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sender gets 503 while the batch stays queued; it is counted once, whoever wins."""
    monkeypatch.setattr(http, "MAX_COMMIT_SECONDS", 0.1)
    served = serve_slow()
    slow.open.clear()
    body = json.dumps(bodies.metrics(bodies.point())).encode()
    answer = served.post("/v1/metrics", body, x_stagelens_batch="a:1")
    slow.open.set()
    until(lambda: served.counted() == 1)
    again = served.post("/v1/metrics", body, x_stagelens_batch="a:1")

    assert (answer.status_code, "the batch stays queued" in answer.json()["message"]) == (503, True)
    assert (again.status_code, served.counted()) == (200, 1)


def test_a_buffer_that_is_full_while_the_store_fails_is_a_503(serve_slow: Any, slow: SlowStore, bodies: Any) -> None:
    """It is the store that is at fault then, not the sender's haste."""
    served = serve_slow(queue_batches=1)
    slow.failure = StoreError("locked")
    body = json.dumps(bodies.metrics(bodies.point())).encode()
    served.post("/v1/metrics", body, x_stagelens_batch="a:1")
    answer = served.post("/v1/metrics", body, x_stagelens_batch="a:2")
    slow.failure = None

    assert (answer.status_code, "the queue is full" in answer.json()["message"]) == (503, True)


def test_a_batch_that_breaks_the_store_is_dropped_alone(
    serve_slow: Any, slow: SlowStore, bodies: Any, until: Callable[..., None]
) -> None:
    """An unexpected error is pinned to the batch that causes it; those that shared its transaction get through."""
    served = serve_slow()
    slow.broken_by = "metrics:bad"
    slow.open.clear()
    body = json.dumps(bodies.metrics(bodies.point())).encode()
    with ThreadPoolExecutor(4) as pool:
        sent = {
            name: pool.submit(served.post, "/v1/metrics", body, x_stagelens_batch=name)
            for name in ("a", "bad", "b", "c")
        }
        until(lambda: served.metric("stagelens_collector_queue_batches") == 4)
        slow.open.set()
        answers = {name: answer.result().status_code for name, answer in sent.items()}

    assert answers == {"a": 200, "bad": 500, "b": 200, "c": 200}
    assert served.counted() == 3


def test_maintenance_survives_its_errors(
    serve_slow: Any, slow: SlowStore, until: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    """A failing roll-up is logged once, shows on /healthz and /metrics, and is forgotten when it works again."""
    slow.maintenance_failure = StoreError("read-only")
    served = serve_slow()
    until(lambda: served.metric("stagelens_collector_maintenance_failures_total") >= 3)
    sick = served.client.get("/healthz")
    unhealthy = served.metric("stagelens_collector_healthy")
    slow.maintenance_failure = None
    until(lambda: served.client.get("/healthz").status_code == 200)

    assert (sick.status_code, "read-only" in sick.text, unhealthy) == (503, True, 0)
    logged = [record.message for record in caplog.records if "maintaining the store" in record.message]
    assert len(logged) == 2


def test_a_database_that_is_locked_for_a_while_loses_nothing(
    store: Store, served: Any, bodies: Any, until: Callable[..., None]
) -> None:
    """Another process that holds SQLite's write lock delays the commit; nothing is lost or counted twice."""
    body = json.dumps(bodies.metrics(bodies.point())).encode()
    other = sqlite3.connect(str(store.engine.url.database), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(served.post, "/v1/metrics", body)
        until(lambda: served.metric("stagelens_collector_queue_batches") == 1)
        other.execute("ROLLBACK")
        other.close()

        assert (answer.result().status_code, served.counted()) == (200, 1)


def test_a_full_disk_heals(served: Any, store: Store, bodies: Any, until: Callable[..., None]) -> None:
    """SQLite's own "disk is full" is answered with 503; once there is room the buffered batch is in the store."""
    many = [bodies.point(tuple(0.001 * 1.1**step for step in range(60)))] * 200
    for number, point in enumerate(many):
        many[number] = point | {"timeUnixNano": str(bodies.now_ns - number * 100 * 10**9), "startTimeUnixNano": "0"}
    with store.engine.connect() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
    from sqlalchemy import event  # noqa: PLC0415 - used here only

    limit = {"pages": int(pages) + 1}

    def restrict(connection: Any, _record: Any, _proxy: Any) -> None:
        connection.execute(f"PRAGMA max_page_count = {limit['pages']}").close()

    event.listen(store.engine, "checkout", restrict)
    answer = served.post("/v1/metrics", bodies.metrics(*many))
    sick = served.client.get("/healthz")
    limit["pages"] = 2**30
    until(lambda: served.counted() == 200 * 60)

    assert (answer.status_code, sick.status_code) == (503, 503)
    assert "the disk is full" in answer.json()["message"]


# --- beginning and end ---


def test_stopping_answers_what_was_accepted(serve_slow: Any, slow: SlowStore, bodies: Any) -> None:
    """A request under way when the collector is told to stop is committed and answered; then nobody listens."""
    served = serve_slow()
    slow.open.clear()
    with ThreadPoolExecutor(2) as pool:
        answer = pool.submit(served.post, "/v1/metrics", bodies.metrics(bodies.point()))
        assert slow.entered.acquire(timeout=10)
        stopped = pool.submit(served.collector.stop)
        slow.open.set()
        stopped.result(timeout=20)

        assert (answer.result().status_code, served.counted()) == (200, 1)
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(served.collector.address, timeout=1)


def test_stopping_does_not_wait_for_a_store_that_fails(serve_slow: Any, slow: SlowStore, bodies: Any) -> None:
    """Batches that cannot be committed at the end are given up; their senders were never told otherwise."""
    served = serve_slow()
    slow.failure = StoreError("the disk is full")
    answer = served.post("/v1/metrics", bodies.metrics(bodies.point()))
    served.collector.stop()
    served.collector.stop()

    assert (answer.status_code, served.counted()) == (503, 0)


def test_a_collector_that_was_never_started_can_be_stopped(store: Store) -> None:
    """stop() is safe at any time; there is no address before start()."""
    collector = Collector(CollectorConfig(port=0), store)
    collector.stop()
    with pytest.raises(StagelensError, match="before it is started"):
        _ = collector.address


def test_a_server_that_cannot_start_says_so(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that ends while it starts ends the start, and leaves no thread behind."""

    async def end(*_: object) -> None:
        raise SystemExit(3)

    monkeypatch.setattr("uvicorn.Server.startup", end)
    before = threading.active_count()
    with pytest.raises(StagelensError, match="ended while it started"):
        Collector(CollectorConfig(port=0), store).start()

    assert threading.active_count() == before


def test_a_writer_at_its_end_takes_nothing_more(store: Store) -> None:
    """A batch that comes too late is refused, so that its sender tries elsewhere or again."""
    health = Health()
    writer = Writer(store, max_batches=1, max_bytes=1, health=health, metrics=SelfMetrics(health))
    writer.start()
    writer.stop()
    with pytest.raises(UncommittedError, match="shutting down"):
        writer.submit(Batch("late"), 1)


def test_a_writer_that_breaks_shows(served: Any, bodies: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of the writer itself is not hidden behind a healthy face: /healthz says to restart."""

    def broken(*_: object) -> None:
        raise ArithmeticError

    monkeypatch.setattr(http, "MAX_COMMIT_SECONDS", 0.5)
    monkeypatch.setattr(served.collector.metrics, "committed", broken)
    answer = served.post("/v1/metrics", bodies.metrics(bodies.point()))
    sick = served.client.get("/healthz")

    assert (answer.status_code, sick.status_code, "restart the collector" in sick.text) == (503, 503, True)


def test_a_port_that_is_taken_is_named_with_the_cure(served: Any, store: Store) -> None:
    """Two collectors cannot have one port; the error says which, and what to set."""
    _, port = served.collector.address
    with pytest.raises(StagelensError, match=rf"127\.0\.0\.1:{port} .*in use[\s\S]*STAGELENS_COLLECTOR_PORT"):
        Collector(CollectorConfig(port=port), store).start()


def test_an_address_that_is_not_ours_is_named(store: Store) -> None:
    """A host that cannot be listened on is as plain."""
    with pytest.raises(StagelensError, match=r"cannot listen on 192\.0\.2\.1:0"):
        Collector(CollectorConfig(host="192.0.2.1", port=0), store).start()


# --- settings ---


def test_settings_come_from_the_environment() -> None:
    """Every setting has a variable; what is not set, or empty, has its default."""
    config = CollectorConfig.from_env(
        {
            "STAGELENS_DATABASE": "sqlite:////data/s.db",
            "STAGELENS_COLLECTOR_HOST": "0.0.0.0",
            "STAGELENS_COLLECTOR_PORT": "4319",
            "STAGELENS_MAX_BODY": "1MiB",
            "STAGELENS_MAX_INFLATED": "2 MiB",
            "STAGELENS_QUEUE_BATCHES": "5",
            "STAGELENS_QUEUE_SIZE": "3MiB",
            "STAGELENS_RETENTION_10S": "2h",
            "STAGELENS_RETENTION_TRACES": "",
            "STAGELENS_DASHBOARD_URL": "https://stagelens.example",
        }
    )

    assert (config.database, config.host, config.port) == ("sqlite:////data/s.db", "0.0.0.0", 4319)
    assert (config.max_body_bytes, config.max_inflated_bytes, config.queue_bytes) == (2**20, 2**21, 3 * 2**20)
    assert (config.queue_batches, config.dashboard_url) == (5, "https://stagelens.example")
    assert (config.retention.seconds_10.total_seconds(), config.retention.traces.days) == (7200, 7)
    assert CollectorConfig.from_env({}) == CollectorConfig()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("STAGELENS_COLLECTOR_PORT", "http"),
        ("STAGELENS_COLLECTOR_PORT", "65536"),
        ("STAGELENS_COLLECTOR_PORT", "-1"),
        ("STAGELENS_COLLECTOR_PORT", "9" * 5000),
        ("STAGELENS_MAX_BODY", "much"),
        ("STAGELENS_MAX_INFLATED", "0MiB"),
        ("STAGELENS_QUEUE_BATCHES", "0"),
        ("STAGELENS_QUEUE_SIZE", "100"),
        ("STAGELENS_RETENTION_10S", "forever"),
        ("STAGELENS_RETENTION_1H", "0s"),
    ],
)
def test_a_wrong_setting_names_key_value_and_cure(key: str, value: str) -> None:
    """A setting that cannot be read stops the start with what to write instead."""
    with pytest.raises(ConfigError, match=rf"{key} is '{value[:20]}.*(write|must)"):
        CollectorConfig.from_env({key: value})
