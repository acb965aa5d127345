"""Waiting for other threads and processes."""

from __future__ import annotations

import time
from collections.abc import Callable

DEADLINE_SECONDS = 120.0


def wait_until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < end, "not within the deadline"
        time.sleep(0.005)
