"""Fixtures for imports: a store that takes files."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from stagelens.collector.imports.importer import ImportResult, import_file
from stagelens.collector.ingest.validation import TimeWindow
from stagelens.collector.traces.sampling import SamplingPolicy
from stagelens.store import Selection, Store

ALL = Selection(datetime(2000, 1, 1, tzinfo=UTC), datetime.now(UTC) + timedelta(days=2))
# Half a nanosecond. [seconds]
_NOTHING = 5e-10


class Taking:
    """Writes files into *folder*, imports them into *store*, and queries the result."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.store, self.folder = store, folder

    def __call__(self, file: Path | Any, **options: Any) -> ImportResult:
        """Import *file*, a path or the content of a file."""
        now = int(time.time())
        window = TimeWindow(now - 395 * 86_400, now + 86_400)
        path = file if isinstance(file, Path) else self.write(file)
        return import_file(path, self.store, window, keep=SamplingPolicy(everything=True), **options)

    def write(self, content: Any, name: str = "file.json") -> Path:
        path = self.folder / name
        text = content if isinstance(content, bytes | str) else json.dumps(content)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

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


@pytest.fixture
def taking(open_store: Callable[..., Store], tmp_path: Path) -> Taking:
    return Taking(open_store(), tmp_path)
