"""A service after a rollout: warm requests, cold ones, and what its replicas loaded."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from stagelens.core.histogram import Histogram
from stagelens.core.names import REQUEST_DURATION, STAGE_DURATION, STAGE_TIME
from stagelens.store import Batch, Point, RetainedTrace, Series
from stagelens.store.events import StoredLoad

NOW = datetime(2026, 11, 20, 12, 0, 3, tzinfo=UTC)
WARM, COLD = Series("shop", "1", model="resnet", route="/a"), Series("shop", "1", model="resnet", route="/a", cold="1")

# When, since the replica was started, a phase ended, how long it took, and of what. [seconds]
_START: tuple[tuple[int, str, float, str, str], ...] = (
    (12, "start", 12.0, "", ""),
    (4, "read", 2.9, "resnet", ""),
    (5, "deserialise", 0.8, "resnet", ""),
    (6, "copy", 0.35, "resnet", ""),
    (11, "compile", 4.4, "resnet", ""),
    (12, "first_run", 0.062, "resnet", "1x3x224x224"),
)


def batch(series: Series, stage: str, seconds: float, ago: int, requests: int = 20) -> Batch:
    """Requests with equal latency in one stage, one of them retained."""
    at = int(NOW.timestamp()) // 10 * 10 - ago
    duration, time = Histogram(), Histogram()
    duration.record(seconds, requests)
    time.record(seconds, round(seconds * 1e6) * requests)
    time.sum = 0.0
    points = [
        Point(series, metric, stage, at, histogram)
        for metric, histogram in ((REQUEST_DURATION, duration), (STAGE_DURATION, duration), (STAGE_TIME, time))
    ]
    spent = round(seconds * 1e9)
    name = f"{ago:015x}{series.cold}"
    trace = RetainedTrace(2 * name, name, series, at * 10**9, spent, "slow", stage, {stage: spent})
    return Batch(name, points, [trace])


def loaded(instance: str, phase: str, ago: int, seconds: float, model: str = "", *, shape: str = "") -> StoredLoad:
    """Start report of a replica, some seconds ago."""
    ended = (int(NOW.timestamp()) - ago) * 10**9
    own = round(seconds * 1e9)
    return StoredLoad("shop", "1", "", instance, f"{instance}:7", phase, model, shape, ended - own, ended, own)


def fleet() -> list[Batch]:
    """A service that was rolled out 12 minutes ago: its first requests are cold, the old replica is gone."""
    warm = [batch(WARM, "forward", 0.01 * (1 + ago % 3), ago, requests=60) for ago in range(20, 720, 20)]
    young = [
        loaded("shop-7d9f8b6c5d-x2x4k", phase, 700 - at, seconds, model, shape=shape)
        for at, phase, seconds, model, shape in _START
    ]
    old = [
        loaded("shop-68c4d5b7f9-9bq7m", "start", 90_000, 9.5),
        loaded("shop-68c4d5b7f9-9bq7m", "read", 90_001, 6.1, "resnet"),
    ]
    reported = replace(warm[0], instance="shop-7d9f8b6c5d-x2x4k", loads=young)
    return [reported, *warm[1:], replace(batch(COLD, "load", 3.0, 680, requests=40), loads=old)]
