"""Writer: responses while the store fails, and no loss of acknowledged batches."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from stagelens.collector.ingest import pipeline, writer
from stagelens.core.errors import StoreError


@pytest.fixture
def body(bodies: Any) -> bytes:
    return json.dumps(bodies.metrics(bodies.point())).encode()


@pytest.mark.parametrize(("limit", "most"), [("queue_batches", 1), ("queue_bytes", 1000)])
def test_a_full_queue_requests_a_retry(serve_slow: Any, slow: Any, body: bytes, limit: str, most: int) -> None:
    assert 500 < len(body) < 1000
    served = serve_slow(**{limit: most})
    slow.open.clear()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(served.post, "/v1/metrics", body, x_stagelens_batch="a:1")
        assert slow.entered.acquire(timeout=60)
        refused = served.post("/v1/metrics", body, x_stagelens_batch="a:2")
        slow.open.set()
        accepted = waiting.result().status_code

    assert (refused.status_code, refused.headers["retry-after"], refused.json()["code"]) == (429, "1", 8)
    assert (accepted, served.counted()) == (200, 1)


def test_a_transaction_of_small_batches_is_bounded(
    serve_slow: Any, slow: Any, monkeypatch: pytest.MonkeyPatch, until: Callable[..., None]
) -> None:
    monkeypatch.setattr(writer, "MAX_ROWS_A_COMMIT", 2)
    served = serve_slow()
    slow.open.clear()
    with ThreadPoolExecutor(5) as pool:
        futures = [pool.submit(served.post, "/v1/metrics", {}, x_stagelens_batch=f"a:{n}") for n in range(5)]
        until(lambda: served.metric("stagelens_collector_queue_batches") == 5)
        slow.open.set()
        codes = {future.result().status_code for future in futures}

    assert codes == {200}
    assert served.metric("stagelens_collector_commit_seconds_count") == 3


def test_batches_a_failing_store_refused_are_written_later(
    serve_slow: Any, slow: Any, body: bytes, until: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    served = serve_slow()
    slow.failure = StoreError("cannot write to stagelens.db: the disk is full")
    responses = [served.post("/v1/metrics", body, x_stagelens_batch="a:1") for _ in range(2)]
    sick = served.client.get("/healthz")
    slow.failure = None
    until(lambda: served.counted() == 1)
    until(lambda: served.client.get("/healthz").status_code == 200)
    again = served.post("/v1/metrics", body, x_stagelens_batch="a:1")

    assert [(response.status_code, response.headers["retry-after"]) for response in responses] == [(503, "5")] * 2
    assert "the disk is full" in responses[0].json()["message"]
    assert (sick.status_code, "the disk is full" in sick.text) == (503, True)
    assert (again.status_code, served.counted()) == (200, 1)
    logged = [record.message for record in caplog.records if "committing to the store" in record.message]
    assert len(logged) == 2


def test_a_slow_commit_gets_a_response_within_the_sender_timeout(
    serve_slow: Any, slow: Any, body: bytes, until: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    served = serve_slow()
    slow.open.clear()
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "MAX_COMMIT_SECONDS", 0.1)
        response = served.post("/v1/metrics", body, x_stagelens_batch="a:1")
    slow.open.set()
    until(lambda: served.counted() == 1)
    again = served.post("/v1/metrics", body, x_stagelens_batch="a:1")

    assert (response.status_code, "the batch stays queued" in response.json()["message"]) == (503, True)
    assert (again.status_code, served.counted()) == (200, 1)


def test_a_full_buffer_of_a_failing_store_is_a_503(serve_slow: Any, slow: Any, body: bytes) -> None:
    served = serve_slow(queue_batches=1)
    slow.failure = StoreError("locked")
    served.post("/v1/metrics", body, x_stagelens_batch="a:1")
    response = served.post("/v1/metrics", body, x_stagelens_batch="a:2")
    slow.failure = None

    assert (response.status_code, "the queue is full" in response.json()["message"]) == (503, True)


def test_a_batch_that_fails_the_store_is_dropped_alone(
    serve_slow: Any, slow: Any, body: bytes, until: Callable[..., None]
) -> None:
    served = serve_slow()
    slow.broken_by = "metrics:bad"
    slow.open.clear()
    with ThreadPoolExecutor(4) as pool:
        sent = {
            name: pool.submit(served.post, "/v1/metrics", body, x_stagelens_batch=name)
            for name in ("a", "bad", "b", "c")
        }
        until(lambda: served.metric("stagelens_collector_queue_batches") == 4)
        slow.open.set()
        codes = {name: future.result().status_code for name, future in sent.items()}

    assert codes == {"a": 200, "bad": 500, "b": 200, "c": 200}
    assert served.counted() == 3


def test_maintenance_continues_after_errors(
    serve_slow: Any, slow: Any, until: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    slow.maintenance_failure = StoreError("read-only")
    served = serve_slow()
    until(lambda: served.metric("stagelens_collector_maintenance_failures_total") >= 3)
    sick = served.client.get("/healthz")
    unhealthy = served.metric("stagelens_collector_healthy")
    slow.maintenance_failure = None
    until(lambda: served.client.get("/healthz").status_code == 200)
    until(lambda: "maintaining the store works again" in caplog.text)
    until(lambda: served.metric("stagelens_collector_store_bytes") > 0)

    assert (sick.status_code, "read-only" in sick.text, unhealthy) == (503, True, 0)
    assert caplog.text.count("maintaining the store") == 2
    assert served.metric("stagelens_collector_store_budget_bytes") == 0
    assert served.metric("stagelens_collector_store_folds") == 0
