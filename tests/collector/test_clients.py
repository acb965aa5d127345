"""Real clients: the OpenTelemetry SDKs for Python and JavaScript, and Rotel, over all of their protocols."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeAlias

import grpc
import pytest
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter as GrpcLogs
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcMetrics
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcSpans
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter as HttpLogs
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpMetrics
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpSpans
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor

from stagelens.collector.otlp import responses
from stagelens.collector.traces.columns import decode_rows
from stagelens.core import names
from stagelens.core.errors import StoreError
from stagelens.store import Store, inbox
from stagelens.store.engines import database
from tests.collector.metrics import DELTA, export_requests
from tests.support.ports import free_port

pytestmark = pytest.mark.stacks

Serve: TypeAlias = Callable[..., Any]

HERE = Path(__file__).parent / "javascript"
# Beside the virtual environment: `make test-stacks` installs there too, so that a checkout stays unchanged.
INSTALLED = Path(__file__).parents[2] / ".venv" / "javascript"
PROTOCOLS = ["http", "grpc"]


def grpc_address(served: Any) -> str:
    return f"http://127.0.0.1:{served.collector.grpc_port}"


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
def test_the_python_sdk_can_send_our_metrics_over_grpc(serve: Serve, compression: grpc.Compression) -> None:
    served = serve(grpc_port=0)
    export_requests(
        GrpcMetrics(grpc_address(served), insecure=True, compression=compression, preferred_temporality=DELTA), 100
    )

    assert served.counted() == 100


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_python_sdk_can_send_spans_and_logs(serve: Serve, protocol: str, caplog: pytest.LogCaptureFixture) -> None:
    served = serve(grpc_port=0)
    spans, logs = (
        (GrpcSpans(grpc_address(served), insecure=True), GrpcLogs(grpc_address(served), insecure=True))
        if protocol == "grpc"
        else (HttpSpans(f"{served.url}/v1/traces", compression=Compression.Gzip), HttpLogs(f"{served.url}/v1/logs"))
    )
    tracers, loggers = TracerProvider(), LoggerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    with tracers.get_tracer("mine").start_as_current_span("work"):
        pass
    tracers.shutdown()
    loggers.add_log_record_processor(SimpleLogRecordProcessor(logs))
    loggers.get_logger("mine").emit(LogRecord(body="hello", severity_number=SeverityNumber.INFO))
    loggers.shutdown()  # type: ignore[no-untyped-call] - it is not typed

    assert served.metric('stagelens_collector_requests_total{code="200",signal="traces"}') == 1
    assert served.metric('stagelens_collector_requests_total{code="200",signal="logs"}') == 1
    assert served.metric('stagelens_collector_ignored_total{signal="logs"}') == 1
    assert "Failed to export" not in caplog.text


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_python_sdk_retries_after_the_given_delay(
    serve_slow: Serve,
    slow: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    protocol: str,
) -> None:
    served = serve_slow(grpc_port=0)
    # Nearly twice the first delay of the SDK.
    monkeypatch.setitem(responses.RETRY_AFTER, HTTPStatus.SERVICE_UNAVAILABLE, 2)

    class Healing(logging.Handler):
        """Log handler that repairs the store when the SDK logs that it waits."""

        def emit(self, record: logging.LogRecord) -> None:
            if "retrying in" in record.getMessage():
                slow.failure = None

    healing = Healing()
    logging.getLogger("opentelemetry").addHandler(healing)
    slow.failure = StoreError("the disk is full")
    try:
        with caplog.at_level(logging.WARNING):
            export_requests(
                GrpcMetrics(grpc_address(served), insecure=True, timeout=60, preferred_temporality=DELTA)
                if protocol == "grpc"
                else HttpMetrics(f"{served.url}/v1/metrics", timeout=60, preferred_temporality=DELTA),
                10,
            )
    finally:
        logging.getLogger("opentelemetry").removeHandler(healing)

    assert served.counted() == 10
    assert served.metric('stagelens_collector_requests_total{code="503",signal="metrics"}') == 1
    assert served.metric('stagelens_collector_requests_total{code="200",signal="metrics"}') == 1
    assert "retrying in 2.00s" in caplog.text


@pytest.fixture(scope="module")
def javascript() -> dict[str, str]:
    if shutil.which("node") is None or shutil.which("npm") is None:
        message = "no Node on this machine; `apt-get install nodejs npm`, or `make test-stacks`, which does"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    lock, stamp = HERE / "package-lock.json", INSTALLED / "node_modules" / "of-package-lock.json"
    if not stamp.exists() or stamp.read_bytes() != lock.read_bytes():
        INSTALLED.mkdir(parents=True, exist_ok=True)
        for file in (HERE / "package.json", lock):
            shutil.copy(file, INSTALLED)
        install = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        subprocess.run(install, cwd=INSTALLED, check=True, timeout=200)
        shutil.copy(lock, stamp)
    return os.environ | {"NODE_PATH": str(INSTALLED / "node_modules")}


@pytest.mark.parametrize("protocol", ["http/json", "http/protobuf", "grpc"])
def test_the_javascript_sdk_can_send_spans_and_metrics(serve: Serve, javascript: dict[str, str], protocol: str) -> None:
    served = serve(grpc_port=0)
    endpoint = grpc_address(served) if protocol == "grpc" else served.url
    command = ["node", str(HERE / "client.js"), protocol, endpoint, names.REQUEST_DURATION]
    ran = subprocess.run(command, env=javascript, capture_output=True, text=True, check=True, timeout=60)
    exports = [json.loads(line) for line in ran.stdout.splitlines()]

    assert exports == [{"signal": signal, "code": 0, "error": ""} for signal in ("traces", "metrics")]
    assert served.counted() == 50
    assert served.metric('stagelens_collector_requests_total{code="200",signal="traces"}') == 1


SPANS = 1000


def program() -> Path:
    found = importlib.util.find_spec("rotel")
    if found is None or found.origin is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("no rotel; `make test-stacks` installs it")
    return Path(found.origin).with_name("rotel-agent")


@contextmanager
def rotel(endpoint: str, protocol: str, compression: str) -> Generator[str]:
    http, grpc = free_port(), free_port()
    command = [
        str(program()), "start", "--exporter", "otlp", "--otlp-exporter-endpoint", endpoint, "--otlp-exporter-protocol",
        protocol, "--otlp-exporter-compression", compression, "--otlp-http-endpoint", f"127.0.0.1:{http}",
        "--otlp-grpc-endpoint", f"127.0.0.1:{grpc}",
    ]  # fmt: skip
    process = subprocess.Popen(command)
    try:
        yield f"http://127.0.0.1:{http}"
    finally:
        process.terminate()
        process.wait(60)


def is_open(url: str) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))):
        return True
    return False


def waiting_spans(store: Store) -> int:
    with database.reading(store.engine) as connection:
        found = inbox.read_delivery(connection, 0, 2**30)
        return sum(len(decode_rows(parcel.spans)) for parcel in found.load(found.parcels))


@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_rotel_can_send_spans_and_metrics(
    serve: Callable[..., Any], until: Callable[..., None], protocol: str, compression: str
) -> None:
    served = serve(grpc_port=0)
    endpoint = served.url if protocol == "http" else f"http://127.0.0.1:{served.collector.grpc_port}"
    with rotel(endpoint, protocol, compression) as url:
        until(lambda: is_open(url))
        export_requests(OTLPMetricExporter(f"{url}/v1/metrics", preferred_temporality=DELTA), 100)
        provider = TracerProvider(resource=Resource({names.SERVICE_NAME: "shop"}))
        exporter = OTLPSpanExporter(f"{url}/v1/traces")
        provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=2 * SPANS))
        for _ in range(SPANS):
            provider.get_tracer("shop").start_span("work").end()
        provider.shutdown()
        until(lambda: served.counted() == 100)
        until(lambda: waiting_spans(served.store) == SPANS)
