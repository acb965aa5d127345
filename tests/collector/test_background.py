"""Background thread for spans: counts, refusals, and behaviour while the store fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from stagelens.collector.background import AGGREGATION_PART, SpanAggregator
from stagelens.collector.config import CollectorConfig
from stagelens.collector.ingest.writer import FullError
from stagelens.collector.self_metrics import SelfMetrics
from stagelens.collector.traces.columns import ROW, Spans, encode_spans
from stagelens.collector.traces.inbox import InboxLimits
from stagelens.core.errors import StoreError
from stagelens.store import Batch, Store
from stagelens.store.inbox import Aggregation
from tests.collector.traces.otlp import NOON_NS, export, span


def spans(now_ns: int) -> dict[str, Any]:
    ago = (now_ns - NOON_NS) / 1e6 - 5000
    root = span("GET /x", kind="server", id=1, start_ms=ago, end_ms=ago + 2000)
    values = {"db.system.name": "postgresql"}
    call = span("SELECT", kind="client", id=2, parent=1, start_ms=ago, end_ms=ago + 1000, values=values)
    return export(root, call, scope="opentelemetry.instrumentation.asgi")


def folding(
    store: Store, max_waiting_bytes: int = 1000, limits: InboxLimits | None = None, metrics: SelfMetrics | None = None
) -> SpanAggregator:
    return SpanAggregator(
        store,
        interval_seconds=60,
        max_waiting_bytes=max_waiting_bytes,
        metrics=metrics or SelfMetrics(),
        limits=limits,
    )


@pytest.mark.parametrize("traces", ["", "all"])
def test_foreign_spans_become_requests_with_stages(
    serve: Callable[..., Any], ahead: Any, bodies: Any, traces: str
) -> None:
    served = serve(keeps_all_traces=CollectorConfig.from_env({"STAGELENS_TRACES": traces}).keeps_all_traces)
    response = served.post("/v1/traces", spans(bodies.now_ns))
    waiting = served.store.waiting()
    agents = served.store.read.state().instances
    ahead.seconds = 20
    served.collector.stop()
    trace = served.store.read.trace(f"{7:032x}")
    text = served.collector.metrics.exposition().decode()

    assert (response.status_code, response.json()) == (200, {})
    assert waiting.parcels == 1
    assert agents == 0
    assert served.store.waiting().parcels == 0
    assert served.counted() == 1
    assert trace.stages_ns == {"dependency": 10**9, "overhead": 10**9}
    assert (trace.because == "forced") == (traces == "all")
    assert 'stagelens_collector_spans_total{outcome="folded"} 2.0' in text
    assert 'stagelens_collector_span_requests_total{by="spans"} 1.0' in text
    assert "stagelens_collector_spans_waiting_bytes 0.0" in text


def test_spans_are_refused_while_too_many_wait(serve: Callable[..., Any], bodies: Any) -> None:
    served = serve(spans_waiting_bytes=10)
    refused = served.post("/v1/traces", spans(bodies.now_ns))
    taken = served.post("/v1/metrics", bodies.metrics(bodies.point()))

    assert (refused.status_code, taken.status_code) == (429, 200)
    assert "STAGELENS_SPANS_WAITING" in refused.json()["message"]
    assert refused.headers["retry-after"]
    assert served.store.waiting().parcels == 0


def test_capacity_is_freed_after_processing(store: Store, ahead: Any) -> None:
    thread = folding(store, 100)
    store.write([Batch("another's", spans=bytes(80))])
    thread.run_once()
    with pytest.raises(FullError):
        thread.admit(30)
    thread.admit(20)
    with pytest.raises(FullError):
        thread.admit(1)
    ahead.seconds = 4000
    thread.run_once()
    thread.admit(100)


def test_capacity_is_freed_during_a_backlog(store: Store, ahead: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    parcel = encode_spans(Spans(np.zeros(0, ROW), [], []))
    thread = folding(store, 3 * len(parcel), InboxLimits(due_bytes=0))
    store.write([Batch(name, spans=parcel) for name in "abc"])
    thread.admit(3 * len(parcel))
    had_room: list[bool] = []
    aggregate = store.aggregate

    def aggregated(work: Aggregation, max_bytes: int) -> bool:
        try:
            thread.admit(len(parcel))
        except FullError:
            had_room.append(False)
        else:
            had_room.append(True)
        return aggregate(work, max_bytes)

    monkeypatch.setattr(store, "aggregate", aggregated)
    ahead.seconds = 1000
    thread.run_once()

    assert had_room == [False, True, True]


def test_a_failed_processing_is_reported_and_retried(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = SelfMetrics()
    thread = folding(store, metrics=metrics)

    def broken(*_: Any) -> bool:
        msg = "the disk is full"
        raise StoreError(msg)

    with monkeypatch.context() as patched:
        patched.setattr(store, "aggregate", broken)
        thread.run_once()

        assert metrics.health.reasons == [f"{AGGREGATION_PART} failed: StoreError: the disk is full"]
    thread.run_once()
    assert metrics.health.reasons == []
