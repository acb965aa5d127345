"""Kill -9 between any two steps: acknowledged batches are stored once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.store.store_contents import added_totals, contents, counted, known, ledger, requests, totals
from tests.support.raw_requests import NOON, Site

pytestmark = [pytest.mark.stacks, pytest.mark.flaky(reruns=0)]

ROOT = Path(__file__).parents[2]
# Script that forks processes, which each repeat all previous batches, write a new one and run maintenance. Each process dies
# before a later step (a statement, a begin or a commit), until one completes. The script prints the number of steps and the
# number of acknowledged batches.
DYING = """
import json, os, signal, sys
from sqlalchemy import event
from tests.support.raw_requests import NOON, Clock, PointAggregator, Request
from stagelens.store import Batch, Store

url, options, stride = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])

def batch(number):
    at = NOON + 600 * number
    return Batch(f"batch-{number}", PointAggregator().points([Request({"forward": 10**6, "queue": 5000}, at - step * 40) for step in range(5)]))

def live(number, last_step, told):
    store = Store.open(url, clock=Clock(NOON + 600 * number), **options)
    left = [last_step]
    def step(*_):
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    for name in ("before_cursor_execute", "begin", "commit"):
        event.listen(store.engine, name, step)
    store.write([batch(sent) for sent in range(number)])
    store.write([batch(number)])
    os.write(told, b"x")
    store.maintain()
    os.write(told, b"!")
    store.close()
    os._exit(0)

number, acknowledged, last_step, ended = 0, 0, 1, False
while not ended:
    answers, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        live(number, last_step, told)
    os.close(told)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 0, status
    said = os.read(answers, 10)
    os.close(answers)
    acknowledged += b"x" in said
    ended = b"!" in said
    number += 1
    last_step += stride
print(json.dumps([number, acknowledged]))
"""


def test_acknowledged_batches_survive_a_kill_and_count_once(shared: Site) -> None:
    # With points in ClickHouse a process takes four times as long.
    stride = 11 if "points_url" in shared.options else 7
    shared.close()
    command = [sys.executable, "-c", DYING, shared.url, json.dumps(shared.options), str(stride)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, timeout=240)
    lives, acknowledged = json.loads(done.stdout)
    shared.clock.now = NOON + 600 * lives
    shared.reopen()
    shared.store.maintain()

    assert lives > acknowledged > 10
    # Batches that were committed without an acknowledgement were detected as duplicates when repeated.
    assert requests(shared) == 5 * lives
    for tier in known(shared)[1:]:
        assert contents(shared, tier.seconds, tier.seconds) == contents(shared, 10, tier.seconds, tier.watermark)
        assert totals(shared, tier.seconds) == added_totals(shared, tier.seconds)
    assert ledger(shared) == counted(shared)
