"""How much load each version of a service was seen under, step by step, and the curve fitted to it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import numpy as np
import pandas as pd

from ..capacity import MIN_STEPS, Capacity, Curve, Refusal, capacity, fit
from ..figures.time_axis import STEPS, TimeAxis, step_for
from ..format import MIN_REQUESTS_ABOVE, needed, percentile, span, whole
from .measures import measure
from .page import Context

# In a step that another version shares, this one's requests are not the load.
_ALONE = 0.9
# A step that the window cuts is shorter than it says.
_WHOLE = 0.95
_BUCKET = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class Load:
    """What one version was seen to serve.

    Args:
        version: Its name.
        steps: Columns at (UTC), n (requests), rate (requests a second), latency (the percentile, seconds); only steps that
            it served alone, that the window does not cut, and that have requests enough for the percentile.
        step: How wide a step is.
        curve: The curve, or why there is none.
        capacity: None without a curve or without a threshold.
    """

    version: str
    steps: pd.DataFrame
    step: timedelta
    curve: Curve | Refusal
    capacity: Capacity | None


@dataclass(frozen=True, slots=True)
class Loads:
    """The version the page is about, and the one before.

    Args:
        now: The version of the address, else the newest with requests in the window.
        before: The one before it, over as long a time up to its last request; None where there is none.
        quantile: The percentile that counts: what the objective promises, else p99.
        threshold_seconds: What the objective promises for it; None without an objective about latency.
    """

    now: Load
    before: Load | None
    quantile: float
    threshold_seconds: float | None

    @property
    def name(self) -> str:
        """The name of the percentile."""
        return percentile(self.quantile)


def loads_of(context: Context) -> Loads:
    """Return what the version of *context* and the one before were seen to serve."""
    promise, threshold = context.promise, context.threshold_seconds
    quantile = promise.slo.objective if promise else 0.99
    versions = context.versions
    names = [str(each) for each in versions["version"]]
    served = [name for name, n in zip(names, versions["requests"], strict=True) if n > 0]
    chosen = context.view.part.get("v") or (served or names)[-1]
    at = names.index(chosen) if chosen in names else len(names) - 1
    first = max(context.axis.start, _moment(versions["first_seen"].iloc[at]))
    now = _load(context, names[at], (first, context.view.end), quantile, threshold)
    before = None
    if at > 0:
        last = min(_moment(versions["last_seen"].iloc[at - 1]) + _BUCKET, context.view.end)
        first = max(last - (context.view.end - context.view.start), _moment(versions["first_seen"].iloc[at - 1]))
        before = _load(context, names[at - 1], (first, last), quantile, threshold) if first < last else None
    return Loads(now, before if before is not None and len(before.steps) else None, quantile, threshold)


def why_none(load: Load, quantile: float) -> str:
    """Say why no curve was fitted, and what would help."""
    if isinstance(load.curve, Curve):
        return ""
    if len(load.steps) >= MIN_STEPS:
        return f"{load.curve.text}."
    takes = f"{percentile(quantile)} takes {whole(needed(quantile))} requests, here {span(load.step)}"
    return f"{load.curve.text}: {takes}. A longer window has more steps."


def _load(
    context: Context, version: str, window: tuple[datetime, datetime], quantile: float, threshold: float | None
) -> Load:
    source, (start, end) = context.source, window
    selection = replace(context.selection, start=start, end=end, version=version)
    requests = measure(source, selection).requests
    step = _step(end - start, requests, quantile)
    name = percentile(quantile)
    own = source.ask(source.read.quantiles_over_time, selection, (quantile,), step)
    everyone = source.ask(source.read.quantiles_over_time, replace(selection, version=None), (quantile,), step)
    real = timedelta(seconds=float(own.attrs.get("step_seconds") or step.total_seconds()))
    axis = TimeAxis(start, end, real, context.view.zone)
    found = own.merge(everyone[["at", "n"]], on="at", suffixes=("", "_all"))
    covered = axis.covered_seconds(found["at"])
    kept = (found["n"] >= _ALONE * found["n_all"]) & (covered >= _WHOLE * real.total_seconds())
    kept &= found["n"] * (1 - quantile) >= MIN_REQUESTS_ABOVE - 1e-9
    if context.view.live and len(found) and end == context.view.end:
        # Agents have not sent all of the newest step yet.
        kept &= found["at"] < found["at"].max()
    steps = found.loc[kept, ["at", "n"]].reset_index(drop=True)
    steps["rate"] = steps["n"] / real.total_seconds()
    steps["latency"] = found.loc[kept, name].to_numpy(dtype=float)
    rate, latency = (steps[each].to_numpy(dtype=float) for each in ("rate", "latency"))
    curve = fit(rate, latency)
    room = capacity(curve, rate, latency, threshold) if isinstance(curve, Curve) and threshold is not None else None
    return Load(version, steps, real, curve, room)


def _step(length: timedelta, requests: int, quantile: float) -> timedelta:
    """Return the finest step that cuts *length* into at most 120 and has requests enough for the percentile, usually."""
    # Half as many again: at night there are fewer than on average.
    wanted = 1.5 * needed(quantile) / max(requests / length.total_seconds(), 1e-9)
    enough = next((step for step in STEPS if step.total_seconds() >= wanted), STEPS[-1])
    return max(step_for(length), enough)


def _moment(at: object) -> datetime:
    return pd.Timestamp(at).to_pydatetime()  # pyright: ignore[reportArgumentType] - pandas' own timestamps, typed as object


def arrays(load: Load) -> tuple[np.ndarray, np.ndarray]:
    """Return the rates and latencies of *load*."""
    return load.steps["rate"].to_numpy(dtype=float), load.steps["latency"].to_numpy(dtype=float)
