"""Limits of a collector under load: a short part of `make flood`."""

from __future__ import annotations

import socket
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.chaos.attacks import gzip_bombs, huge_attributes, new_series, send, slow_readers
from tests.chaos.audit import held
from tests.chaos.flood import Collector, flood, honest

pytestmark = pytest.mark.soak

# Twice what all floods together took, each for a minute, with the default settings (docs/design/reliability.md).
CEILING_BYTES = 512 * 1024**2


@pytest.fixture
def collector(tmp_path: Path) -> Generator[Collector]:
    started = Collector(tmp_path)
    yield started
    started.end()


def test_a_flood_stays_within_the_memory_limit_and_loses_no_acknowledged_data(collector: Collector) -> None:
    with honest(collector) as acknowledged:
        outcomes = [
            flood(collector, attack, 0.5, 1) for attack in (gzip_bombs, huge_attributes, new_series, slow_readers)
        ]
        # On a busy machine the honest one may begin when they are over.
        while not (alone := acknowledged["honest"]):
            outcomes.append(flood(collector, huge_attributes, 0.5, 1))
    answered = send(collector.port, "/readyz").status

    assert max(outcome.peak_bytes for outcome in outcomes) < CEILING_BYTES
    assert [outcome.name for outcome in outcomes if outcome.without_advice] == []
    assert answered == 200
    assert held(collector.url).requests["honest"] == acknowledged["honest"] >= alone > 0


def test_requests_without_waiting_for_responses_do_not_accumulate(collector: Collector) -> None:
    before = collector.memory("VmRSS")
    with ExitStack() as stack:
        clients = [
            stack.enter_context(socket.create_connection(("127.0.0.1", collector.port), timeout=60)) for _ in range(100)
        ]
        for client in clients:
            client.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n" * 1500)
        statuses = {send(collector.port, "/livez").status for _ in range(20)}
        grown = collector.memory("VmHWM") - before

    assert statuses == {200}
    assert grown < 50 * 1024**2
