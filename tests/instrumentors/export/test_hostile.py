"""Hostile collectors: the exporter survives them, logs one line and delivers to the next collector."""

from __future__ import annotations

import random

import pytest

from stagelens.instrumentors.config import ClientTlsFiles
from stagelens.instrumentors.export import exporter as module
from stagelens.instrumentors.export.exporter import ExportBatch, Exporter
from tests.instrumentors.export.conftest import Sink
from tests.support.hostile_peer import PEERS, listening


@pytest.mark.parametrize("name", PEERS)
def test_the_exporter_survives_a_hostile_collector(
    name: str,
    sink: Sink,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The batch for the hostile collector waits or is dropped; the next batch is delivered."""
    # One attempt for each `drain`.
    monkeypatch.setattr(module, "BACKOFF_BASE_SECONDS", 3600.0)
    lost: list[tuple[str, int]] = []
    # Buffer for one batch: the next one replaces a waiting one.
    agent = Exporter(
        headers={},
        trust=ClientTlsFiles(),
        timeout_seconds=5.0,
        buffer_bytes=4,
        lost=lambda *each: lost.append(each),
        rng=random.Random(1),
    )
    with listening(name) as url:
        agent.offer(ExportBatch("instance:1", f"{url}/v1/metrics", b"body", 1))
        agent.drain(60)
    logged = [record.getMessage() for record in caplog.records]
    agent.offer(ExportBatch("instance:2", f"{sink.url}/v1/metrics", b"body", 1))

    assert agent.drain(60)
    assert [post.name for post in sink.posts] == ["instance:2"]
    assert len(logged) <= 1
    assert [line for line in logged if not line.isprintable()] == []
