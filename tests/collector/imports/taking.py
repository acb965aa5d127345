"""Import into a store, and queries of the result."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from stagelens.collector.imports.importer import ImportResult, import_file
from stagelens.collector.ingest.validation import TimeWindow
from stagelens.collector.traces.sampling import SamplingPolicy
from stagelens.store import Selection, Store

ALL = Selection(datetime(2000, 1, 1, tzinfo=UTC), datetime.now(UTC) + timedelta(days=2))


# Half a nanosecond. [seconds]
_NOTHING = 5e-10


class Taking:
    """Imports files into *store* and queries the result."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def __call__(self, path: Path, **options: Any) -> ImportResult:
        now = int(time.time())
        window = TimeWindow(now - 395 * 86_400, now + 86_400)
        return import_file(path, self.store, window, keep=SamplingPolicy(everything=True), **options)

    def requests(self) -> int:
        return self.store.read.latency(ALL).count

    def dimension(self, name: str) -> dict[str, int]:
        return self.store.read.dimensions(ALL)[name]

    def stages(self) -> list[tuple[str, dict[str, float]]]:
        retained = self.store.read.exemplars(ALL, limit=1000, order="time").sort_values("at", kind="stable")
        return [
            (route, {stage: round(seconds * 1e6) for stage, seconds in stages.items() if seconds > _NOTHING})
            for route, stages in zip(retained["route"], retained["stages"], strict=True)
        ]
