"""A real Ray Serve: a call of another deployment is a request of its own in its caller's trace, with its own batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.stacks
ENVIRONMENT = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Of 5 s and 10 s: on a busy machine the proxy is killed for being late.
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "60",
}


def test_a_handle_call_is_assigned_its_batch(
    serving: Callable[..., Any], until: Callable[[Callable[[], object], str], None]
) -> None:
    server = serving("ray", ["served_by_ray.py", "{port}"], "/double", **ENVIRONMENT)

    def nested_requests(span: dict[str, Any]) -> list[dict[str, Any]]:
        return [inner for inner in server.requests() if inner["parentSpanId"] == span["spanId"]]

    def check(number: int, span: dict[str, Any]) -> None:
        """Hold what HTTP asked for, and what the front asked the model for, to what they were."""
        front = server.own_times(span)
        until(lambda: nested_requests(span), "the request that the model was asked for")
        (model,) = nested_requests(span)

        assert span["name"] == "POST /double"
        assert front.keys() >= {"queue", "dependency", "handler", "framework"}
        assert not [stage for stage in front if stage.startswith("batch")]
        assert model["traceId"] == span["traceId"]
        assert server.batch(model, number).keys() >= {"handler"}

    for numbers in ([1, 2, 3, 4], [5, 6, 7, 8]):
        responses, spans = server.send_requests("/double", [{"input": number} for number in numbers])

        assert responses == [{"output": number * 2} for number in numbers]
        for number, span in zip(numbers, spans, strict=True):
            check(number, span)
    failed, spans = server.send_requests("/double", [{"input": -9}])

    assert failed == [None]
    check(-9, spans[0])
