"""Real servers of the V2 protocol: each request has its own wait and its own batch, by a ticket or from a worker process."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from stagelens.core import names
from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.stacks


@pytest.mark.parametrize(
    ("part", "script", "expected", "of_http"),
    [
        ("kserve", "served_by_kserve_batches.py", {"preprocess", "handler", "network"}, set[str]()),
        ("mlserver", "served_by_mlserver.py", {"handler", "network"}, {"serialize"}),
    ],
)
def test_each_request_has_its_batch(
    serving: Callable[..., Any], part: str, script: str, expected: set[str], of_http: set[str]
) -> None:
    port = free_port()
    server = serving(part, [script, "{port}", str(port)], "/v2/health/ready")
    for infer, more in ((server.infer, of_http), (partial(server.infer_over_grpc, port), set[str]())):
        for numbers in ([1, 2, 3, 4], [5, 6, 7, 8], [-9]):
            results, spans = infer(numbers)

            assert results == [number * 2 if number > 0 else None for number in numbers]
            assert {span["attributes"][names.STATUS] for span in spans} == {"ok" if min(numbers) > 0 else "error"}
            for number, span in zip(numbers, spans, strict=True):
                stages = server.batch(span, number).keys()

                assert stages >= {*expected, *more}
                assert part != "kserve" or ("postprocess" in stages) == (number > 0)
