"""Kill -9 between any two steps: acknowledged batches and spans are counted once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import event

from stagelens.store import Batch, Series, Store
from stagelens.store.inbox import AggregationInput, AggregationResult, Parcel
from tests.store.store_contents import check_tiers, requests
from tests.support.raw_requests import NOON, NS, Clock, PointAggregator, Request, Site

pytestmark = pytest.mark.flaky(reruns=0)

ROOT = Path(__file__).parents[2]
# Time between two processes, in which a lease of the first one expires. [seconds]
LATER = 600


def test_a_kill_between_any_two_steps_counts_everything_once(shared: Site) -> None:
    # With points in ClickHouse a process takes four times as long.
    stride = 23 if "points_url" in shared.options else 11
    shared.close()
    command = [sys.executable, "-m", __name__, shared.url, json.dumps(shared.options), str(stride)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, timeout=240)
    lives, acknowledged = json.loads(done.stdout)
    shared.clock.now = NOON + LATER * lives
    shared.reopen()
    shared.store.aggregate(lambda delivery: aggregated(delivery, waits=False), 10**6)
    shared.store.maintain()
    spans = shared.store.read.latency(shared.between(NOON - 3600, int(shared.clock.now), service="spans"))

    assert lives > acknowledged > 10
    # Batches that were committed without an acknowledgement were detected as duplicates when repeated.
    assert requests(shared) == (5 + 3) * lives
    assert shared.store.waiting().parcels == 0
    # The sum 1 + 2 + ... nanoseconds detects a span that is counted twice in place of another.
    assert round(spans.sum * NS) == sum(range(1, 3 * lives + 1))
    check_tiers(shared)


def batch(number: int) -> Batch:
    at = NOON + LATER * number
    points = PointAggregator().points(Request({"forward": 10**6, "queue": 5000}, at - step * 40) for step in range(5))
    return Batch(f"batch-{number}", points, spans=b"%d %d %d" % (3 * number + 1, 3 * number + 2, 3 * number + 3))


def aggregated(delivery: AggregationInput, *, waits: bool = True) -> AggregationResult:
    """Return spans with an even time as requests, and let the others wait, if they may."""
    spans = [int(span) for parcel in delivery.load(delivery.parcels) for span in parcel.spans.split()]
    now = [span for span in spans if span % 2 == 0 or not waits]
    later = b" ".join(b"%d" % span for span in spans if span not in now)
    points = PointAggregator().points(Request({"forward": span}, delivery.now - 100, Series("spans")) for span in now)
    remaining = [Parcel(delivery.now, counted=False, spans=later)] if later else []
    return AggregationResult(points, [], [parcel.id for parcel in delivery.parcels], remaining)


def live(store: Store, number: int, last_step: int, reports: int) -> None:
    """Repeat all batches before *number*, write that one, aggregate and maintain; die before step *last_step*.

    A step is a statement, a begin or a commit.
    """
    left = [last_step]

    def step(*_: object) -> None:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    for name in ("before_cursor_execute", "begin", "commit"):
        event.listen(store.engine, name, step)
    store.write([batch(sent) for sent in range(number)])
    store.write([batch(number)])
    os.write(reports, b"x")
    store.aggregate(aggregated, 10**6)
    store.maintain()
    os.write(reports, b"!")
    store.close()


def main() -> None:
    """Fork processes that die later and later, until one completes; print their number, and how many acknowledged."""
    url, options, stride = sys.argv[1:]
    number, acknowledged, report = 0, 0, b""
    while b"!" not in report:
        reading, writing = os.pipe()
        if (pid := os.fork()) == 0:
            store = Store.open(url, clock=Clock(NOON + LATER * number), **json.loads(options))
            live(store, number, 1 + number * int(stride), writing)
            os._exit(0)
        os.close(writing)
        status = os.waitpid(pid, 0)[1]
        assert os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 0, status
        report = os.read(reading, 10)
        os.close(reading)
        acknowledged += b"x" in report
        number += 1
    print(json.dumps([number, acknowledged]))


if __name__ == "__main__":
    main()
