"""Memory limit of all bodies together."""

from __future__ import annotations

from contextlib import suppress

import pytest

from stagelens.collector.ingest.writer import FullError
from stagelens.collector.self_metrics import SelfMetrics
from stagelens.collector.server.bodies import BodyReader


@pytest.fixture
def body_reader() -> BodyReader:
    return BodyReader(max_body_bytes=1000, max_held_bytes=100, metrics=SelfMetrics())


def test_two_bodies_together_cannot_exceed_the_limit(body_reader: BodyReader) -> None:
    with body_reader.held() as first, body_reader.held() as second:
        first(60)
        second(40)
        with pytest.raises(FullError, match="60 bytes of other requests are being read"):
            second(1)
        with pytest.raises(FullError, match="40 bytes of other requests"):
            first(1)


def test_a_single_body_may_exceed_the_limit(body_reader: BodyReader) -> None:
    with body_reader.held() as hold:
        hold(60)
        hold(900)


def test_a_body_frees_its_memory_at_its_end(body_reader: BodyReader) -> None:
    with body_reader.held() as first:
        first(50)
        with suppress(KeyError), body_reader.held() as failed:
            failed(50)
            raise KeyError
        with body_reader.held() as second:
            second(50)
