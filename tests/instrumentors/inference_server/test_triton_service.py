"""The whole way: an unmodified program that calls a real Triton, run under `stagelens run`, and what the collector gets."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from triton_server import TritonServer

SCRIPT = Path(__file__).parent / "calling_script.py"
REQUESTS = 15


def test_the_servers_part_reaches_the_collector(triton: TritonServer, sink: Any) -> None:
    """Requests are their model's 30 ms at least, and nearly all of their time is claimed."""
    command = [sys.executable, "-m", "stagelens", "run", "--", sys.executable, SCRIPT, triton.http, str(REQUESTS)]
    subprocess.run(command, env=sink.environment(), check=True, timeout=120)

    seconds: dict[str, float] = defaultdict(float)
    requests = 0
    for name, _, point in sink.points():
        if name == "inference.stage.duration":
            seconds[point["attributes"]["inference.stage"]] += point["sum"]
        if name == "inference.request.duration":
            requests += int(point["count"])
            seconds["whole"] += point["sum"]
    averaged = [span for span in sink.spans() if span["attributes"].get("stagelens.timing") == "averaged"]

    assert requests == REQUESTS
    # All but the first had a reading before them.
    assert seconds["forward"] > 0.030 * (REQUESTS - 2)
    assert seconds["overhead"] < 0.05 * seconds["whole"]
    assert "forward" in {span["attributes"]["inference.stage"] for span in averaged}
