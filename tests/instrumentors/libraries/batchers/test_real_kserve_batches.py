"""A real KServe with a batcher of one's own: each request has its own wait and its own batch, by a ticket."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from stagelens.core import names
from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.stacks


def test_a_ticket_gives_each_request_its_batch(serving: Callable[..., Any]) -> None:
    port = free_port()
    server = serving("kserve", ["served_by_kserve_batches.py", "PORT", str(port)], "/v2/health/ready")
    for infer in (server.infer, partial(server.infer_over_grpc, port)):
        for numbers in ([1, 2, 3, 4], [5, 6, 7, 8], [-9]):
            results, spans = infer(numbers)

            assert results == [number * 2 if number > 0 else None for number in numbers]
            assert {span["attributes"][names.STATUS] for span in spans} == {"ok" if min(numbers) > 0 else "error"}
            for number, span in zip(numbers, spans, strict=True):
                stages = server.batch(span, number).keys()

                assert stages >= {"preprocess", "handler", "network"}
                assert ("postprocess" in stages) == (number > 0)
