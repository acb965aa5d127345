"""Error responses as google.rpc.Status."""

from __future__ import annotations

import pytest

from stagelens.collector.otlp.responses import Failure


@pytest.mark.parametrize(
    ("failure", "encoded"),
    [
        (Failure(3, "no", None), b"\x08\x03\x12\x02no"),
        (
            Failure(8, "later", 300),
            b"\x08\x08\x12\x05later\x1a\x31\x0a\x28type.googleapis.com/google.rpc.RetryInfo\x12\x05\x0a\x03\x08\xac\x02",
        ),
    ],
)
def test_a_failure_is_encoded_as_a_status(failure: Failure, encoded: bytes) -> None:
    assert failure.status() == encoded


def test_a_lone_surrogate_in_a_message_is_replaced() -> None:
    assert Failure(3, "\ud800", None).status() == b"\x08\x03\x12\x01?"
