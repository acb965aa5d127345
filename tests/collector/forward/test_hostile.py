"""Hostile forwarding destinations affect no other destination, and no sender."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from stagelens.collector.serve import Collector
from tests.collector.forward.otlp_server import Destination
from tests.collector.forward.sending import metrics, post
from tests.support.hostile_peer import PEERS, listening

pytestmark = [pytest.mark.stacks, pytest.mark.flaky(reruns=0)]


def test_hostile_destinations_do_not_affect_others(
    forwarding: Callable[..., Collector],
    destination: Destination,
    bodies: Any,
    until: Callable[[Callable[[], object]], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    sent = {metrics(bodies, number) for number in range(5)}
    with ExitStack() as stack:
        hostile = [
            {"name": f"hostile-{number}", "endpoint": stack.enter_context(listening(name)), "timeout": "1s"}
            for number, name in enumerate(PEERS)
        ]
        collector = forwarding({"name": "backend", "endpoint": destination.url, "timeout": "60s"}, *hostile)
        for body in sent:
            assert post(collector, "/v1/metrics", body).status_code == 200
        until(lambda: destination.bodies() == sent)
        until(lambda: all(_is_known(collector, entry["name"]) for entry in hostile))
        collector.stop()

    assert [record.getMessage() for record in caplog.records if not record.getMessage().isprintable()] == []
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []


def _is_known(collector: Collector, name: str) -> bool:
    """Return whether a metric counts a delivery to *name*."""
    host, port = collector.address
    rows = httpx.get(f"http://{host}:{port}/metrics", timeout=60).text.splitlines()
    mine = [row for row in rows if f'destination="{name}"' in row and "_total" in row]
    return any(float(row.rpartition(" ")[2]) > 0 for row in mine)
