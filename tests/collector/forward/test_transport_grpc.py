"""Forwarding over gRPC: the same content as over HTTP, and statuses by the OTLP specification."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from stagelens.collector.serve import Collector, CollectorConfig
from stagelens.core import names
from stagelens.store import Store
from stagelens.store.collectors import Backlog
from tests.collector.forward.otlp_grpc_server import Abort, Destination, serving
from tests.collector.forward.sending import counted, logs, metric_value, metrics, post, spans, waiting
from tests.support.certificate_authority import Authorities

Forwarding = Callable[..., Collector]
Until = Callable[[Callable[[], object]], None]
CODE = grpc.StatusCode


def to(destination: Destination, **more: Any) -> dict[str, Any]:
    """Return the entry of a destination in the file."""
    # A long timeout, so that a slow response is not a lost one, after which a body would be sent twice.
    return {"name": "backend", "endpoint": destination.url, "protocol": "grpc", "timeout": "60s", **more}


def test_all_signals_are_forwarded_as_protobuf(forwarding: Forwarding, bodies: Any, until: Until, store: Store) -> None:
    span = {"traceId": "0af7651916cd43dd8448eb211c80319c", "spanId": "b7ad6b7169203331", "name": "GET /"}
    export = {"resourceSpans": [{"scopeSpans": [{"spans": [{**span, "kind": 2, "startTimeUnixNano": "1"}]}]}]}
    headers = {"X-Scope-OrgID": "team-a", "Authorization": {"env": "AUTH"}}
    with serving() as found:
        collector = forwarding(to(found, headers=headers), env={"AUTH": "Bearer 0123456789"})
        for path, body in (("metrics", metrics(bodies)), ("traces", spans(1)), ("logs", logs("a" * 999))):
            assert post(collector, f"/v1/{path}", body).status_code == 200
        post(collector, "/v1/traces", json.dumps(export).encode(), "application/json")
        until(lambda: len(found.taken) == 4 and waiting(store) == Backlog())

        assert (found.bodies(), found.bodies("logs")) == ({metrics(bodies)}, {logs("a" * 999)})
        (other,) = found.bodies("traces") - {spans(1)}
        read = ExportTraceServiceRequest.FromString(other).resource_spans[0].scope_spans[0].spans[0]
        assert (read.trace_id.hex(), read.span_id.hex(), read.name) == tuple(span.values())
        assert {each["authorization"] for each in found.asked} == {"Bearer 0123456789"}
        assert {each["x-scope-orgid"] for each in found.asked} == {"team-a"}
        assert all(each["user-agent"].startswith("stagelens/") for each in found.asked)
    assert metric_value(collector, "up") == 1


def test_another_collector_counts_forwarded_messages_equally(
    forwarding: Forwarding, tmp_path: Path, bodies: Any, until: Until, store: Store
) -> None:
    other_store = Store.open(f"sqlite:///{tmp_path}/other.db")
    other = Collector(CollectorConfig(port=0, grpc_port=0), other_store)
    other.start()
    try:
        entry = {"name": "backend", "endpoint": f"http://127.0.0.1:{other.grpc_port}", "protocol": "grpc"}
        plain = {**entry, "name": "plain", "compression": "none", "signals": ["logs"]}
        collector = forwarding({**entry, "signals": ["metrics"]}, plain)
        for number in range(5):
            post(collector, "/v1/metrics", metrics(bodies, number), **{names.BATCH_HEADER: f"pod:{number}"})
        body = json.dumps(bodies.metrics(bodies.point((0.7,)))).encode()
        post(collector, "/v1/metrics", body, "application/json")
        post(collector, "/v1/logs", logs("a", "b"))
        until(lambda: metric_value(collector, "sent_total", signal="metrics") == 6)
        # The second collector declines logs and reports their number.
        until(lambda: metric_value(collector, "rejected_total", destination="plain") == 2)

        assert counted(other_store) == counted(store) == 6
    finally:
        other.stop()
        other_store.close()


def test_a_looped_body_is_refused(
    forwarding: Forwarding, bodies: Any, until: Until, store: Store, free_port: int
) -> None:
    entry = {"name": "backend", "endpoint": f"http://127.0.0.1:{free_port}", "protocol": "grpc"}
    collector = forwarding(entry, grpc_port=free_port)
    post(collector, "/v1/metrics", metrics(bodies), **{names.BATCH_HEADER: "pod:1"})
    until(lambda: metric_value(collector, "dropped_total", reason="returned") == 1)

    assert counted(store) == 1


def test_retryable_bodies_are_sent_again(forwarding: Forwarding, bodies: Any, until: Until) -> None:
    passing = [
        Abort(CODE.RESOURCE_EXHAUSTED, retry_seconds=0.01),
        Abort(CODE.UNAVAILABLE, retry_seconds=0.01),
        *map(Abort, (CODE.UNAVAILABLE, CODE.CANCELLED, CODE.DEADLINE_EXCEEDED, CODE.ABORTED, CODE.OUT_OF_RANGE)),
        *map(Abort, (CODE.DATA_LOSS, CODE.UNAUTHENTICATED, CODE.PERMISSION_DENIED)),
    ]
    with serving() as found:
        found.decide = lambda _message, number: passing[number - 1] if number <= len(passing) else None
        collector = forwarding(to(found))
        sent = {metrics(bodies, number) for number in range(3)}
        for body in sent:
            assert post(collector, "/v1/metrics", body).status_code == 200
        until(lambda: found.bodies() == sent)

        assert len(found.asked) >= len(passing) + len(sent)
        assert metric_value(collector, "dropped_total") == 0


def test_a_permanent_grpc_refusal_drops_counts_and_logs_the_body(
    forwarding: Forwarding, bodies: Any, until: Until, caplog: pytest.LogCaptureFixture
) -> None:
    codes = (CODE.INVALID_ARGUMENT, CODE.RESOURCE_EXHAUSTED, CODE.UNIMPLEMENTED, CODE.UNKNOWN, CODE.INTERNAL)
    codes += (CODE.NOT_FOUND, CODE.FAILED_PRECONDITION)
    with serving() as found:
        found.decide = lambda _message, number: (
            Abort(codes[number - 1], "none for key-0123456789") if number <= len(codes) else None
        )
        collector = forwarding(to(found, headers={"Api-Key": {"env": "KEY"}}), env={"KEY": "key-0123456789"})
        sent = [metrics(bodies, number) for number in range(len(codes) + 1)]
        for body in sent:
            assert post(collector, "/v1/metrics", body).status_code == 200
        until(
            lambda: (
                metric_value(collector, "dropped_total", reason="refused") == len(codes) and len(found.bodies()) == 1
            )
        )

    lines = [record.getMessage() for record in caplog.records if "did not accept" in record.getMessage()]
    assert lines == [
        "backend did not accept 1 bodies, which were dropped: the call ends with INVALID_ARGUMENT: none for …"
    ]
    assert "key-0123456789" not in caplog.text


def test_json_that_is_not_otlp_is_dropped_and_counted(
    forwarding: Forwarding, until: Until, caplog: pytest.LogCaptureFixture
) -> None:
    with serving() as found:
        collector = forwarding(to(found))
        bad = {"resourceLogs": [{"scopeLogs": [{"logRecords": [{"traceId": "no digits"}]}]}]}
        assert post(collector, "/v1/logs", json.dumps(bad).encode(), "application/json").status_code == 200
        post(collector, "/v1/logs", logs("a"))
        message = "it cannot be written as protobuf, which gRPC needs: traceId must be hexadecimal digits"
        # Both bodies are sent concurrently, and the valid one may arrive first.
        until(lambda: found.bodies("logs") == {logs("a")} and message in caplog.text)

        assert metric_value(collector, "dropped_total", reason="unreadable") == 1


def test_a_partial_success_of_a_destination_is_final(forwarding: Forwarding, bodies: Any, until: Until) -> None:
    partial = ExportMetricsServiceResponse()
    partial.partial_success.rejected_data_points, partial.partial_success.error_message = 2, "too old"
    with serving() as found:
        found.decide = lambda *_: partial.SerializeToString()
        collector = forwarding(to(found))
        post(collector, "/v1/metrics", metrics(bodies))
        until(lambda: metric_value(collector, "rejected_total") == 2)

        assert sum(found.taken.values()) == 1


def test_a_destination_receives_all_bodies_after_an_outage(
    forwarding: Forwarding, free_port: int, bodies: Any, until: Until, store: Store
) -> None:
    away = Destination(port=free_port)
    collector = forwarding(to(away))
    sent = {metrics(bodies, number) for number in range(30)}
    for body in sent:
        post(collector, "/v1/metrics", body)
    until(lambda: metric_value(collector, "retries_total") > 1)
    (state,) = collector.destinations.all()

    assert "UNAVAILABLE" in state.error
    assert waiting(store).bodies == 30
    with serving(away, free_port):
        until(lambda: away.bodies() == sent and waiting(store) == Backlog())


def test_a_destination_without_a_response_times_out(forwarding: Forwarding, bodies: Any, until: Until) -> None:
    held = threading.Event()
    with serving() as found:
        found.decide = lambda *_: Abort(CODE.UNAVAILABLE, str(held.wait(60)))
        collector = forwarding(to(found, timeout="1s"))
        post(collector, "/v1/metrics", metrics(bodies))
        until(lambda: metric_value(collector, "retries_total") > 0)
        (state,) = collector.destinations.all()
        collector.stop()
        held.set()

    assert "DEADLINE_EXCEEDED" in state.error


def test_a_name_resolving_to_a_metadata_address_is_not_called(
    forwarding: Forwarding, bodies: Any, until: Until, look_up: Callable[..., None]
) -> None:
    with serving() as found:
        look_up("backend.example", "127.0.0.1", "169.254.169.254")
        collector = forwarding(to(found, endpoint=f"http://backend.example:{found.port}"))
        post(collector, "/v1/metrics", metrics(bodies))
        until(lambda: collector.destinations.all() and collector.destinations.all()[0].state == "down")

        (state,) = collector.destinations.all()
        assert "of a cloud metadata service with credentials, which is not allowed" in state.error
        assert found.asked == []


def test_the_resolved_address_is_the_called_address(
    forwarding: Forwarding, bodies: Any, until: Until, look_up: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("grpc_proxy", "http://127.0.0.1:1")
    with serving() as found:
        look_up("backend.example", "::1", "127.0.0.1")
        collector = forwarding(to(found, endpoint=f"http://backend.example:{found.port}"))
        post(collector, "/v1/metrics", metrics(bodies))
        until(lambda: found.bodies() == {metrics(bodies)})

    assert metric_value(collector, "dropped_total") == 0


def test_an_unknown_host_name_is_resolved_again(
    forwarding: Forwarding, bodies: Any, until: Until, look_up: Callable[..., None]
) -> None:
    look_up("backend.example")
    with serving() as found:
        collector = forwarding(to(found, endpoint=f"http://backend.example:{found.port}"))
        post(collector, "/v1/metrics", metrics(bodies))
        until(lambda: collector.destinations.all() and collector.destinations.all()[0].state == "down")
        (state,) = collector.destinations.all()
        look_up("backend.example", "127.0.0.1")
        until(lambda: found.bodies() == {metrics(bodies)})

    assert "it cannot be reached" in state.error


def test_a_destination_is_verified_by_host_name_with_mutual_tls(
    forwarding: Forwarding,
    authority: Authorities,
    until: Until,
    look_up: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    servers, clients = authority("servers"), authority("clients")
    ours, theirs = clients.sign("stagelens"), servers.sign("backend")
    pair = (theirs.key.read_bytes(), theirs.certificate.read_bytes())
    credentials = grpc.ssl_server_credentials([pair], clients.file.read_bytes(), require_client_auth=True)
    files = {"ca_file": str(servers.file), "cert_file": str(ours.certificate), "key_file": str(ours.key)}
    look_up("evil.example", "127.0.0.1")
    with serving(credentials=credentials) as found:
        good = {"name": "good", "endpoint": f"https://localhost:{found.port}", "protocol": "grpc", "tls": files}
        others = {
            "evil": {"endpoint": f"https://evil.example:{found.port}"},
            "nobody": {"tls": {"ca_file": str(servers.file)}},
            "stranger": {"tls": files | {"ca_file": str(clients.file)}},
        }
        monkeypatch.setenv("SSL_CERT_FILE", str(servers.file))
        system = {**good, "name": "system", "tls": {key: files[key] for key in ("cert_file", "key_file")}}
        collector = forwarding(good, system, *(good | {"name": name} | entry for name, entry in others.items()))
        post(collector, "/v1/logs", logs("a"))
        until(lambda: len(collector.destinations.all()) == 5 and found.taken)
        until(lambda: all(each.state != "new" for each in collector.destinations.all()))
        states = {each.name: each.state for each in collector.destinations.all()}

        assert states == {"good": "up", "system": "up"} | dict.fromkeys(others, "down")
        assert found.taken == {("logs", logs("a")): 2}
