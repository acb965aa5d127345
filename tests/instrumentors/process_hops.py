"""Jobs written as in docs/batches.md, for processes that import them by name."""

from __future__ import annotations

from typing import Any

import stagelens


def square(number: int, ticket: Any) -> tuple[int, Any]:
    with stagelens.batch([ticket]) as run, stagelens.stage("forward"):
        number **= 2
    return number, run


def work(jobs: Any, results: Any) -> None:
    """Take jobs out of a queue until there is none."""
    while (job := jobs.get()) is not None:
        results.put(square(*job))
