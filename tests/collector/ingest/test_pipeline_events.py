"""Events sent by pipelines: over HTTP and with the command line."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest

from stagelens.collector.ingest import pipeline
from stagelens.core.errors import StagelensError, StoreError
from stagelens.instrumentors import event as sending


def stored_events(served: Any) -> list[dict[str, Any]]:
    """Return the events of the last hours."""
    now = datetime.now(UTC)
    found = served.store.read.events(now - timedelta(hours=5), now + timedelta(minutes=1))
    return found.drop(columns="at").to_dict("records")


def test_an_acknowledged_event_is_stored(served: Any) -> None:
    response = served.post("/v1/events", {"text": "v2 is out", "service": "shop", "kind": "deploy", "key": "v2"})

    assert (response.status_code, response.headers["content-type"], response.json()) == (200, "application/json", {})
    assert stored_events(served) == [
        {"service": "shop", "kind": "deploy", "key": "v2", "text": "v2 is out", "link": "", "environment": ""}
    ]
    assert served.metric('stagelens_collector_requests_total{code="200",signal="events"}') == 1


def test_a_gzipped_event_is_stored(served: Any) -> None:
    response = served.post("/v1/events", gzip.compress(b'{"text": "x"}'), content_encoding="gzip")

    assert (response.status_code, len(stored_events(served))) == (200, 1)


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


def test_a_wrong_method_gets_the_right_one(served: Any) -> None:
    response = served.client.get("/v1/events")

    assert (response.status_code, response.headers["allow"]) == (405, "POST")


def test_a_failing_store_requests_a_retry(serve_slow: Any, slow: Any) -> None:
    slow.failure = StoreError("the disk is full")
    response = serve_slow().post("/v1/events", {"text": "x"})

    assert (response.status_code, response.headers["retry-after"]) == (503, "5")
    assert "the disk is full" in response.json()["message"]


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


def test_a_store_without_a_response_requests_a_retry(
    serve_slow: Any, slow: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "MAX_COMMIT_SECONDS", 0.05)
    served = serve_slow()
    slow.open.clear()
    response = served.post("/v1/events", {"text": "x"})
    slow.open.set()

    assert response.status_code == 503
    assert "not committed within 0.05 s; send it again" in response.json()["message"]


def test_the_event_command_sends_an_event(served: Any) -> None:
    words = ["event", "v2 is out", "--service", "shop", "--kind", "deploy", "--key", "v2", "--link", "https://ci/7"]
    done = subprocess.run(
        [sys.executable, "-m", "stagelens", *words],
        env={"OTEL_EXPORTER_OTLP_ENDPOINT": served.url, "PATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert stored_events(served) == [
        {
            "service": "shop",
            "kind": "deploy",
            "key": "v2",
            "text": "v2 is out",
            "link": "https://ci/7",
            "environment": "",
        }
    ]


def test_the_event_command_prints_the_refusal(served: Any) -> None:
    with pytest.raises(StagelensError, match=r"rejected the event \(400\): kind is 'party'; write one of"):
        sending.send_event({"text": "x", "kind": "party"}, {"OTEL_EXPORTER_OTLP_ENDPOINT": served.url})


def test_the_event_command_reports_a_missing_collector() -> None:
    with pytest.raises(StagelensError, match=r"no collector at http://127\.0\.0\.1:1 .*[\s\S]*stagelens up"):
        sending.send_event({"text": "x"}, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"})


def test_an_event_is_sent_with_the_headers_of_exports(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, str]] = []
    real = sending.post

    def noted(url: str, body: bytes, headers: dict[str, str], *more: Any, **options: Any) -> Any:
        seen.append(headers)
        return real(url, body, headers, *more, **options)

    monkeypatch.setattr(sending, "post", noted)
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": served.url, "OTEL_EXPORTER_OTLP_HEADERS": "x-api-key=abc"}
    sending.send_event({"text": "x"}, env)

    assert seen == [{"x-api-key": "abc", "Content-Type": "application/json"}]
    assert json.dumps(stored_events(served)[0]["text"]) == '"x"'


def test_an_event_uses_the_proxy_of_the_environment(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    real = sending.post

    def noted(url: str, *arguments: Any, proxy: str) -> Any:
        seen.append(proxy)
        return real(url, *arguments)

    monkeypatch.setattr(sending, "post", noted)
    monkeypatch.setenv("http_proxy", "proxy.example:3128")
    monkeypatch.setenv("no_proxy", "")
    sending.send_event({"text": "x"}, {"OTEL_EXPORTER_OTLP_ENDPOINT": served.url})
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    sending.send_event({"text": "x"}, {"OTEL_EXPORTER_OTLP_ENDPOINT": served.url})

    assert seen == ["http://proxy.example:3128", ""]


class Elsewhere(BaseHTTPRequestHandler):
    """Server that redirects to another page, like a proxy with a login."""

    asked: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        """Send a redirect."""
        self.asked.append(f"POST {self.path}")
        self.send_response(302)
        self.send_header("Location", "/login")
        self.end_headers()

    def do_GET(self) -> None:
        """Send a page."""
        self.asked.append(f"GET {self.path}")
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name http.server gives it
        """Log nothing."""


def test_a_redirected_event_is_not_sent() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        env = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{server.server_port}"}
        try:
            with pytest.raises(
                StagelensError, match=r"rejected the event \(302\): .*check that it is a Stagelens collector"
            ):
                sending.send_event({"text": "x"}, env)
        finally:
            server.shutdown()
            thread.join()

    assert Elsewhere.asked == ["POST /v1/events"]
