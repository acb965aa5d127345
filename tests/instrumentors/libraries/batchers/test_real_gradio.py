"""A real Gradio app: each event of its queue is a request with its function as `handler`."""

from __future__ import annotations

import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.stacks
WORK_NS = 5_000_000


def call(server: Any, name: str, number: float) -> str:
    """Add an event to the queue, and return the last line of its stream."""
    url = f"{server.url}/gradio_api/call/{name}"
    body = json.dumps({"data": [number]}).encode()
    with urllib.request.urlopen(urllib.request.Request(url, body, {"Content-Type": "application/json"})) as response:
        event = json.load(response)["event_id"]
    with urllib.request.urlopen(f"{url}/{event}", timeout=60) as stream:
        return stream.read().decode().split("data: ")[-1].strip()


def test_an_event_is_a_request(serving: Callable[..., Any], until: Callable[[Callable[[], object], str], None]) -> None:
    server = serving("gradio", ["served_by_gradio.py", "{port}"], "/", GRADIO_ANALYTICS_ENABLED="False")
    assert call(server, "double", 2) == "[4]"
    assert call(server, "triple", 2) == "[6]"
    assert call(server, "count", 3) == "[3]"
    with ThreadPoolExecutor(3) as clients:
        assert sorted(clients.map(lambda number: call(server, "halve", number), (2, 4, 6))) == [
            "[1.0]",
            "[2.0]",
            "[3.0]",
        ]

    def events(name: str) -> list[dict[str, Any]]:
        return [span for span in server.requests() if span["name"] == f"/{name}"]

    for name, number in (("double", 1), ("triple", 1), ("count", 1), ("halve", 3)):
        until(lambda name=name, number=number: len(events(name)) == number, f"the events of {name}")
        for span in events(name):
            assert "error.type" not in span["attributes"]
            stages = server.own_times(span)
            assert stages.keys() >= {"queue", "handler", "framework"}
            assert stages["handler"] >= WORK_NS * (3 if name == "count" else 1)
    call(server, "double", -1)
    until(lambda: len(events("double")) == 2, "the failed event")
    assert sorted(span["attributes"].get("error.type", "") for span in events("double")) == ["", "ValueError"]
