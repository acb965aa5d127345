"""Rotel, a collector written in Rust from PyPI, as a sender."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from stagelens.collector.traces.columns import decode_rows
from stagelens.core import names
from stagelens.store import Store, inbox
from stagelens.store.engines import database
from tests.collector.test_clients import DELTA, export_requests
from tests.support.ports import free_port

pytestmark = pytest.mark.stacks
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
