"""Waterfall of one retained request: order, position and device of its spans."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..core.names import DEVICE, TIMING
from ..core.stages import UNEXPLAINED

NS = 1e9
GPU, CPU, NETWORK, WAITING, OTHER_SERVICES = "GPU", "CPU", "Network", "Waiting", "Other services"
PLACES = (NETWORK, WAITING, CPU, GPU, OTHER_SERVICES)
_BY_STAGE = {"network": NETWORK, "queue": WAITING, "dependency": OTHER_SERVICES}
# Stages that run on the device of the model; all others run on the CPU.
_ON_THE_DEVICE = {"forward", "prefill", "decode", "h2d", "d2h"}


def wall_seconds(duration_ns: int) -> float:
    """Return the wall time of a request in seconds, always above zero."""
    return max(duration_ns / NS, 1e-9)


def spans_by_start(spans: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(spans, key=lambda span: int(span["start_ns"]))


def unexplained_ns(spans: Iterable[Mapping[str, Any]], stages_ns: Mapping[str, int]) -> dict[str, int]:
    """Return the time of the unexplained stages of a request that no span shows, in nanoseconds.

    >>> unexplained_ns([{"stage": "forward"}], {"forward": 5, "handler": 2, "overhead": 0})
    {'handler': 2}
    """
    shown = {span["stage"] for span in spans}
    return {stage: stages_ns[stage] for stage in UNEXPLAINED if stages_ns.get(stage) and stage not in shown}


def position_of(span: Mapping[str, Any], whole: float) -> tuple[float, float]:
    """Return left edge and width of *span* in percent of *whole* seconds, clipped to 0-100 % against clock errors."""
    start, end = (float(span["start_ns"]), float(span["start_ns"]) + float(span["duration_ns"]))
    left, right = (min(max(moment / NS / whole * 100, 0.0), 100.0) for moment in (start, end))
    return left, right - left


def lane_of(span: Mapping[str, Any], device: str) -> str:
    """Return the hardware on which *span* ran; *device* is the device of the request's model.

    >>> lane_of({"stage": "forward", "attributes": {}}, "cuda:0"), lane_of({"stage": "tokenize"}, "cuda:0")
    ('GPU', 'CPU')
    """
    stage = str(span["stage"])
    if stage in _BY_STAGE:
        return _BY_STAGE[stage]
    facts = dict(span.get("attributes") or {})
    if facts.get(TIMING) in {"reported", "averaged"}:
        return OTHER_SERVICES
    where = str(facts.get(DEVICE) or (device if stage in _ON_THE_DEVICE else "")).lower()
    is_gpu = facts.get(TIMING) == "gpu" or where.startswith(("cuda", "gpu", "tensorrt", "rocm", "mps"))
    return GPU if is_gpu else CPU


def busy_ns(spans: Sequence[Mapping[str, Any]]) -> int:
    """Return the time [ns] during which at least one of *spans* was running."""
    total, reached = 0, 0
    for span in sorted(spans, key=lambda span: int(span["start_ns"])):
        start = max(int(span["start_ns"]), reached)
        end = int(span["start_ns"]) + int(span["duration_ns"])
        total += max(end - start, 0)
        reached = max(reached, end)
    return total
