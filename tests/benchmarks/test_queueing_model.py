"""The queueing model of `benchmarks/regressions.py`."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def queueing(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    importlib.import_module("queueing.world")
    return importlib.import_module("queueing")


def test_requests_wait_until_those_before_them_are_completed(queueing: Any) -> None:
    rng = np.random.default_rng(1)
    arrived, held = np.sort(rng.uniform(0, 100, 500)), rng.exponential(0.19, 500)
    first, free = queueing.simulate.wait(arrived[:200], held[:200], 3.0)
    second, _ = queueing.simulate.wait(arrived[200:], held[200:], free)
    starts: list[float] = []
    done = 3.0
    for at, seconds in zip(arrived.tolist(), held.tolist(), strict=True):
        starts.append(max(at, done))
        done = starts[-1] + seconds
    assert np.concatenate((first, second)) == pytest.approx(np.array(starts) - arrived)


def test_a_noisy_neighbour_slows_the_replicas_of_all_services_on_its_host(queueing: Any) -> None:
    world = queueing.world.World(11008)
    services = [(world.service, world.conditions), *zip(world.other_services, world.other_conditions, strict=True)]
    growth: dict[str, list[float]] = {}
    for service, conditions in services:
        usual = conditions.at(slice(0, 120))
        slow = replace(usual, host=usual.host * np.array([[1.3], [1.0]]))
        before, after = (_overheads(queueing.simulate.simulate(service, each, 0, 0)[0]) for each in (usual, slow))
        for place, seconds in after.items():
            growth.setdefault(place.partition(":")[0], []).append(seconds / before[place])
    assert growth["node-0"] == pytest.approx([1.3] * 6, rel=1e-3)
    assert growth["node-1"] == pytest.approx([1.0] * 6, rel=1e-3)


def _overheads(counts: Any) -> dict[str, float]:
    """Return the mean time in a CPU stage by replica."""
    return {
        replica.place: replica.stages["overhead"].sum() / replica.requests.sum()
        for replica in counts.replicas().replicas
        if replica.requests.any()
    }
