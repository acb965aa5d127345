"""Kill -9 while writing: what was acknowledged is there, once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from raw_requests import Site

# Writes batches of a fixed list from the first on, also those that were written before, and says so after each.
WRITER = """
import sys
sys.path.insert(0, sys.argv[2])
from raw_requests import NOON, Clock, Fold, Request
from stagelens.collector.store import Batch, Store

clock = Clock()
store = Store.open(sys.argv[1], clock=clock)
first = int(sys.argv[3])
for number in range(first, 10_000):
    at = NOON - 7200 + number * 30
    clock.now = at + 15
    requests = [Request({"forward": 1_000_000 * step, "queue": 500_000}, at - step * 7) for step in range(1, 6)]
    store.write([Batch(f"batch-{number}", Fold().points(requests))])
    print(number, flush=True)
    store.maintain()
"""


def test_what_was_acknowledged_survives_and_counts_once(site: Callable[..., Site]) -> None:
    """Through several kills in the middle of writing and rolling up, with every batch since the start sent again."""
    one = site()
    acknowledged = -1
    for kill in range(4):
        command = [
            sys.executable,
            "-c",
            WRITER,
            one.url,
            str(Path(__file__).parent),
            "0" if kill % 2 else str(acknowledged + 1),
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            for line in writer.stdout:
                acknowledged = max(acknowledged, int(line))
                if int(line) >= 25 * (kill + 1):
                    break
            writer.kill()
            # What it had said and we had not read when it died counts as well.
            acknowledged = max([acknowledged, *map(int, writer.stdout.read().split())])
        one.reopen()
    found = one.store.read.latency(one.between(int(one.clock.now) - 10_800, int(one.clock.now) + 10_800)).count

    # The last batch may have been committed before it could be acknowledged.
    assert found in (5 * (acknowledged + 1), 5 * (acknowledged + 2))
    with one.store.engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA integrity_check").scalar() == "ok"
