"""A service that runs for long: 200,000 requests that end in every way there is leave nothing behind but their counts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from stagelens.instrumentors.agent.aggregate import MAX_SERIES

pytestmark = pytest.mark.soak

ROOT = Path(__file__).parents[2]
REQUESTS = 200_000
# By then every series, every thread of the pool and every cache is there.
WARM = 50_000
# Blocks of memory, 50 to 100 bytes each as a rule. One that is left behind by every request of one kind of ending would
# make more than 10,000 of them; the rest over is the interpreter's own to and fro.
MAX_BLOCKS = 2_000
# Pieces of the heap that the allocator keeps; 150,000 requests of 700 bytes would be 100 MB.
MAX_GROWTH_BYTES = 8 * 1024**2


def test_two_hundred_thousand_requests_leave_only_their_counts() -> None:
    """Memory, threads and series are constant after the first quarter; every request is counted or dropped.

    In a process of its own: other tests leave threads and memory that come and go.
    """
    command = [sys.executable, "-m", "tests.instrumentors.soak", str(REQUESTS), str(WARM)]
    printed = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    document = json.loads(printed)
    warm, last = document["warm"], document["last"]

    assert document["counted"] + document["dropped"] == document["sent"]
    assert document["dropped"] > 0
    # Every name, the two kinds of status, and what is past the limit.
    assert last["series"] == warm["series"] <= MAX_SERIES + 2
    assert last["blocks"] - warm["blocks"] < MAX_BLOCKS
    assert last["resident_bytes"] - warm["resident_bytes"] < MAX_GROWTH_BYTES
    assert last["requests"] <= warm["requests"] + 2
    assert last["threads"] == warm["threads"]
    assert not document["left open"]
