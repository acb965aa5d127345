"""A real MLServer: each request has its own wait, its own batch, and what a worker process did for that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.stacks


def body(number: int) -> dict[str, Any]:
    """Return an inference request for one number."""
    return {"inputs": [{"name": "x", "shape": [1, 1], "datatype": "INT64", "data": [number]}]}


def test_a_worker_gives_each_request_its_batch(serving: Callable[..., Any]) -> None:
    """Two rounds, because the batcher's task starts in an earlier request; and a failing batch."""
    server = serving("mlserver", ["served_by_mlserver.py", "PORT"], "/v2/health/ready")
    for numbers in ([1, 2, 3, 4], [5, 6, 7, 8], [-9]):
        responses, spans = server.send_requests("/v2/models/doubling/infer", [body(number) for number in numbers])
        doubled = [response and response["outputs"][0]["data"] for response in responses]

        assert doubled == [[number * 2] if number > 0 else None for number in numbers]
        for number, span in zip(numbers, spans, strict=True):
            assert server.batch(span, number).keys() >= {"network", "serialize", "handler"}
