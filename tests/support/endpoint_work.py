"""Work of an endpoint and of a middleware, for tests that tell `handler` from `framework`."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from stagelens.core.partition import partition
from stagelens.instrumentors.request_marks import read_marks

WORK_NS = 5_000_000


def work() -> None:
    until = time.perf_counter_ns() + WORK_NS
    while time.perf_counter_ns() < until:
        pass


def own_times(finished: deque[Any]) -> dict[str, int]:
    ((marks, start, ended, *_),) = finished
    return partition(read_marks(marks[:]).intervals, start, ended)
