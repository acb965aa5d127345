"""Overhead budget of an agent with a collector: beyond it, requests are still counted, without stages."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from stagelens.core.names import AGENT_BACKGROUND, AGENT_COST
from stagelens.core.stages import UNTIMED
from tests.collector.conftest import last_day

if TYPE_CHECKING:
    from conftest import Served

pytestmark = [pytest.mark.stacks, pytest.mark.flaky(reruns=0)]

# Each stage costs simulated ten microseconds, so that the result does not depend on the machine.
SERVICE = """
{before}
import os, time
import stagelens
from stagelens.instrumentors import recorder, recorder_state
from stagelens.instrumentors.agent import govern
from stagelens.instrumentors.recorder_state import state

govern.OVER_BUDGET_SECONDS = 0.5
govern.PathCost.of_ns = lambda self, marks, *, timed=True: marks * (10_000 if timed else 10)
calibrate, calibrations = govern.PathCost.calibrate, []
govern.PathCost.calibrate = lambda self: (calibrate(self), calibrations.append(self))

@stagelens.stage("forward")
def part():
    pass

@stagelens.request("predict")
def serve():
    for _ in range(200):
        part()

@stagelens.request("first")
def first():
    part()

def some():
    for _ in range(20):
        serve()
    time.sleep(0.02)
    return 20

until = time.monotonic() + 50
served = before = 0
# The cost of a request is unknown before the first calibration.
while not calibrations:
    assert time.monotonic() < until, "it was not calibrated"
    first()
    before += 1
    time.sleep(0.02)
while state.mode != recorder_state.WITHOUT_STAGES:
    assert time.monotonic() < until, "it was not over its budget"
    served += some()
for _ in range(20):
    served += some()
child = os.fork()
if child == 0:
    assert state.mode & ~recorder_state.CALIBRATION == recorder_state.WITH_STAGES
    with stagelens.request("child"), stagelens.stage("postprocess"):
        pass
    recorder.flush(30)
    os._exit(0)
os.waitpid(child, 0)
recorder.flush(30)
print(served, before)
"""
GEVENT = "from gevent import monkey; monkey.patch_all()"


@pytest.mark.parametrize("before", ["", GEVENT], ids=["threads", "greenlets"])
def test_an_agent_over_its_budget_counts_requests_only_and_reports_it(served: Served, before: str) -> None:
    env = os.environ | {
        "OTEL_EXPORTER_OTLP_ENDPOINT": served.url,
        "OTEL_SERVICE_NAME": "shop",
        "STAGELENS_EXPORT_INTERVAL": "500ms",
        "STAGELENS_OVERHEAD_BUDGET": "1ms",
    }
    script = SERVICE.format(before=before)
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=100, check=False
    )
    asked, read = last_day("shop"), served.store.read

    assert done.returncode == 0, done.stderr
    assert "from now on requests are counted without their stages" in done.stderr
    served_requests, before_calibration = map(int, done.stdout.split())
    assert read.latency(asked).count == served_requests + before_calibration + 1

    asked = replace(asked, route="predict")
    costs, behind = read.streams(asked, AGENT_COST), read.streams(asked, AGENT_BACKGROUND)
    untimed = read.stage_latency(asked)[UNTIMED]

    assert set(costs) == set(behind) == {"all", "requests_only"}
    assert costs["all"].count + costs["requests_only"].count == served_requests
    assert costs["requests_only"].count == untimed.count >= 400
    assert costs["requests_only"].sum / untimed.count < costs["all"].sum / costs["all"].count
