"""Replicas of a service: the latency and the stages of the requests of each process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ReplicaCounts:
    """Requests of one replica.

    Args:
        place: Host and process of the replica.
        requests: Number of requests by step and latency bucket; shape (t, k).
        stages: Time of the requests in each stage by step; each of shape (t,). [microseconds]
    """

    place: str
    requests: Ints
    stages: Mapping[str, Ints]


@dataclass(frozen=True, slots=True)
class ReplicaTable:
    """Requests of all replicas of a service.

    Args:
        scale: Scale of the latency buckets.
        index: Latency buckets, ascending; shape (k,).
        starts: Starts of the steps; shape (t,). [Unix seconds]
        replicas: The replicas, in the order of their places.
    """

    scale: int
    index: Ints
    starts: Ints
    replicas: Sequence[ReplicaCounts]
