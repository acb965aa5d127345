"""Services that serve in versions, second by second as a test wants them, and their pages as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import ModuleType

import numpy as np

from stagelens.dashboard.source import Source
from stagelens.store import Batch, Series, Store

NOW = datetime(2026, 11, 20, 12, 0, 3, tzinfo=UTC)
FAST: Mapping[str, float] = {"forward": 10, "queue": 2, "overhead": 1}
SLOW: Mapping[str, float] = {"forward": 10, "queue": 20, "overhead": 1}


@dataclass(frozen=True)
class Served:
    """Traffic of one version of a service that begins and ends some minutes before `NOW`.

    Args:
        stages: The median of each stage. [milliseconds]
        rate: Requests a second, spread evenly over *routes*.
    """

    service: str
    version: str
    begins: float
    ends: float = 0
    stages: Mapping[str, float] = field(default_factory=lambda: FAST)
    rate: int = 20
    routes: Sequence[str] = ("/",)
    status: str = "ok"


def write(store: Store, traffic: ModuleType, *all_served: Served) -> Source:
    """Write what was served and return the pages' source."""
    store.write([batch for served in all_served for batch in batches(traffic, served)])
    store.maintain()
    return Source(store, None, NOW.timestamp)


def batches(traffic: ModuleType, served: Served) -> list[Batch]:
    shapes = {stage: traffic.Shape(median) for stage, median in served.stages.items()}
    now = int(NOW.timestamp()) // 10 * 10
    first, last = (
        now - int(timedelta(minutes=each).total_seconds()) // 10 * 10 for each in (served.begins, served.ends)
    )
    made: list[Batch] = []
    for at in range(first, last, 10):
        random = np.random.default_rng([at, *f"{served.service} {served.version}".encode()])
        points = [
            point
            for route in served.routes
            for point in traffic.points(
                Series(served.service, served.version, "demo", "m", "1", route, "cuda:0", served.status),
                at,
                traffic.draw(shapes, served.rate * 10 // len(served.routes), random),
            )
        ]
        made.append(Batch(f"{served}:{at}", points, [], 0, served.service))
    return made
