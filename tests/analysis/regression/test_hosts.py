"""The share of a growth that other services on the same hosts explain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelens.analysis.regression.hosts import share_explained_by_hosts
from stagelens.analysis.replicas import ReplicaCounts, ReplicaTable

MINUTE, BEFORE, AFTER = 60, 60, 20
ONSET = float(BEFORE * MINUTE)
USUAL = {"forward": 30.0, "preprocess": 10.0, "postprocess": 5.0, "queue": 20.0, "dependency": 8.0}
NODES = ("node-0", "node-1")
CPU: Mapping[str, float] = dict.fromkeys(("preprocess", "postprocess"), 1.2)


def on_all(factors: Mapping[str, float]) -> dict[str, Mapping[str, float]]:
    """Return the same *factors* for every node."""
    return dict.fromkeys(NODES, factors)


def table(seed: int, slower: Mapping[str, Mapping[str, float]], nodes: Sequence[str] = NODES) -> ReplicaTable:
    """Return requests of one replica on each node; *slower* are factors since the onset by node and stage."""
    rng = np.random.default_rng(seed)
    replicas: list[ReplicaCounts] = []
    for node in nodes:
        n = rng.poisson(300, BEFORE + AFTER)
        factors = {stage: np.ones(BEFORE + AFTER) for stage in USUAL}
        for stage, factor in slower.get(node, {}).items():
            factors[stage][BEFORE:] = factor
        stages = {
            stage: (1e3 * ms * factors[stage] * rng.gamma(5 * n, 1 / 5)).astype(np.int64) for stage, ms in USUAL.items()
        }
        replicas.append(ReplicaCounts(f"{node}:{seed}", n[:, None], stages))
    return ReplicaTable(2, np.array([0]), MINUTE * np.arange(BEFORE + AFTER), replicas)


def test_a_slow_host_explains_the_growth_on_it() -> None:
    slow = {"node-1": CPU}

    assert share_explained_by_hosts(table(1, slow), [table(2, slow), table(3, slow)], ONSET) > 0.9


@pytest.mark.parametrize("stages", [{"dependency": 3.0, "queue": 3.0}, {"forward": 1.5}], ids=["callers", "changed"])
def test_a_change_of_its_own_is_not_explained(stages: Mapping[str, float]) -> None:
    slower = on_all({"preprocess": 1.4})
    others = [table(2, on_all(stages)), table(3, {})]

    assert share_explained_by_hosts(table(1, slower), others, ONSET) == 0


def test_only_services_on_the_same_hosts_are_compared() -> None:
    own, elsewhere = table(1, on_all(CPU)), table(2, {"node-2": CPU}, nodes=("node-2",))
    early = ReplicaTable(2, np.array([0]), MINUTE * np.arange(BEFORE + AFTER) - 1_000 * MINUTE, elsewhere.replicas)

    assert share_explained_by_hosts(own, [elsewhere], ONSET) == 0
    assert share_explained_by_hosts(own, [early], ONSET) == 0
    assert share_explained_by_hosts(own, [], ONSET) == 0


def test_a_change_on_a_slow_host_is_explained_in_part() -> None:
    both = {stage: 1.5 * CPU.get(stage, 1.2) for stage in ("forward", "preprocess", "postprocess")}
    slow = on_all(dict.fromkeys(("forward", "preprocess", "postprocess"), 1.2))
    share = share_explained_by_hosts(table(1, on_all(both)), [table(2, slow)], ONSET)

    assert share == pytest.approx(0.2 / 0.8, abs=0.05)


@given(seed=st.integers(0, 10_000), factor=st.floats(0.5, 2.0), other=st.floats(0.5, 2.0))
def test_the_share_is_a_share(seed: int, factor: float, other: float) -> None:
    own, beside = ({"node-0": dict.fromkeys(USUAL, each)} for each in (factor, other))

    assert 0 <= share_explained_by_hosts(table(seed, own), [table(seed + 1, beside)], ONSET) <= 1
