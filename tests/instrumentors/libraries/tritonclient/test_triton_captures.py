"""The captured exports of a real Triton, which others build on, look like what it exports today."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.triton import capture

if TYPE_CHECKING:
    from tests.support.triton.triton_server import TraceSink, TritonServer

pytestmark = pytest.mark.stacks

# See TraceSink.trace.
ATTEMPTS = 8
CAPTURES = Path(__file__).parents[3] / "support" / "triton" / "captures"


def outline(spans: Iterable[dict[str, Any]]) -> list[tuple[str, str, list[str], list[str]]]:
    """Return of each span its name, its parent's, the attribute names and texts, without times and ids."""
    spans = list(spans)
    names = {span["spanId"]: span["name"] for span in spans}
    return sorted(
        (
            span["name"],
            names.get(span.get("parentSpanId", ""), "ours"),
            sorted(attribute["key"] for attribute in span.get("attributes", ())),
            sorted(event["name"] for event in span.get("events", ())),
        )
        for span in spans
    )


def test_every_kind_of_call_is_captured() -> None:
    assert sorted(path.stem for path in CAPTURES.glob("*.json")) == sorted(capture.KINDS)


@pytest.mark.parametrize("kind", capture.KINDS)
def test_a_capture_equals_a_current_export(kind: str, triton: TritonServer, traces: TraceSink) -> None:
    captured = json.loads((CAPTURES / f"{kind}.json").read_text())
    expected = [
        span
        for resourcespan in captured["resourceSpans"]
        for scope in resourcespan["scopeSpans"]
        for span in scope["spans"]
    ]
    exported: list[dict[str, Any]] = []
    for attempt in range(ATTEMPTS):
        trace_id = f"{'c' * 16}{list(capture.KINDS).index(kind):08x}{attempt:08x}"
        capture.KINDS[kind](triton, {"traceparent": f"00-{trace_id}-{capture.PARENT}-01"})
        exported = traces.trace(trace_id, len(expected))
        if len(exported) == len(expected):
            break

    assert outline(exported) == outline(expected)
    assert {span["parentSpanId"] for span in expected if span["name"] == "InferRequest"} == {capture.PARENT}
