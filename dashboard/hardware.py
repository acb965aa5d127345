"""How busy the machines of a service were, and whether they were busier when its requests were slow."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from ..core.hardware import CPU_SHARE, GPU, GPU_MEMORY, host_of

# The slowest of the steps are compared with the others; with fewer in all, chance decides.
SLOW_SHARE, MIN_STEPS = 0.1, 20


@dataclass(frozen=True, slots=True)
class Compared:
    """What was so in the slowest steps, and in the others.

    Args:
        threshold_seconds: A step is slow above it.
        slow: The mean in the slow steps. [ratio]
        other: The mean in the others. [ratio]
    """

    threshold_seconds: float
    slow: float
    other: float


def busy(frame: pd.DataFrame) -> tuple[str, pd.DataFrame]:
    """Return what the service's work runs on, GPU or CPU, and how busy that was.

    Where there are GPUs it is they, whoever uses them. Else it is the share that all processes of the service on a machine have
    of the CPUs they may use.

    Args:
        frame: As `Reader.hardware` answers.

    Returns:
        "GPU" or "CPU", and columns at, place, share; empty where nothing tells it.
    """
    if frame["measure"].isin([GPU.key, GPU_MEMORY.key]).any():
        own = frame[frame["measure"] == GPU.key]
        return "GPU", own[["at", "place"]].assign(share=own["mean"])
    own = frame[frame["measure"] == CPU_SHARE.key]
    hosts = own[["at", "mean"]].assign(place=[host_of(each) for each in own["place"]])
    added = hosts.groupby(["at", "place"])["mean"].sum().clip(upper=1.0)
    return "CPU", added.rename("share").reset_index()


def busy_share(frame: pd.DataFrame) -> float | None:
    """Return which share of its time the machines were busy, over all of them; None where nothing tells it."""
    _, shares = busy(frame)
    return float(shares["share"].mean()) if len(shares) else None


def when_slow(values: pd.DataFrame, tail: pd.DataFrame) -> Compared | None:
    """Compare the steps in which requests were slowest with the others.

    Args:
        values: Columns at, share.
        tail: Columns at, value: how long a slow request took in each step. [seconds]

    Returns:
        None where there are too few steps that tell both.
    """
    both = values.groupby("at")["share"].mean().to_frame().join(tail.set_index("at")["value"], how="inner").dropna()
    if len(both) < MIN_STEPS:
        return None
    threshold = float(both["value"].quantile(1 - SLOW_SHARE))
    slow = both["value"] > threshold
    if not slow.any():
        return None
    return Compared(threshold, float(both["share"][slow].mean()), float(both["share"][~slow].mean()))


def of_measure(frame: pd.DataFrame, measure: str) -> pd.DataFrame:
    """Return columns at, place, share of one measure that is a share."""
    own = frame[frame["measure"] == measure]
    return own[["at", "place"]].assign(share=own["mean"])
