"""The whole way: an unmodified program that calls a real Triton, run under `stagelens run`, and what the collector gets."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.support.triton.triton_server import TritonServer

pytestmark = pytest.mark.stacks

SCRIPT = Path(__file__).parent / "calling_script.py"
OVERHEAD = "stagelens.stage.overhead"
MIN_FORWARDS = 10


def forwards(sink: Any) -> list[dict[str, Any]]:
    """Return what came of the stage that only the server knows of."""
    points = (point for name, _, point in sink.points() if name == "inference.stage.duration")
    return [point for point in points if point["attributes"]["inference.stage"] == "forward"]


def unclaimed(span: dict[str, Any]) -> float:
    return span["attributes"].get(OVERHEAD, 0) / (int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"]))


def test_server_stages_reach_the_collector(
    triton: TritonServer, sink: Any, until: Callable[[Callable[[], object], str], None]
) -> None:
    command = [sys.executable, "-m", "stagelens", "run", "--", sys.executable, SCRIPT, triton.http]
    sent = 0

    def enough_reported() -> bool:
        nonlocal sent
        sent += 1
        print(file=process.stdin, flush=True)
        assert process.stdout is not None
        assert process.stdout.readline()
        return sum(int(point["count"]) for point in forwards(sink)) >= MIN_FORWARDS

    with subprocess.Popen(
        command, env=sink.environment(), text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        # The first have no reading before them.
        until(enough_reported, "the server's part of ten requests")
        process.communicate(timeout=120)
    forward = forwards(sink)
    requests = [span for span in sink.spans() if "stagelens.kept.because" in span["attributes"]]
    averaged = [span for span in sink.spans() if span["attributes"].get("stagelens.timing") == "averaged"]

    assert process.returncode == 0
    assert sink.requests() == sent
    # Of each the same share of its length: what the server did for all between two readings.
    assert sum(point["sum"] for point in forward) > 0.020 * sum(int(point["count"]) for point in forward)
    assert statistics.median(map(unclaimed, requests)) < 0.05
    assert "forward" in {span["attributes"]["inference.stage"] for span in averaged}
