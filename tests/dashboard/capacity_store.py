"""Test store of a service whose latency grows with its load, with two versions and batches."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from stagelens.core.hardware import (
    CPU,
    GPU,
    GPU_MEMORY,
    GPU_MEMORY_SHARE,
    GPU_POWER,
    LOOP_LAG,
    MEMORY,
    THREADS,
    hardware_key,
)
from stagelens.core.histogram import BATCH_SIZES, Histogram
from stagelens.core.names import BATCH_DURATION, HARDWARE, STATUS_OK
from stagelens.store import Batch, Point, Series, Store
from tests.dashboard.rendering import observed

STAGES = ("forward", "h2d", "preprocess", "serialize", "queue", "overhead")
MEDIANS_MS = (38.0, 2.0, 12.0, 1.5, 0.0, 1.0)
# Version to what a request waits for at half of its saturation [milliseconds] and to the saturation [requests/s].
VERSIONS = {"1.14.2": (9.0, 70.0), "1.15.0": (17.0, 62.0)}
# The rate goes up and down between these. [requests/s]
RATES = (18.0, 46.0)
PRICES = """currency: "$"
prices:
  - service: ocr-api
    per_replica_hour: 3.1
    replicas: 4
"""
SLO = """slos:
  - name: ocr-latency
    service: ocr-api
    objective: 0.99
    threshold: 250ms
    window: 30d
"""


def fill(traffic: ModuleType, path: Path, now: datetime, seconds: int = 5000) -> Store:
    """Return a new store at *path* with the traffic of so many seconds before *now*, the second version in the last 2/5."""
    store = Store.open(f"sqlite:///{path}", clock=now.timestamp)
    last = int(now.timestamp()) // 10 * 10
    change = last - seconds * 2 // 5
    store.write([_batch(traffic, at, "1.15.0" if at >= change else "1.14.2") for at in range(last - seconds, last, 10)])
    store.maintain()
    return store


def _batch(traffic: ModuleType, at: int, version: str) -> Batch:
    random = np.random.default_rng(at)
    low, high = RATES
    rate = low + (high - low) * (0.5 - 0.5 * np.cos(at / 2200 * 2 * np.pi))
    series = Series("ocr-api", version, "prod", "doc-ocr-large", "1", "/v1/read", "cuda:0", STATUS_OK)
    n = int(random.poisson(rate * 10))
    spent = np.exp(random.normal(np.log(np.maximum(MEDIANS_MS, 1e-6)), 0.12, (n, len(STAGES))))
    wait, saturation = VERSIONS[version]
    rho = min(rate / saturation, 0.97)
    spent[:, STAGES.index("queue")] = random.exponential(wait * rho / (1 - rho), n)
    requests: Any = traffic.Requests(STAGES, (spent * 1e6).astype(np.int64))
    points: list[Point] = [*traffic.points(series, at, requests), *_runs(series, at, random, n)]
    points += _machines(version, at, rho)
    return Batch(f"ocr-api:{at}", points, list(traffic.kept(series, at, requests, random)), 0, "ocr-1")


def _runs(series: Series, at: int, random: np.random.Generator, n: int) -> list[Point]:
    """Return how long the model ran for *n* requests: a fixed part, and a part for each item."""
    found: dict[str, Histogram] = {}
    for size in random.choice([1, 2, 4, 8], n, p=[0.2, 0.3, 0.3, 0.2]).tolist():
        found.setdefault(BATCH_SIZES.bucket_of(size), Histogram()).record(
            (20 + 4.5 * size) / 1e3 * random.lognormal(0, 0.05)
        )
    return [Point(series, BATCH_DURATION, band, at, runs) for band, runs in found.items()]


def _machines(version: str, at: int, rho: float) -> list[Point]:
    """Return what two replicas of *version* and their GPUs did, which are as busy as the load makes them."""
    series = Series("ocr-api", version, "prod")
    busy = {"ocr-api-5d9c-x2x7k": rho, "ocr-api-5d9c-9qzvt": 0.6 * rho}
    values = {
        hardware_key(measure.key, host + where): value
        for host, share in busy.items()
        for measure, where, value in (
            (CPU, ":1", 0.2 + share),
            (MEMORY, ":1", 3.4e9),
            (THREADS, ":1", 41.0),
            (LOOP_LAG, ":1", 0.004 + 0.05 * share**4),
            (GPU, "/gpu0", share),
            (GPU_MEMORY, "/gpu0", 58e9),
            (GPU_MEMORY_SHARE, "/gpu0", 58 / 80),
            (GPU_POWER, "/gpu0", 90 + 400 * share),
        )
    }
    return [Point(series, HARDWARE, name, at, observed(value)) for name, value in values.items()]
