"""What the collector says of its store on /metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def test_the_size_of_the_store_is_told(serve_slow: Callable[..., Any], until: Callable[..., None]) -> None:
    """After each maintenance: the room it takes, its budget (0 without one), and how many dimensions fold."""
    served = serve_slow()
    until(lambda: served.metric("stagelens_collector_store_bytes") > 0)

    assert served.metric("stagelens_collector_store_budget_bytes") == 0
    assert served.metric("stagelens_collector_store_folds") == 0
