"""Events sent by pipelines: over HTTP and with the command line."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from stagelens.collector.ingest import pipeline
from stagelens.core.errors import StagelensError, StoreError
from stagelens.instrumentors import event as sending
from tests.support.http_server import http_server

EVENT = {"text": "v2 is out", "service": "shop", "kind": "deploy", "key": "v2"}


def stored_events(served: Any) -> list[dict[str, Any]]:
    now = datetime.now(UTC)
    events = served.store.read.events(now - timedelta(hours=5), now + timedelta(minutes=1))
    return events.drop(columns="at").to_dict("records")


def test_an_acknowledged_event_is_stored(served: Any) -> None:
    response = served.post("/v1/events", gzip.compress(json.dumps(EVENT).encode()), content_encoding="gzip")

    assert (response.status_code, response.headers["content-type"], response.json()) == (200, "application/json", {})
    assert stored_events(served) == [EVENT | {"link": "", "environment": ""}]
    assert served.metric('stagelens_collector_requests_total{code="200",signal="events"}') == 1
    wrong = served.client.get("/v1/events")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize(
    ("body", "headers", "status", "reason"),
    [
        (b"garbage", {}, 400, "not valid JSON"),
        (b'{"text": ""}', {}, 400, "text is empty"),
        (gzip.compress(b"[[]," * 100_000), {"content_encoding": "gzip"}, 400, "32768 is the limit"),
        (b"{}", {"content_type": "text/plain"}, 415, "send application/json"),
        (b"{}", {"content_encoding": "br"}, 415, "send gzip, zstd or identity"),
        (b" " * 5000, {}, 413, "larger than 4096 bytes"),
    ],
)
def test_an_invalid_event_is_refused_with_a_reason(
    serve: Any, body: bytes, headers: dict[str, str], status: int, reason: str
) -> None:
    served = serve(max_body_bytes=4096)
    response = served.post("/v1/events", body, **headers)

    assert (response.status_code, stored_events(served)) == (status, [])
    assert reason in response.json()["message"]


def test_a_store_that_fails_or_waits_requests_a_retry(
    serve_slow: Any, slow: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = serve_slow()
    slow.failure = StoreError("the disk is full")
    failed = served.post("/v1/events", {"text": "x"})
    slow.failure = None
    monkeypatch.setattr(pipeline, "MAX_COMMIT_SECONDS", 0.05)
    slow.open.clear()
    waited = served.post("/v1/events", {"text": "x"})
    slow.open.set()

    assert (failed.status_code, failed.headers["retry-after"], waited.status_code) == (503, "5", 503)
    assert "the disk is full" in failed.json()["message"]
    assert "not committed within 0.05 s; send it again" in waited.json()["message"]


def test_waiting_events_do_not_delay_exports(serve_slow: Any, slow: Any) -> None:
    served = serve_slow()
    slow.open.clear()
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(served.post, "/v1/events", {"text": f"{number}"}) for number in range(3)]
        assert all(slow.entered.acquire(timeout=60) for _ in waiting)
        meanwhile = served.post("/v1/metrics", {})
        slow.open.set()

    assert meanwhile.status_code == 200
    assert [each.result().status_code for each in waiting] == [200, 200, 200]


def test_the_event_command_sends_an_event(served: Any) -> None:
    words = ["event", "v2 is out", "--service", "shop", "--kind", "deploy", "--key", "v2", "--link", "https://ci/7"]
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": served.url, "PATH": ""}
    command = [sys.executable, "-m", "stagelens", *words]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert stored_events(served) == [EVENT | {"link": "https://ci/7", "environment": ""}]


def test_the_event_command_reports_why_an_event_is_not_stored(served: Any) -> None:
    with http_server(lambda _: (302, {"Location": "/login"}, b"")) as login:
        for url, kind, message in (
            (served.url, "party", r"rejected the event \(400\): kind is 'party'; write one of"),
            ("http://127.0.0.1:1", "deploy", r"no collector at http://127\.0\.0\.1:1 .*[\s\S]*stagelens up"),
            (login.url, "deploy", r"rejected the event \(302\): .*check that it is a Stagelens collector"),
        ):
            with pytest.raises(StagelensError, match=message):
                sending.send_event(EVENT | {"kind": kind}, {"OTEL_EXPORTER_OTLP_ENDPOINT": url})

    assert [(request.method, request.path) for request in login.requests] == [("POST", "/v1/events")]


def test_an_event_uses_the_headers_of_exports_and_the_proxy_of_the_environment(
    served: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[dict[str, str], str]] = []
    post = sending.post

    def noted(url: str, body: bytes, headers: dict[str, str], *more: Any, proxy: str) -> Any:
        seen.append((headers, proxy))
        return post(url, body, headers, *more)

    monkeypatch.setattr(sending, "post", noted)
    monkeypatch.setenv("http_proxy", "proxy.example:3128")
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": served.url, "OTEL_EXPORTER_OTLP_HEADERS": "x-api-key=abc"}
    for excluded in ("", "127.0.0.1"):
        monkeypatch.setenv("no_proxy", excluded)
        sending.send_event({"text": "x"}, env)

    headers = {"x-api-key": "abc", "Content-Type": "application/json"}
    assert seen == [(headers, "http://proxy.example:3128"), (headers, "")]
    assert stored_events(served)[0]["text"] == "x"


def test_exports_of_different_signals_are_validated_apart(
    serve: Any, bodies: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds: list[set[type]] = []
    validate = pipeline.validate_exports

    def noted(exports: Any, *more: Any) -> Any:
        kinds.append({type(export.content) for export in exports})
        return validate(exports, *more)

    monkeypatch.setattr(pipeline, "validate_exports", noted)
    served = serve()
    sent = {"/v1/metrics": bodies.metrics(bodies.point()), "/v1/traces": bodies.spans(*bodies.trace({"forward": 5}))}
    with ThreadPoolExecutor(16) as pool:
        codes = [response.status_code for response in pool.map(served.post, [*sent] * 32, [*sent.values()] * 32)]

    assert set(codes) == {200}
    assert {len(each) for each in kinds} == {1}
