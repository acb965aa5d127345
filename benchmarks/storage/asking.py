"""Asking all questions of a store, warm in this process and cold in fresh ones."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from .engines import Site
from .questions import Question
from .tables import table
from .timing import Cost, cost, forget

PROGRAM = Path(__file__).parent.parent / "store.py"


def ask_warm(site: Site, questions: list[Question]) -> Iterator[tuple[str, Cost]]:
    """Yield what each question costs when what it reads has been read before."""
    store = site.open()
    for question in questions:
        yield question.name, cost(lambda asked=question: asked.ask(store.read), site.server_seconds)
    store.close()


def ask_cold(site: Site, question: Question) -> float:
    """Return how long one question takes in a new process, nothing of the data in memory. [ms].

    A server of its own keeps what it has in its own buffers: only what the system holds is dropped.
    """
    forget(site.all_files())
    command = [sys.executable, str(PROGRAM), "--ask", question.name, "--url", site.url]
    command += ["--points-url", site.points_url] if site.points_url else []
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def ask_once(site: Site, question: Question) -> float:
    """Ask, and return how long it took, in milliseconds of wall time."""
    store = site.open()
    started = time.perf_counter()
    question.ask(store.read)
    return 1000 * (time.perf_counter() - started)


def table_of(costs: dict[str, tuple[Cost, float | None]]) -> str:
    """Return the table of all questions, in milliseconds."""
    rows = [
        (
            name,
            f"{each.cpu + each.server_cpu:.0f}",
            f"{each.cpu:.0f}",
            f"{each.server_cpu:.0f}",
            f"{each.wall:.0f}",
            "" if cold is None else f"{cold:.0f}",
        )
        for name, (each, cold) in costs.items()
    ]
    return table(("question", "CPU [ms]", "ours", "server's", "wall [ms]", "cold [ms]"), rows)
