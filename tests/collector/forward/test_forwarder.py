"""Forwarding: acknowledged bodies arrive unchanged and at least once, whatever the destination responds."""

from __future__ import annotations

import json
import random
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceResponse,
)

from stagelens.collector.serve import Collector, CollectorConfig
from stagelens.core import names
from stagelens.store import Store
from stagelens.store.collectors import Backlog
from tests.collector.forward.otlp_server import Destination, FakeResponse, listening
from tests.collector.forward.sending import PROTOBUF, counted, logs, metric_value, metrics, post, spans, waiting
from tests.support.certificate_authority import Authorities

Forwarding = Callable[..., Collector]
Until = Callable[[Callable[[], object]], None]


def to(destination: Destination, **more: Any) -> dict[str, Any]:
    """Return the entry of a destination in the file."""
    # A long timeout, so that a slow response is not a lost one, after which a body would be sent twice.
    return {"name": "backend", "endpoint": destination.url, "timeout": "60s", **more}


def test_all_signals_are_forwarded_unchanged(
    forwarding: Forwarding, destination: Destination, bodies: Any, until: Until, store: Store
) -> None:
    collector = forwarding(to(destination))
    sent = metrics(bodies), json.dumps(bodies.metrics(bodies.point((0.7,)))).encode(), spans(1), logs("a", "b")
    by_grpc = metrics(bodies, 2)

    assert post(collector, "/v1/metrics", sent[0]).status_code == 200
    assert post(collector, "/v1/metrics", sent[1], "application/json").status_code == 200
    assert post(collector, "/v1/traces", sent[2]).status_code == 200
    response = post(collector, "/v1/logs", sent[3])
    with grpc.insecure_channel(f"127.0.0.1:{collector.grpc_port}") as channel:
        call = channel.unary_unary("/opentelemetry.proto.collector.metrics.v1.MetricsService/Export")
        call(by_grpc, timeout=60)
    until(lambda: len(destination.taken) == 5 and waiting(store) == Backlog())

    assert destination.bodies() == {sent[0], sent[1], by_grpc}
    assert (destination.bodies("/v1/traces"), destination.bodies("/v1/logs")) == ({sent[2]}, {sent[3]})
    assert destination.broken == []
    assert {each["content-encoding"] for each in destination.asked} == {"gzip"}
    # Forwarded logs are not declined.
    assert not ExportLogsServiceResponse.FromString(response.content).HasField("partial_success")
    until(lambda: metric_value(collector, "sent_total", signal="metrics") == 3)
    assert metric_value(collector, "sent_total", signal="logs") == 1
    assert metric_value(collector, "up") == 1


def test_a_partially_refused_body_is_forwarded_completely(
    forwarding: Forwarding, destination: Destination, bodies: Any, until: Until
) -> None:
    collector = forwarding(to(destination))
    old = bodies.metrics({**bodies.point(), "timeUnixNano": "1", "startTimeUnixNano": "0"})
    gauge = {
        "resourceMetrics": [{"scopeMetrics": [{"metrics": [{"name": "x", "gauge": {"dataPoints": [{"asInt": "1"}]}}]}]}]
    }

    partly = post(collector, "/v1/metrics", json.dumps(old).encode(), "application/json")
    assert int(partly.json()["partialSuccess"]["rejectedDataPoints"]) == 1
    assert post(collector, "/v1/metrics", json.dumps(gauge).encode(), "application/json").status_code == 200
    assert post(collector, "/v1/metrics", b"\xff\xff garbage").status_code == 400
    until(lambda: len(destination.taken) == 2)

    assert destination.bodies() == {json.dumps(old).encode(), json.dumps(gauge).encode()}


def test_a_retry_is_not_forwarded_again(
    forwarding: Forwarding, destination: Destination, bodies: Any, until: Until, store: Store
) -> None:
    collector = forwarding(to(destination))
    body = metrics(bodies)

    for _ in range(3):
        assert post(collector, "/v1/metrics", body, **{names.BATCH_HEADER: "pod:1"}).status_code == 200
    last = metrics(bodies, 5)
    assert post(collector, "/v1/metrics", last).status_code == 200
    # Sent concurrently, so that their order is undefined.
    until(lambda: destination.bodies() == {body, last} and waiting(store) == Backlog())

    assert destination.taken == {("/v1/metrics", body): 1, ("/v1/metrics", last): 1}


def test_a_destination_receives_all_bodies_after_an_outage(
    forwarding: Forwarding, free_port: int, bodies: Any, until: Until, store: Store
) -> None:
    away = Destination(port=free_port)
    collector = forwarding(to(away))
    sent = {metrics(bodies, number) for number in range(30)}

    assert [post(collector, "/v1/metrics", body).status_code for body in sent] == [200] * len(sent)
    until(lambda: metric_value(collector, "retries_total") > 1)
    host, port = collector.address
    ready = httpx.get(f"http://{host}:{port}/readyz", timeout=60)
    until(lambda: metric_value(collector, "waiting_bytes") > 0)

    assert ready.status_code == 200
    assert waiting(store).bodies == 30
    assert (metric_value(collector, "up"), metric_value(collector, "oldest_timestamp_seconds") > 1e9) == (0, True)
    with listening(free_port, away):
        until(lambda: away.bodies() == sent and waiting(store) == Backlog())
    until(lambda: metric_value(collector, "sent_total", signal="metrics") == 30)


def test_retryable_bodies_are_sent_again(
    forwarding: Forwarding, destination: Destination, bodies: Any, until: Until
) -> None:
    passing = (429, 502, 503, 504, 408, 401, 403, 307)
    headers = {"Retry-After": "0", "Location": "http://127.0.0.1:1/"}
    destination.decide = lambda _path, _body, number: (
        FakeResponse(passing[number - 1], headers=headers) if number <= len(passing) else None
    )
    collector = forwarding(to(destination))
    sent = {metrics(bodies, number) for number in range(3)}

    for body in sent:
        assert post(collector, "/v1/metrics", body).status_code == 200
    until(lambda: destination.bodies() == sent)

    assert set(destination.refused) == set(passing)
    assert metric_value(collector, "dropped_total") == 0


def test_a_refused_body_is_dropped_counted_and_logged(
    forwarding: Forwarding, destination: Destination, bodies: Any, until: Until, caplog: pytest.LogCaptureFixture
) -> None:
    # google.rpc.Status {code = 3, message = "no histograms for key-0123456789"}
    refusal = b"\x08\x03\x12\x20no histograms for key-0123456789"
    bad = {metrics(bodies, number) for number in range(3)}
    destination.decide = lambda _path, body, _number: FakeResponse(400, refusal) if body in bad else None
    env = {"KEY": "key-0123456789"}
    collector = forwarding(to(destination, headers={"Api-Key": {"env": "KEY"}}), env=env)
    good = metrics(bodies, 9)

    for body in (*bad, good):
        assert post(collector, "/v1/metrics", body).status_code == 200
    until(lambda: metric_value(collector, "dropped_total", reason="refused") == 3 and destination.bodies() == {good})

    lines = [record.getMessage() for record in caplog.records if "did not accept" in record.getMessage()]
    assert lines == ["backend did not accept 1 bodies, which were dropped: it returns 400: no histograms for …"]
    assert {each["api-key"] for each in destination.asked} == {"key-0123456789"}
    assert "key-0123456789" not in caplog.text


def test_a_partial_success_of_a_destination_is_final(
    forwarding: Forwarding, destination: Destination, bodies: Any, until: Until, caplog: pytest.LogCaptureFixture
) -> None:
    partial = ExportMetricsServiceResponse()
    partial.partial_success.rejected_data_points, partial.partial_success.error_message = 2, "too old"
    destination.decide = lambda *_: FakeResponse(200, partial.SerializeToString())
    collector = forwarding(to(destination))

    for number in range(2):
        assert post(collector, "/v1/metrics", metrics(bodies, number)).status_code == 200
    until(lambda: metric_value(collector, "rejected_total") == 4)

    assert sum(destination.taken.values()) == 2
    assert caplog.text.count("accepted only a part: 2 items refused, too old") == 1


def test_a_full_store_of_waiting_bodies_delays_senders_and_loses_nothing(
    forwarding: Forwarding, free_port: int, until: Until, store: Store
) -> None:
    away = Destination(port=free_port)
    collector = forwarding(to(away, most_waiting="1MiB"))
    responses = [(body, post(collector, "/v1/logs", body)) for body in (_noise(number) for number in range(8))]
    taken = {body for body, response in responses if response.status_code == 200}
    refused = [response for _, response in responses if response.status_code != 200]

    assert {response.status_code for response in refused} == {503}
    assert all(int(response.headers["retry-after"]) > 0 for response in refused)
    assert b"wait for delivery to backend, which does not accept them" in refused[0].content
    assert 0 < waiting(store).size_bytes <= 1024**2
    with listening(free_port, away):
        until(lambda: away.bodies("/v1/logs") == taken)
        again = {body for body, response in responses if response.status_code == 503}
        for body in again:
            until(lambda body=body: post(collector, "/v1/logs", body).status_code == 200)
        until(lambda: away.bodies("/v1/logs") == taken | again)


def test_the_drop_oldest_setting_drops_the_oldest_body(
    forwarding: Forwarding, free_port: int, until: Until, store: Store
) -> None:
    away = Destination(port=free_port)
    collector = forwarding(to(away, most_waiting="1MiB", when_full="drop_oldest"))
    sent = [_noise(number) for number in range(8)]

    assert {post(collector, "/v1/logs", body).status_code for body in sent} == {200}

    def has_room() -> bool:
        found = waiting(store)
        gone = metric_value(collector, "dropped_total", reason="full")
        return found.size_bytes <= 1024**2 and gone > 0 and found.bodies + gone == len(sent)

    until(has_room)
    left = waiting(store).bodies
    with listening(free_port, away):
        # A body that was being sent when it was dropped may also arrive.
        until(lambda: away.bodies("/v1/logs") >= set(sent[-left:]))


def _noise(number: int) -> bytes:
    """Return log records of about 300 kB that compress badly."""
    return logs(random.Random(number).randbytes(180_000).hex())


def test_each_destination_gets_its_signals(
    forwarding: Forwarding, destination: Destination, bodies: Any, until: Until
) -> None:
    with listening() as other:
        collector = forwarding(
            to(destination, signals=["traces"]),
            {"name": "other", "endpoint": other.url, "signals": ["metrics", "traces"]},
        )
        declined = post(collector, "/v1/logs", logs("a"))
        post(collector, "/v1/metrics", metrics(bodies))
        post(collector, "/v1/traces", spans(1))
        until(lambda: len(destination.taken) == 1 and len(other.taken) == 2)

    response = ExportLogsServiceResponse.FromString(declined.content)
    assert response.partial_success.rejected_log_records == 1
    assert "forward:" in response.partial_success.error_message
    assert destination.bodies("/v1/traces") == {spans(1)}


@pytest.mark.parametrize("compression", ["gzip", "zstd", "none"])
def test_bodies_are_compressed_as_configured(
    compression: str, forwarding: Forwarding, destination: Destination, bodies: Any, until: Until
) -> None:
    collector = forwarding(to(destination, compression=compression))
    body = metrics(bodies)
    post(collector, "/v1/metrics", body)
    until(lambda: destination.bodies() == {body})

    assert destination.asked[0].get("content-encoding", "none") == compression


def test_a_second_collector_counts_a_repeated_body_once(
    forwarding: Forwarding, tmp_path: Path, bodies: Any, until: Until, store: Store
) -> None:
    store_of_other = Store.open(f"sqlite:///{tmp_path}/other.db")
    other = Collector(CollectorConfig(port=0, grpc_port=0), store_of_other)
    other.start()
    try:
        host, port = other.address
        seen: set[bytes] = set()
        with listening() as between:
            # The first response to each body is lost.
            def relay(path: str, body: bytes, _number: int) -> FakeResponse | None:
                url, headers = f"http://{host}:{port}{path}", {"content-type": PROTOBUF}
                response = httpx.post(url, content=body, headers=headers, timeout=60)
                is_lost = body not in seen
                seen.add(body)
                return FakeResponse(503) if is_lost else FakeResponse(response.status_code, response.content)

            between.decide = relay
            collector = forwarding(to(between))
            for number in range(5):
                post(collector, "/v1/metrics", metrics(bodies, number), **{names.BATCH_HEADER: f"pod:{number}"})
            until(lambda: len(between.taken) == 5)

        assert counted(store_of_other) == counted(store) == 5
        assert between.refused[503] == 5
    finally:
        other.stop()
        store_of_other.close()


def test_a_looped_body_is_refused(
    forwarding: Forwarding, bodies: Any, until: Until, store: Store, free_port: int
) -> None:
    collector = forwarding({"name": "backend", "endpoint": f"http://127.0.0.1:{free_port}", "timeout": "60s"})
    host, port = collector.address
    with listening(free_port) as mirror:

        def relay(path: str, body: bytes, _number: int) -> FakeResponse | None:
            headers = {key: mirror.asked[-1][key] for key in ("content-type", "x-stagelens-via")}
            response = httpx.post(f"http://{host}:{port}{path}", content=body, headers=headers, timeout=60)
            return FakeResponse(response.status_code, response.content)

        mirror.decide = relay
        post(collector, "/v1/metrics", metrics(bodies), **{names.BATCH_HEADER: "pod:1"})
        until(lambda: metric_value(collector, "dropped_total", reason="returned") == 1)

        assert mirror.refused == {508: 1}
        assert counted(store) == 1


def test_a_path_over_the_limit_is_refused(forwarding: Forwarding, destination: Destination, bodies: Any) -> None:
    collector = forwarding(to(destination))
    long = ",".join(f"{number:016x}" for number in range(8))

    assert post(collector, "/v1/metrics", metrics(bodies, 1), **{names.VIA_HEADER: long}).status_code == 508
    assert post(collector, "/v1/metrics", metrics(bodies, 2), **{names.VIA_HEADER: "nonsense, a"}).status_code == 200


def test_two_collectors_over_one_store_share_the_work(
    forwarding: Forwarding, destination: Destination, bodies: Any, until: Until, store: Store
) -> None:
    first = forwarding(to(destination))
    body = metrics(bodies)
    post(first, "/v1/metrics", body)
    until(lambda: destination.bodies() == {body})
    second = forwarding(to(destination))
    sent = {metrics(bodies, number) for number in range(1, 11)}
    for number, each in enumerate(sent):
        post((first, second)[number % 2], "/v1/metrics", each)
    until(lambda: destination.bodies() == sent | {body} and waiting(store) == Backlog())
    by_first, by_second = (metric_value(each, "sent_total", signal="metrics") for each in (first, second))
    first.stop()
    last = metrics(bodies, 99)
    post(second, "/v1/metrics", last)
    until(lambda: last in destination.bodies())

    assert (by_first, by_second) == (11, 0)
    assert set(destination.taken.values()) == {1}


def test_a_destination_at_a_metadata_address_is_not_called(
    forwarding: Forwarding, bodies: Any, until: Until, look_up: Callable[..., None]
) -> None:
    look_up("backend.example", "169.254.169.254")
    collector = forwarding({"name": "backend", "endpoint": "http://backend.example"})
    post(collector, "/v1/metrics", metrics(bodies))
    until(lambda: metric_value(collector, "retries_total") > 0)

    (state,) = collector.destinations.all()
    assert "of a cloud metadata service with credentials, which is not allowed" in state.error


def test_a_destination_is_verified_by_host_name_with_mutual_tls(
    forwarding: Forwarding,
    authority: Authorities,
    bodies: Any,
    until: Until,
    look_up: Callable[..., None],
) -> None:
    servers, clients = authority("servers"), authority("clients")
    ours, theirs = clients.sign("stagelens"), servers.sign("backend")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=clients.file)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(theirs.certificate, theirs.key)
    files = {"ca_file": str(servers.file), "cert_file": str(ours.certificate), "key_file": str(ours.key)}
    look_up("evil.example", "127.0.0.1")
    with listening(tls=context) as found:
        good = {"name": "good", "endpoint": f"https://localhost:{found.port}", "tls": files}
        evil = {"name": "backend", "endpoint": f"https://evil.example:{found.port}", "tls": files}
        nobody = {"name": "nobody", "endpoint": good["endpoint"], "tls": {"ca_file": str(servers.file)}}
        collector = forwarding(good, evil, nobody)
        body = metrics(bodies)
        post(collector, "/v1/metrics", body)
        states = {"good": "up", "backend": "down", "nobody": "down"}
        until(lambda: {each.name: each.state for each in collector.destinations.all()} == states and found.taken)
        (evils,) = (each for each in collector.destinations.all() if each.name == "backend")
        assert "certificate is not valid for 'evil.example'" in evils.error
        assert found.taken == {("/v1/metrics", body): 1}
