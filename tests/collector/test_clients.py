"""Real clients: the OpenTelemetry SDKs for Python and JavaScript, over all of their protocols."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
from collections.abc import Callable
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
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpMetrics
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpSpans
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import AggregationTemporality, MetricExporter, PeriodicExportingMetricReader
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation, View
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from stagelens.collector.otlp import responses
from stagelens.core import names
from stagelens.core.errors import StoreError

pytestmark = pytest.mark.stacks

Serve: TypeAlias = Callable[..., Any]

HERE = Path(__file__).parent / "javascript"
# Beside the virtual environment: `make test-stacks` installs there too, so that a checkout stays unchanged.
INSTALLED = Path(__file__).parents[2] / ".venv" / "javascript"
DELTA: dict[type, AggregationTemporality] = {Histogram: AggregationTemporality.DELTA}
PROTOCOLS = ["http", "grpc"]


def export_requests(exporter: MetricExporter, count: int) -> None:
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=1e9)
    view = View(instrument_name=names.REQUEST_DURATION, aggregation=ExponentialBucketHistogramAggregation())
    resource = Resource({names.SERVICE_NAME: "sdk", names.SERVICE_VERSION: "2", names.SERVICE_INSTANCE: "i"})
    provider = MeterProvider([reader], resource, views=[view])
    recorded = provider.get_meter("mine").create_histogram(names.REQUEST_DURATION, "s")
    for number in range(1, count + 1):
        recorded.record(number / 1000, {names.ROUTE: "/predict", names.DOMINANT: "forward"})
    provider.shutdown()


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
def test_the_python_sdk_can_send_spans(serve: Serve, protocol: str, caplog: pytest.LogCaptureFixture) -> None:
    served = serve(grpc_port=0)
    exporter = (
        GrpcSpans(grpc_address(served), insecure=True)
        if protocol == "grpc"
        else HttpSpans(f"{served.url}/v1/traces", compression=Compression.Gzip)
    )
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with provider.get_tracer("mine").start_as_current_span("work"):
        pass
    provider.shutdown()

    assert served.metric('stagelens_collector_requests_total{code="200",signal="traces"}') == 1
    assert "Failed to export" not in caplog.text


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_python_sdk_can_send_logs(serve: Serve, protocol: str, caplog: pytest.LogCaptureFixture) -> None:
    served = serve(grpc_port=0)
    exporter = (
        GrpcLogs(grpc_address(served), insecure=True) if protocol == "grpc" else HttpLogs(f"{served.url}/v1/logs")
    )
    provider = LoggerProvider()
    provider.add_log_record_processor(SimpleLogRecordProcessor(exporter))
    provider.get_logger("mine").emit(LogRecord(body="hello", severity_number=SeverityNumber.INFO))
    provider.shutdown()  # type: ignore[no-untyped-call] - it is not typed

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
