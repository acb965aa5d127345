"""A real KServe with a batcher of one's own: each request has its own wait and its own batch, by a ticket."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.stacks


def test_a_ticket_gives_each_request_its_batch(serving: Callable[..., Any]) -> None:
    """Two rounds, because the batcher's task starts in the first request; and a failing batch."""
    server = serving("kserve", ["served_by_kserve_batches.py", "PORT"], "/v2/health/ready")
    for numbers in ([1, 2, 3, 4], [5, 6, 7, 8], [-9]):
        responses, spans = server.send_requests(
            "/v1/models/doubling:predict", [{"instances": [number]} for number in numbers]
        )

        assert responses == [{"predictions": [number * 2]} if number > 0 else None for number in numbers]
        for number, span in zip(numbers, spans, strict=True):
            assert server.batch(span, number).keys() >= {"preprocess", "handler", "network"}
