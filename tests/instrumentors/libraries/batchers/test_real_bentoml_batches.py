"""A real BentoML service: each call of a batchable API has its own wait and its own batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.stacks
ROUNDS = 5
CALLS = 6


def test_calls_have_separate_waits_and_the_stages_of_their_batch(serving: Callable[..., Any], tmp_path: Path) -> None:
    server = serving(
        "bentoml",
        ["-m", "bentoml", "serve", "served_by_bentoml_batches:Model", "--host", "127.0.0.1", "--port", "{port}"],
        "/readyz",
        BENTOML_HOME=str(tmp_path),
        BENTOML_DO_NOT_TRACK="True",
    )
    server.send_requests("/double", [{"rows": [0]}])
    for sent in range(ROUNDS):
        rows = [[100 * sent + 10 * number, 100 * sent + 10 * number + 1] for number in range(1, CALLS)]
        responses, spans = server.send_requests("/double", [{"rows": row} for row in rows])

        assert responses == [[number * 2 for number in row] for row in rows]
        for row, span in zip(rows, spans, strict=True):
            check(row, span, server)
    for path in ("/triple", "/triple_later", "/triple_each", "/triple_in_steps"):
        responses, spans = server.send_requests(path, [{"number": 2}])

        assert responses == [6]
        assert server.own_times(spans[0]).keys() >= {"handler", "serialize", "framework"}
        assert server.own_times(spans[0])["handler"] >= 5_000_000
    failed, spans = server.send_requests("/double", [{"rows": [-7]}])

    assert failed == [None]
    check([-7], spans[0], server)


def check(rows: list[int], span: dict[str, Any], server: Any) -> None:
    inside = [inner["name"].split() for inner in server.sink.spans() if inner["traceId"] == span["traceId"]]
    batches = [{int(row) for row in name[1:]} for name in inside if name[0] == "batch"]

    assert set(rows) <= set[int]().union(*batches)
    assert all(batch & set(rows) for batch in batches), "no batch but its own"
    assert server.own_times(span).keys() >= {"queue", "forward", "handler", "serialize", "framework"}
    assert span["attributes"]["inference.batch.size"] <= 3
