"""Metrics of the store on /metrics of the collector."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def test_the_size_of_the_store_is_a_metric(serve_slow: Callable[..., Any], until: Callable[..., None]) -> None:
    served = serve_slow()
    until(lambda: served.metric("stagelens_collector_store_bytes") > 0)

    assert served.metric("stagelens_collector_store_budget_bytes") == 0
    assert served.metric("stagelens_collector_store_folds") == 0
