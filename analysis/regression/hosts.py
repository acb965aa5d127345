"""Slow machines: how much of a growth other services on the same hosts explain, as control groups.

A change of a service reaches other services only where these wait for it, so only stages in which a service works are compared.
The second largest growth of a service's stages counts, because its own changes slow one stage.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

import numpy as np
from numpy.typing import NDArray

from ...core.hardware import host_of
from ...core.stages import BY_KEY, OVERHEAD, UNTIMED
from ..replicas import ReplicaTable

Floats = NDArray[np.float64]
# Minimum growth that is no chance [standard errors], and that of a control group [log ratio].
_SURE, _MIN_GROWTH = 2.5, 0.03
# Minimum number of steps with requests on each side, from which the error is estimated.
_MIN_STEPS = 5


def share_explained_by_hosts(replica_table: ReplicaTable, others: Sequence[ReplicaTable], onset: float) -> float:
    """Return the share of the growth of the work of *replica_table* since *onset* that other services on its hosts explain, in [0, 1]."""
    grown = explained = 0.0
    for host in sorted({host_of(replica.place) for replica in replica_table.replicas}):
        requests, stages = _on_host(replica_table, host)
        is_after = replica_table.starts >= onset
        before, after = ~is_after & (requests > 0), is_after & (requests > 0)
        if not before.any() or not after.any():
            continue
        work = sum(stages.values(), np.zeros(len(requests)))
        usual = work[before].sum() / requests[before].sum()
        more = usual * math.expm1(_sure_growth(requests, work, before, after)) * requests[after].sum()
        growths = [growth for table in others if (growth := _common_growth(table, host, onset)) is not None]
        by_host = usual * math.expm1(median(growths)) * requests[after].sum() if growths else 0.0
        grown += more
        explained += min(by_host, more)
    return explained / grown if grown > 0 else 0.0


def _on_host(table: ReplicaTable, host: str) -> tuple[Floats, dict[str, Floats]]:
    """Return the requests of *table* on *host*, and the time in each stage in which it works, by step."""
    requests = np.zeros(len(table.starts))
    stages: dict[str, Floats] = {}
    for replica in table.replicas:
        if host_of(replica.place) == host:
            requests += replica.requests.sum(axis=1)
            for stage, spent in replica.stages.items():
                if _is_work(stage):
                    stages[stage] = stages.get(stage, np.zeros(len(spent))) + spent
    return requests, stages


def _is_work(stage: str) -> bool:
    definition = BY_KEY.get(stage)
    return stage not in (OVERHEAD, UNTIMED) and not (definition and definition.waiting)


def _common_growth(table: ReplicaTable, host: str, onset: float) -> float | None:
    """Return the log ratio by which several stages of a service grew on *host*, 0 if uncertain; None with too few requests."""
    requests, stages = _on_host(table, host)
    is_after = table.starts >= onset
    before, after = ~is_after & (requests > 0), is_after & (requests > 0)
    if min(before.sum(), after.sum()) < _MIN_STEPS:
        return None
    grown = sorted(
        (_sure_growth(requests, spent, before, after) for spent in stages.values() if spent.any()), reverse=True
    )
    common = grown[:2][-1] if grown else None
    return common if common is None or common >= _MIN_GROWTH else 0.0


def _sure_growth(requests: Floats, spent: Floats, before: NDArray[np.bool_], after: NDArray[np.bool_]) -> float:
    """Return the log ratio of the mean time per request, or 0 within its error."""
    means, variance = zip(*(_mean(requests[side], spent[side]) for side in (before, after)), strict=True)
    if min(means) <= 0:
        return 0.0
    growth = math.log(means[1] / means[0])
    return growth if growth >= _SURE * math.sqrt(sum(variance)) else 0.0


def _mean(requests: Floats, spent: Floats) -> tuple[float, float]:
    """Return the mean time per request over steps, and its variance relative to its square (ratio estimator)."""
    mean = float(spent.sum() / requests.sum())
    around = spent - mean * requests
    return mean, float((around**2).sum() / max(spent.sum(), 1e-12) ** 2)
