"""A real LitServe: each request has its own wait and its own batch, from a worker in another process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.stacks


@pytest.mark.parametrize("queue", ["mp", "zmq"])
def test_requests_have_separate_waits_and_worker_stages(serving: Callable[..., Any], queue: str) -> None:
    fast = ["--fast"] if queue == "zmq" else []
    server = serving("litserve", ["served_by_litserve.py", "{port}", *fast], "/health")
    responses, spans = server.send_requests("/one", [{"input": number} for number in (1, -1)])

    assert responses == [{"output": 2}, None]
    for number, span in zip((1, -1), spans, strict=True):
        stages = server.own_times(span)
        assert stages.keys() >= {"queue", "preprocess", f"item-{number}", "forward", "network"}
        assert "handler" not in stages
        assert not {"item-1", "item--1"} - {f"item-{number}"} & stages.keys()

    responses, spans = server.send_requests("/many", [{"input": number} for number in range(3)])

    assert responses == [{"output": number * 2} for number in range(3)]
    for number, span in enumerate(spans):
        assert server.batch(span, number).keys() >= {"preprocess", "forward", "postprocess"}


def test_openai_spec_requests_have_separate_waits_and_stages(serving: Callable[..., Any]) -> None:
    server = serving("litserve", ["served_by_litserve.py", "{port}", "--openai"], "/health")
    bodies = [{"model": "m", "messages": [{"role": "user", "content": name}]} for name in ("Ada", "Bob")]
    responses, spans = server.send_requests("/v1/chat/completions", bodies)
    contents = [response and response["choices"][0]["message"]["content"] for response in responses]

    assert contents == ["hello Ada", "hello Bob"]
    assert all(server.own_times(span).keys() >= {"queue", "thinking", "handler", "framework"} for span in spans)
