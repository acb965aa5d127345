"""Fixtures: OTLP bodies as sent by clients, and a running collector."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from stagelens.collector import serve as servers
from stagelens.collector.config import LiveConfig
from stagelens.collector.serve import Collector, CollectorConfig
from stagelens.core import names
from stagelens.core.histogram import Histogram
from stagelens.store import Batch, Event, Selection, Store
from tests.collector.traces.otlp import attributes

SECOND = 1_000_000_000


@dataclass
class Bodies:
    """Builder of valid OTLP/JSON requests, which tests can change."""

    now_ns: int = field(default_factory=time.time_ns)

    def point(self, durations: tuple[float, ...] = (0.1,), **changes: Any) -> dict[str, Any]:
        histogram = Histogram()
        for seconds in durations:
            histogram.record(seconds)
        return {
            "attributes": attributes({names.DOMINANT: "forward", names.ROUTE: "/predict", names.STATUS: "ok"}),
            "startTimeUnixNano": str(self.now_ns - 10 * SECOND),
            "timeUnixNano": str(self.now_ns),
            **histogram.to_otlp(),
            **changes,
        }

    def metrics(
        self, *points: dict[str, Any], name: str = names.REQUEST_DURATION, temporality: int = 1, service: str = "shop"
    ) -> dict[str, Any]:
        data = {"aggregationTemporality": temporality, "dataPoints": [*points]}
        return self.request({"name": name, "exponentialHistogram": data}, service=service)

    def request(self, *metrics: dict[str, Any], service: str = "shop") -> dict[str, Any]:
        scope = {"scope": {"name": names.SCOPE}, "metrics": [*metrics]}
        return {"resourceMetrics": [{"resource": _resource(service), "scopeMetrics": [scope]}]}

    def trace(self, stages_ns: dict[str, int], *, trace_id: str = "ab" * 16) -> list[dict[str, Any]]:
        """Return the spans of a retained trace: its request, and one span for each stage."""
        at = begin = self.now_ns - 5 * SECOND

        def span(span_id: str, start: int, spent: int, values: dict[str, Any], **fields: Any) -> dict[str, Any]:
            times = {"startTimeUnixNano": str(start), "endTimeUnixNano": str(start + spent)}
            return {"traceId": trace_id, "spanId": span_id, **times, "attributes": attributes(values), **fields}

        about = {names.ROUTE: "/predict", names.STATUS: "ok", names.RETAINED_BECAUSE: "slow", names.HTTP_STATUS: 200}
        about |= {names.STAGE_SELF_PREFIX + stage: spent for stage, spent in stages_ns.items()}
        spans = [span("01" * 8, begin, sum(stages_ns.values()), about, name="POST /predict", kind=2)]
        for number, (stage, spent) in enumerate(stages_ns.items(), 2):
            if stage != "overhead":
                fields = {"parentSpanId": "01" * 8, "name": stage, "kind": 1}
                spans.append(span(f"{number:016x}", at, spent, {names.STAGE: stage}, **fields))
            at += spent
        return spans

    def spans(self, *spans: dict[str, Any], scope: str = names.SCOPE, service: str = "shop") -> dict[str, Any]:
        scopes = [{"scope": {"name": scope}, "spans": [*spans]}]
        return {"resourceSpans": [{"resource": _resource(service), "scopeSpans": scopes}]}


def _resource(service: str) -> dict[str, Any]:
    about = {names.SERVICE_NAME: service, names.SERVICE_VERSION: "1", names.SERVICE_INSTANCE: "pod-1"}
    return {"attributes": attributes(about)}


class Served:
    """Running collector with its store and an HTTP client."""

    def __init__(self, store: Store, collector: Collector) -> None:
        self.store, self.collector = store, collector
        host, port = collector.address
        self.url = f"http://{host}:{port}"
        self.client = httpx.Client(base_url=self.url, timeout=30)

    def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        named = {"content-type": "application/json"} | {key.replace("_", "-"): value for key, value in headers.items()}
        return self.client.post(path, content=content, headers=named)

    def counted(self) -> int:
        return self.store.read.latency(last_day()).count

    def metric(self, name: str) -> float:
        for line in self.client.get("/metrics").text.splitlines():
            if line.startswith(name + " "):
                return float(line.rpartition(" ")[2])
        return 0.0

    def rejected(self) -> float:
        lines = self.client.get("/metrics").text.splitlines()
        samples = [line for line in lines if line.startswith("stagelens_collector_rejected_total{")]
        return sum(float(line.rpartition(" ")[2]) for line in samples)


def last_day(service: str | None = None) -> Selection:
    now = datetime.now(UTC)
    return Selection(now - timedelta(days=1), now + timedelta(minutes=5), service)


@pytest.fixture(scope="module", autouse=True)
def _kept_alive() -> Generator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(servers, "_KEEP_ALIVE_SECONDS", 600)
        yield


@pytest.fixture
def bodies() -> Bodies:
    return Bodies()


@dataclass
class Ahead:
    """Clock that a test can set ahead of the current time."""

    seconds: float = 0.0

    def __call__(self) -> float:
        return time.time() + self.seconds


@pytest.fixture
def ahead() -> Ahead:
    return Ahead()


@pytest.fixture
def store(open_store: Callable[..., Store], ahead: Ahead) -> Store:
    return open_store(clock=ahead)


@pytest.fixture
def serve(store: Store, ahead: Ahead) -> Generator[Callable[..., Served]]:
    running: list[Served] = []

    def start(file: LiveConfig | None = None, **settings: Any) -> Served:
        config = CollectorConfig(port=0).model_copy(update=settings)
        collector = Collector(config, store, file=file, clock=ahead)
        collector.start()
        running.append(Served(store, collector))
        return running[-1]

    yield start
    for served in running:
        served.client.close()
        served.collector.stop()


@pytest.fixture
def served(serve: Callable[..., Served]) -> Served:
    return serve()


@pytest.fixture
def until() -> Callable[[Callable[[], object]], None]:
    def wait(condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, "the condition did not come true in a minute"
            time.sleep(0.01)

    return wait


class SlowStore:
    """Store whose commits a test can delay or make fail."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.open = threading.Event()
        self.open.set()
        self.entered = threading.Semaphore(0)
        self.failure: Exception | None = None
        self.broken_by: str | None = None
        self.maintenance_failure: Exception | None = None

    def write(self, batches: list[Batch]) -> list[bool]:
        self._pass()
        if any(batch.id == self.broken_by for batch in batches):
            msg = "this batch breaks the store"
            raise ArithmeticError(msg)
        return self._store.write(batches)

    def add_event(self, event: Event) -> None:
        self._pass()
        self._store.add_event(event)

    def _pass(self) -> None:
        self.entered.release()
        assert self.open.wait(60)
        if self.failure is not None:
            raise self.failure

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def maintain(self) -> None:
        if self.maintenance_failure is not None:
            raise self.maintenance_failure
        self._store.maintain()


@pytest.fixture
def slow(store: Store) -> SlowStore:
    return SlowStore(store)


@pytest.fixture
def serve_slow(slow: SlowStore, serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    real = Collector.__init__

    def on_slow(self: Collector, config: CollectorConfig, _store: Store, **options: Any) -> None:
        real(self, config, slow, maintenance_seconds=0.05, **options)  # type: ignore[arg-type] - it has what a collector uses

    monkeypatch.setattr(Collector, "__init__", on_slow)
    return serve
