"""Requests to the replicas of services until the slow one is named."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from threading import Event

import httpx

from stagelens.alerts.evaluation.evidence import slow_replica
from stagelens.analysis.replicas import ReplicaOutlier
from stagelens.store import Selection, Store

# How long the slow replica has to be named, and seconds between two looks.
_LIMIT, _LOOK_SECONDS = timedelta(minutes=3), 10
_log = logging.getLogger(__name__)


def ask_until_named(
    store: Store, ask: Callable[[int], object], rate: float, services: Sequence[str]
) -> dict[str, ReplicaOutlier]:
    """Return the slow replica of each of *services* that has one within three minutes of the first request."""
    began, started, pace = datetime.now(UTC), time.monotonic(), Event()
    found: dict[str, ReplicaOutlier] = {}
    for number in count():
        pace.wait(max(0.0, started + number / rate - time.monotonic()))
        ask(number)
        seconds = time.monotonic() - started
        if number % round(_LOOK_SECONDS * rate) == 0:
            for service in services:
                window = Selection(began - timedelta(minutes=5), datetime.now(UTC), service=service)
                outlier = None if service in found else slow_replica(store.read, window)
                if outlier:
                    found[service] = outlier
                    _log.info("the slow replica of %s was named after %.0f s", service, seconds)
        if len(found) == len(services) or seconds > _LIMIT.total_seconds():
            break
    return found


def wait_until_up(address: str, seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while True:
        try:
            httpx.get(address, timeout=5).raise_for_status()
        except httpx.HTTPError:
            assert time.monotonic() < until, f"{address} did not start"
            Event().wait(0.1)
        else:
            return
