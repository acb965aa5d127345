"""The data of the pictures in the documentation: one fixed fleet, at one fixed time.

Service `checkout` releases version 2.0.0 at 14:02. In one request of six its preprocess takes ten times longer. Its SLO burns,
Slack and PagerDuty are notified, and Ana acknowledges the incident. Service `chat` generates tokens with vLLM, `search` has
the load that its capacity is estimated from, `fraud` is healthy. Every run writes the same data and the same texts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import yaml
from sqlalchemy import Connection

from examples import synthetic
from examples.synthetic import Service, Shape, Stream
from stagelens.alerts.delivery import outbox
from stagelens.alerts.delivery.message import Burn, Finding, Trend
from stagelens.alerts.delivery.outbox import DeliveryWorker
from stagelens.alerts.evaluation.evaluator import Evaluator
from stagelens.alerts.incidents import journal, silences
from stagelens.alerts.incidents.lifecycle import IncidentRecord
from stagelens.alerts.incidents.notification_rules import IncidentUpdate
from stagelens.alerts.objectives.slo_file import Definitions, LiveSloFile, read_slo_file
from stagelens.alerts.reader import AlertsReader
from stagelens.analysis.comparison import StageGrowth
from stagelens.cli.saved_run import Run
from stagelens.core import names
from stagelens.core.code_stack import CodeFrame
from stagelens.core.hardware import (
    CPU,
    CPU_SHARE,
    GPU,
    GPU_MEMORY,
    GPU_MEMORY_SHARE,
    GPU_POWER,
    LOOP_LAG,
    MEMORY,
    THREADS,
    Measure,
    hardware_key,
)
from stagelens.core.histogram import BATCH_SIZES, Distribution, Histogram
from stagelens.core.names import BATCH_DURATION, HARDWARE, STATUS_ERROR, STATUS_OK
from stagelens.dashboard.config import DashboardConfig
from stagelens.dashboard.source import Source
from stagelens.store import Batch, Event, Point, RetainedTrace, Series, Store
from stagelens.store.collectors import Report, Vitals, write_report
from stagelens.store.events import StoredLoad
from tests.alerts.receiver import Moods
from tests.alerts.slack_workspace import CHANNEL, TOKEN, SlackWorkspace
from tests.alerts.vendors import PagerDutyService

NOW = datetime(2026, 11, 20, 14, 30, 3, tzinfo=UTC)
RELEASED = datetime(2026, 11, 20, 14, 2, tzinfo=UTC)
ACKNOWLEDGED = datetime(2026, 11, 20, 14, 11, 20, tzinfo=UTC)
NS, MS = 1_000_000_000, 1_000_000
# Age of the data in steps of 30 s, of three minutes and of twelve hours: as the pages of the last hour, 6 hours and 30 days show.
_SECONDS, _MINUTES, _DAYS = timedelta(minutes=90), timedelta(hours=7), timedelta(days=30)
# Requests drawn for one bucket; a larger number of requests repeats them.
_MOST_DRAWN = 500
_REPLICAS = ("checkout-6b8f9d7c45-4kq2p", "checkout-6b8f9d7c45-9xwzn", "checkout-6b8f9d7c45-tm5vd")
_OLD_REPLICA = "checkout-5d4c8b6f97-h7s2r"
# Functions of the preprocess of `checkout`, to which the example adds `resize` beyond 12 ms.
_CODE = (CodeFrame("serve", "predict", "serve.py", 30), CodeFrame("serve", "prepare", "serve.py", 36))

SLO = """slos:
  - name: checkout-latency
    service: checkout
    objective: 0.999
    threshold: 150ms
    window: 30d
    description: Customers wait for this request before they pay.
    runbook: https://wiki.example.com/runbooks/checkout
  - {name: checkout-availability, service: checkout, objective: 0.99, window: 30d}
  - {name: chat-first-token, service: chat, kind: ttft, objective: 0.95, threshold: 800ms, window: 30d}
  - {name: search-latency, service: search, objective: 0.99, threshold: 250ms, window: 30d}
  - {name: fraud-latency, service: fraud, objective: 0.99, threshold: 60ms, window: 7d}
channels:
  - {kind: slack, token_env: SLACK_BOT_TOKEN, signing_secret_env: SLACK_SIGNING_SECRET, channel: %(channel)s, base_url: "%(slack)s/api"}
  - {kind: pagerduty, routing_key_env: PAGERDUTY_ROUTING_KEY, base_url: "%(pagerduty)s"}
dashboard_url: https://stagelens.example.com
"""
PRICES = """currency: "$"
prices:
  - {service: checkout, per_replica_hour: 0.62, replicas: 3}
  - {service: chat, per_replica_hour: 4.1, replicas: 2}
  - {service: search, per_replica_hour: 3.1, replicas: 4}
  - {service: fraud, per_replica_hour: 0.08, replicas: 2}
"""
_SECRETS = {"SLACK_BOT_TOKEN": TOKEN, "SLACK_SIGNING_SECRET": "s", "PAGERDUTY_ROUTING_KEY": "r" * 32}
RUN = Run(["uvicorn", "serve:app"], NOW - timedelta(seconds=96), NOW, 0)


def _shapes(text: str) -> dict[str, Shape]:
    return {stage: Shape(*numbers) for stage, numbers in yaml.safe_load(f"{{{text}}}").items()}


# Version 2 of `checkout` has a slow preprocess.
SERVICES = (
    Service(
        "checkout",
        "risk-ranker",
        40.0,
        ("/v1/quote", "/v1/order"),
        _shapes(
            "preprocess: [9, 0.25], forward: [18, 0.16], postprocess: [1.8, 0.3], dependency: [6, 0.4], "
            "serialize: [1.1, 0.4], network: [2.2, 0.6], queue: [2.5, 0.7, 0.02, 8], overhead: [0.7, 0.3]"
        ),
        _shapes("preprocess: [9.5, 0.25, 0.16, 14.5]"),
        error_share=0.0003,
        code={"preprocess": _CODE},
    ),
    Service(
        "chat",
        "llama-3.1-8b",
        4.0,
        ("/v1/chat/completions",),
        _shapes(
            "prefill: [85, 0.5], decode: [900, 0.6], tokenize: [3, 0.3], serialize: [1.5, 0.3], network: [6, 0.8], "
            "queue: [30, 1.0, 0.03, 8], overhead: [2, 0.4]"
        ),
        error_share=0.004,
        stream=Stream(),
    ),
    Service(
        "search",
        "e5-large",
        30.0,
        ("/embed",),
        _shapes(
            "forward: [38, 0.12], h2d: [2, 0.12], tokenize: [4, 0.12], serialize: [1.5, 0.12], queue: [9, 0.1], "
            "overhead: [1, 0.12]"
        ),
        error_share=0.0004,
    ),
    Service(
        "fraud",
        "xgb-fraud",
        20.0,
        ("/score", "/batch"),
        _shapes(
            "forward: [2.1, 0.2], dependency: [6, 0.4, 0.005, 5], preprocess: [0.8, 0.3], serialize: [0.4, 0.3], "
            "network: [0.9, 0.6], overhead: [0.3, 0.3]"
        ),
        error_share=0.0008,
    ),
)


@dataclass(frozen=True)
class Notified:
    blocks: list[dict[str, Any]]
    files: Mapping[str, bytes]
    event: dict[str, Any]


@dataclass(frozen=True)
class Pictured:
    store: Store
    source: Source
    alerts: AlertsReader
    config: DashboardConfig
    notified: Notified

    @property
    def incident(self) -> str:
        return next(incident.id for incident in self.alerts.incidents() if incident.state == "open")

    @property
    def slow_trace(self) -> str:
        return _SLOW_TRACE


@contextmanager
def pictured(folder: Path) -> Generator[Pictured]:
    slack, pagerduty = SlackWorkspace(Moods(failing=0.0)), _PagerDuty(Moods(failing=0.0))
    # Pages show the paths of the files.
    slo_file, prices = Path("slo.yaml"), Path("prices.yaml")
    values = {"channel": CHANNEL, "slack": slack.url, "pagerduty": pagerduty.url}
    (folder / slo_file).write_text(SLO % values, encoding="utf-8")
    (folder / prices).write_text(PRICES, encoding="utf-8")
    store = Store.open(f"sqlite:///{folder / 'stagelens.db'}", clock=NOW.timestamp)
    before = Path.cwd()
    os.chdir(folder)
    try:
        _fill(store)
        with mock.patch("secrets.token_hex", _Ids()):
            _earlier_incidents(store)
            notified = _notify(store, read_slo_file(slo_file, _SECRETS), slack, pagerduty)
        alerts = AlertsReader(store, LiveSloFile(slo_file, _SECRETS))
        config = DashboardConfig(port=0, prices=prices)
        source = Source(store, alerts, NOW.timestamp, config=config)
        yield Pictured(store, source, alerts, config, notified)
    finally:
        os.chdir(before)
        store.close()
        slack.close()
        pagerduty.close()


class _Ids:
    def __init__(self) -> None:
        self._random = np.random.default_rng(7)

    def __call__(self, size: int) -> str:
        return self._random.bytes(size).hex()


class _PagerDuty(PagerDutyService):
    def __init__(self, moods: Moods) -> None:
        super().__init__(moods)
        self.events: list[dict[str, Any]] = []

    def take(self, path: str, headers: Any, body: bytes) -> tuple[int, bytes]:
        self.events.append(json.loads(body))
        return super().take(path, headers, body)


def _fill(store: Store) -> None:
    end = int(NOW.timestamp()) // 30 * 30
    waiting: list[Batch] = []
    for at, seconds in _buckets(end):
        waiting += [_batch(service, at, seconds) for service in SERVICES]
        if seconds < _LONG:
            waiting.append(_machines(at))
        if len(waiting) >= 200:
            store.write(waiting)
            waiting = []
    store.write([*waiting, *_engines(end), _cold_starts(end)])
    store.maintain()
    for event in _EVENTS:
        store.add_event(event)
    with store.transaction() as connection:
        for report in _reports():
            write_report(connection, report)


_LONG = 3600


def _buckets(end: int) -> Iterator[tuple[int, int]]:
    first, middle, last = (end - int(each.total_seconds()) for each in (_DAYS, _MINUTES, _SECONDS))
    yield from ((at, 12 * _LONG) for at in range(first, middle, 12 * _LONG))
    yield from ((at, 180) for at in range(middle, last, 180))
    yield from ((at, 30) for at in range(last, end, 30))


def _version(service: Service, at: int) -> str:
    if service.name == "checkout":
        return "2.0.0" if at >= RELEASED.timestamp() else "1.9.0"
    if service.name == "fraud":
        return "3.4" if at >= NOW.timestamp() - 3 * 86_400 else "3.3"
    return {"chat": "0.9.2", "search": "1.15.0"}[service.name]


def _batch(service: Service, at: int, seconds: int) -> Batch:
    random = np.random.default_rng([at, *service.name.encode()])
    total = int(random.poisson(_rate(service, at) * seconds))
    # The first notification is about slow requests alone.
    fails = not RELEASED.timestamp() <= at < ACKNOWLEDGED.timestamp()
    failed = int(random.binomial(total, service.error_share)) if fails else 0
    version, detailed = _version(service, at), seconds < _LONG
    changed = service.changed if version == "2.0.0" else {}
    shapes = {**service.stages, **changed}
    if service.name == "search":
        rho = _rate(service, at) / 62
        shapes["queue"] = Shape(2 + 14 * rho / (1 - rho), 0.35)
    points: list[Point] = []
    kept: list[RetainedTrace] = []
    for place, route in enumerate(service.routes):
        for status, number in ((STATUS_OK, total - failed), (STATUS_ERROR, failed)):
            mine = number // len(service.routes) + (number % len(service.routes) if place == 0 else 0)
            if not mine:
                continue
            series = Series(service.name, version, "prod", service.model, "1", route, "cuda:0", status)
            factor = -(-mine // _MOST_DRAWN)
            requests = synthetic.draw(shapes, max(mine // factor, 1), random)
            made = list(synthetic.points(series, at, requests))
            with mock.patch.object(synthetic, "BUCKET_SECONDS", seconds):
                if service.stream:
                    made += map(_chunked, synthetic.stream_points(series, at, requests, service.stream, random))
                if detailed:
                    made += synthetic.profile_points(series, at, requests, service.code)
                    kept += synthetic.kept(series, at, requests, random)
            points += [replace(each, histogram=_times(each.histogram, factor)) for each in made]
    if service.name == "search":
        series = Series("search", version, "prod", service.model, "1", "/embed", "cuda:0", STATUS_OK)
        points += _model_runs(series, at, random, min(total, _MOST_DRAWN))
    instance = _REPLICAS[at // 30 % 3] if version == "2.0.0" else f"{service.name}-0"
    return Batch(f"{service.name}:{at}", points, [_named(each) for each in kept], 0, instance)


def _chunked(found: Point) -> Point:
    return replace(found, stage=names.BY_FIRST_CHUNK) if found.stage == names.BY_GENERATE else found


def _rate(service: Service, at: int) -> float:
    if service.name == "search":
        return 16.0 + 30.0 * (0.5 - 0.5 * float(np.cos((at - 1000) / 10_800 * 2 * np.pi)))
    return float(service.rate)


def _times(found: Histogram, factor: int) -> Histogram:
    if factor == 1:
        return found
    counts = {bucket: count * factor for bucket, count in found.buckets.items()}
    return Histogram(found.scale, counts, found.zero * factor, found.sum * factor)


def _model_runs(series: Series, at: int, random: np.random.Generator, number: int) -> list[Point]:
    found: dict[str, Histogram] = {}
    for size in random.choice([1, 2, 4, 8], number, p=[0.2, 0.3, 0.3, 0.2]).tolist():
        runs = found.setdefault(BATCH_SIZES.bucket_of(size), Histogram())
        runs.record((20 + 4.5 * size) / 1e3 * random.lognormal(0, 0.05))
    return [Point(series, BATCH_DURATION, size, at, runs) for size, runs in found.items()]


# Names of the spans of `checkout`.
_SPAN_NAMES = {
    "preprocess": "features",
    "forward": "RiskRanker",
    "postprocess": "explain",
    "dependency": "payments",
    "serialize": "response",
    "network": "receive",
    "queue": "thread pool",
}
_SLOW_TRACE = "5b8aa5a2d2c872e8321cf37308d69df2"


def _named(found: RetainedTrace) -> RetainedTrace:
    if found.series.service != "checkout":
        return found
    spans = [{**span, "name": _SPAN_NAMES.get(span["stage"], span["name"])} for span in found.spans]
    number = int(found.trace_id[:8], 16)
    replica = _OLD_REPLICA if found.series.version == "1.9.0" else _REPLICAS[number % len(_REPLICAS)]
    named = {"replica": f"{replica}:1", "tenant": ("acme", "bolt", "globex")[number // 8 % 3]}
    attributes = {f"{names.ATTRIBUTE}.{key}": value for key, value in named.items()}
    return replace(found, spans=spans, attributes={"http.request.method": "POST", **attributes})


def _slow_request() -> RetainedTrace:
    rows: tuple[tuple[str, str, float, float], ...] = (
        ("receive", "network", 0.0, 1.9),
        ("thread pool", "queue", 1.9, 4.4),
        ("decode JSON", "serialize", 4.4, 5.2),
        ("features", "preprocess", 5.5, 196.3),
        ("history", "preprocess", 8.1, 68.4),
        ("history", "preprocess", 69.0, 129.9),
        ("history", "preprocess", 130.6, 190.2),
        ("RiskRanker", "forward", 196.8, 215.1),
        ("explain", "postprocess", 215.3, 217.4),
        ("payments", "dependency", 217.7, 224.6),
        ("encode JSON", "serialize", 224.8, 225.6),
        ("send", "network", 225.6, 227.0),
    )
    spans: list[dict[str, Any]] = [
        {"name": name, "stage": stage, "start_ns": round(start * MS), "duration_ns": round((end - start) * MS), "attributes": {}}
        for name, stage, start, end in rows
    ]  # fmt: skip
    outer = [row for row in rows if row[0] != "history"]
    spent: dict[str, int] = {}
    for _, stage, start, end in outer:
        spent[stage] = spent.get(stage, 0) + round((end - start) * MS)
    whole = 227 * MS
    spent["overhead"] = whole - sum(spent.values())
    series = Series("checkout", "2.0.0", "prod", "risk-ranker", "1", "/v1/order", "cuda:0", STATUS_OK)
    started = int(datetime(2026, 11, 20, 14, 6, 41, tzinfo=UTC).timestamp() * NS)
    attributes: dict[str, str | int | float | bool] = {"http.request.method": "POST", "http.response.status_code": 200}
    return RetainedTrace(
        _SLOW_TRACE, "9c1f0b7e44d2a683", series, started, whole, "slow", "preprocess", spent, spans, attributes
    )


def _cold_starts(end: int) -> Batch:
    released = int(RELEASED.timestamp())
    phases = (("read", 2.9), ("deserialise", 0.8), ("copy", 0.35), ("compile", 4.4), ("first_run", 0.062))
    loads: list[StoredLoad] = []
    for place, name in enumerate((*_REPLICAS, _OLD_REPLICA)):
        old = name == _OLD_REPLICA
        started, version = (released - 400_000, "1.9.0") if old else (released - 14 + 3 * place, "2.0.0")
        ended = started * NS + round((12.0 + 0.7 * place) * NS)
        loads.append(_load(name, version, "start", started * NS, ended))
        at = started * NS + NS
        for phase, seconds in phases:
            after = at + round(seconds * (1 + 0.08 * place) * NS)
            loads.append(_load(name, version, phase, at, after))
            at = after + NS // 10
    at = (released + 10) // 10 * 10
    series = Series("checkout", "2.0.0", "prod", "risk-ranker", "1", "/v1/order", "cuda:0", STATUS_OK, "1")
    requests = synthetic.draw({"load": Shape(900, 0.3), "forward": Shape(20, 0.2)}, 6, np.random.default_rng(3))
    del end
    points = list(synthetic.points(series, at, requests))
    return Batch("cold starts", points, [_slow_request()], 0, _REPLICAS[0], loads=loads)


def _load(name: str, version: str, phase: str, started: int, ended: int) -> StoredLoad:
    shape, model = "1x64" if phase == "first_run" else "", "" if phase == "start" else "risk-ranker"
    return StoredLoad(
        "checkout", version, "prod", name, f"{name}:1", phase, model, shape, started, ended, ended - started
    )


def _machines(at: int) -> Batch:
    random = np.random.default_rng([at, 5])
    points: list[Point] = []
    by_name = {service.name: service for service in SERVICES}
    rho = _rate(by_name["search"], at) / 62
    for index in range(4):
        points += _gpu(
            Series("search", "1.15.0", "prod"), f"search-7c6f5-{index}", at, min(rho * (0.8 + 0.06 * index), 1), 11e9
        )
    for index in range(2):
        points += _gpu(
            Series("chat", "0.9.2", "prod"), f"chat-58d7b-{index}", at, float(random.uniform(0.7, 0.85)), 71e9
        )
    if at >= RELEASED.timestamp():
        for name in _REPLICAS:
            points += _gpu(Series("checkout", "2.0.0", "prod"), name, at, float(random.uniform(0.45, 0.6)), 9e9)
    else:
        points += _gpu(Series("checkout", "1.9.0", "prod"), _OLD_REPLICA, at, float(random.uniform(0.45, 0.6)), 9e9)
    return Batch(f"machines:{at}", points, [], 0, "machines")


def _gpu(of: Series, host: str, at: int, busy: float, memory: float) -> list[Point]:
    values: Sequence[tuple[Measure, str, float]] = (
        (CPU, ":1", 0.4 + 2 * busy),
        (CPU_SHARE, ":1", 0.1 + 0.5 * busy),
        (MEMORY, ":1", 3.4e9),
        (THREADS, ":1", 41.0),
        (LOOP_LAG, ":1", 0.003 + 0.04 * busy**4),
        (GPU, "/gpu0", busy),
        (GPU_MEMORY, "/gpu0", memory),
        (GPU_MEMORY_SHARE, "/gpu0", memory / 80e9),
        (GPU_POWER, "/gpu0", 90 + 300 * busy),
    )
    points: list[Point] = []
    for measure, where, value in values:
        observed = Histogram()
        observed.record(value)
        points.append(Point(of, HARDWARE, hardware_key(measure.key, host + where), at, observed))
    return points


def _engines(end: int) -> list[Batch]:
    return [_engine_minute(at) for at in range(end - 5400, end, 60)]


def _engine_minute(at: int) -> Batch:
    endless = float("inf")
    chat = Series("chat", "0.9.2", "prod", "llama-3.1-8b")
    embed = Series("search", "1.15.0", "prod", "e5-large")
    made = (
        (chat, names.ENGINE_REQUEST, names.BY_ENGINE, 250.0, ((0.3, 0.5, 30), (0.5, 0.8, 80), (0.8, 1.0, 60), (1.0, 1.5, 40), (1.5, 2.0, 20), (2.0, 2.5, 8), (2.5, 5.0, 2))),
        (chat, names.ENGINE_STAGE, "queue", 8.0, ((0.0, 0.3, 238), (0.3, 0.5, 2))),
        (chat, names.ENGINE_STAGE, "prefill", 23.0, ((0.0, 0.3, 234), (0.3, 0.5, 6))),
        (chat, names.ENGINE_STAGE, "decode", 216.0, ((0.3, 0.5, 60), (0.5, 0.8, 90), (0.8, 1.0, 50), (1.0, 1.5, 38), (1.5, 2.5, 2))),
        (chat, names.ENGINE_FIRST_TOKEN, names.BY_ENGINE, 31.0, ((0.06, 0.08, 40), (0.08, 0.1, 90), (0.1, 0.25, 100), (0.25, 0.5, 10))),
        (chat, names.ENGINE_OUTPUT_TOKEN, names.BY_ENGINE, 2.6, ((0.0, 0.01, 120), (0.01, 0.025, 118), (0.025, 0.05, 2))),
        (embed, names.ENGINE_REQUEST, names.BY_ENGINE, 96.0, ((0.0, endless, 2000),)),
        (embed, names.ENGINE_STAGE, "queue", 14.0, ((0.0, endless, 2000),)),
        (embed, names.ENGINE_STAGE, "forward", 78.0, ((0.0, endless, 2000),)),
    )  # fmt: skip
    points: list[Point] = []
    for series, metrics, key, total, buckets in made:
        found = Distribution()
        for low, high, count in buckets:
            found.add(low, high, count)
        found.set_sum(total)
        pair = zip(metrics, (found.lows, found.highs), strict=True)
        points += [Point(series, metric, key, at, each) for metric, each in pair]
    for kind, tokens in ((names.TOKENS_IN, 190_000), (names.TOKENS_OUT, 22_000)):
        points.append(Point(chat, names.ENGINE_TOKENS, kind, at, Histogram(zero=tokens)))
    points.append(Point(embed, names.ENGINE_BATCH, "8-15", at, Histogram(zero=220, sum=9.2)))
    return Batch(f"engines:{at}", points)


_EVENTS = (
    Event(RELEASED, "checkout", "deploy", "2.0.0", "new fraud features", "https://ci.example.com/checkout/1418"),
    Event(NOW - timedelta(hours=3, minutes=12), "search", "config", "", "replicas 3 to 4"),
    Event(NOW - timedelta(hours=4, minutes=40), "", "note", "", "load test of the payment provider, until 11:00"),
    Event(NOW - timedelta(hours=5, minutes=5), "chat", "advice", "batching", "max_num_seqs 64 to 128"),
)


def _reports() -> list[Report]:
    at = NOW.timestamp()
    down = {"http://triton-1:8002/metrics": "connection refused"}
    well = Vitals(
        {"metrics": 52.0, "traces": 18.0},
        queue_batches=3,
        queue_bytes=180_000,
        commit_p99_seconds=0.021,
        store_bytes=3.1e9,
        store_budget_bytes=20e9,
        memory_bytes=212e6,
        cpu_ratio=0.14,
        targets_up=3,
    )
    return [
        Report("a", "stagelens-collector-0:4318", "0.1.0", at - 6 * 86_400, at - 3, well),
        Report("b", "stagelens-collector-1:4318", "0.1.0", at - 6 * 86_400, at - 7, replace(well, targets_down=down)),
        Report(
            "c",
            "stagelens-collector-2:4318",
            "0.1.0",
            at - 2 * 86_400,
            at - 5,
            replace(well, refused_per_second={"429": 0.4}, rejected={"metrics too_old": 4}, commit_p99_seconds=0.034),
        ),
    ]


def _earlier_incidents(store: Store) -> None:
    opened, lasted = NOW.timestamp() - 103_000, 2100.0
    burn = Burn(17.2, 14.4, 3600.0, 300.0, 2210.0, 12_840.0, 0.81, 62_000.0, 30 * 86_400.0, 200_000.0)
    finding = Finding(
        name="search-latency",
        service="search",
        promise="99 % of requests to search succeed within 250 ms, over 30 days",
        kind="latency",
        severity="page",
        since=opened - 300,
        burn=burn,
        growth=(StageGrowth("queue", 0.21, 0.88),),
        course=Trend((0.4, 0.5, 3.0, 17.2), 180.0, opened - 840),
    )
    record = IncidentRecord(
        f"sl-{'4f1c9e07' * 2}d2b6",
        "slo:search-latency",
        finding,
        opened,
        opened,
        opened,
        sequence=1,
        peak=17.2,
        heard="open",
    )
    record = replace(record, story=record.id)
    with store.transaction() as connection:
        journal.write_update(connection, IncidentUpdate(record, "opened", notifies=True), _CHANNELS, opened)
        _send(connection, opened + 1)
        ended = replace(
            record,
            resolved_at=opened + lasted,
            ending="recovered",
            sequence=2,
            heard="over",
            acked_by="Ben",
            acked_at=opened + 120,
        )
        journal.write_update(connection, IncidentUpdate(ended, "resolved", notifies=True), _CHANNELS, opened + lasted)
        _send(connection, opened + lasted + 1)
        silences.create_silence(
            connection,
            {"service": "batch-scoring", "severity": "ticket"},
            starts_at=NOW - timedelta(hours=2),
            ends_at=NOW + timedelta(hours=6),
            author="Ben",
            comment="Disk migration until the evening",
        )


_CHANNELS = ("slack", "pagerduty")


def _send(connection: Connection, at: float) -> None:
    for channel in _CHANNELS:
        claimed = outbox.claim_message(connection, channel, "pictures", at, 60.0)
        assert claimed is not None
        outbox.mark_sent(connection, claimed, at)


@dataclass
class _Deliveries:
    store: Store
    definitions: Definitions
    at: datetime = NOW
    workers: list[DeliveryWorker] = field(default_factory=list[DeliveryWorker])

    def __post_init__(self) -> None:
        for entry in self.definitions.channels:
            assert entry.channel is not None, entry.lacking
            self.workers.append(DeliveryWorker(self.store, entry.channel, "pictures", clock=self._clock))

    def _clock(self) -> float:
        return self.at.timestamp()

    def send(self, at: datetime) -> None:
        self.at = at
        for worker in self.workers:
            worker.step()


def _notify(store: Store, definitions: Definitions, slack: SlackWorkspace, pagerduty: _PagerDuty) -> Notified:
    evaluator = Evaluator(store, "pictures", lease_seconds=600)
    deliveries = _Deliveries(store, definitions)
    at, opened = RELEASED + timedelta(minutes=6), None
    while opened is None:
        at += timedelta(seconds=10)
        assert at < ACKNOWLEDGED, "the objective must burn fast enough"
        opened = next((each.record.id for each in evaluator.tick(definitions, at) if each.event == "opened"), None)
    deliveries.send(at + timedelta(seconds=1))
    notified = Notified(
        slack.parents[0]["said"][-1]["blocks"],
        {name: file.png for name, file in slack.files.items()},
        pagerduty.events[0],
    )
    journal.acknowledge(store, opened, "Ana", ACKNOWLEDGED)
    deliveries.send(ACKNOWLEDGED + timedelta(seconds=1))
    for minutes in range(15, 31, 5):
        at = NOW.replace(minute=0, second=0) + timedelta(minutes=minutes)
        evaluator.tick(definitions, at)
        deliveries.send(at + timedelta(seconds=1))
    assert slack.violations == []
    assert pagerduty.violations == []
    return notified


@contextmanager
def single_run(folder: Path) -> Generator[Store]:
    usual = _shapes(
        "preprocess: [0.38, 0.15], forward: [0.25, 0.3], serialize: [0.016, 0.3], network: [0.15, 0.35], "
        "queue: [0.14, 0.5], overhead: [0.14, 0.2]"
    )
    large = usual | _shapes("preprocess: [18.2, 0.16], forward: [1.6, 0.5]")
    store = Store.open(f"sqlite:///{folder / 'run.db'}", clock=NOW.timestamp)
    series = Series("pictures", "", "", "Sequential", "", "/pictures/{number}", "cpu", STATUS_OK)
    end = int(NOW.timestamp()) // 10 * 10
    made: list[Batch] = []
    for at in range(end - 110, end - 10, 10):
        random = np.random.default_rng(at)
        some, few = synthetic.draw(usual, 142, random), synthetic.draw(large, 8, random)
        requests = synthetic.Requests(some.stages, np.concatenate([some.spent, few.spent]))
        kept = [
            replace(each, attributes={"http.request.method": "GET"})
            for each in synthetic.kept(series, at, requests, random)
        ]
        made.append(Batch(f"run:{at}", list(synthetic.points(series, at, requests)), kept, 0, "pictures-1"))
    store.write(made)
    store.maintain()
    try:
        yield store
    finally:
        store.close()
