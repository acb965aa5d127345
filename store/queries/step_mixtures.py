"""Where the time goes, step by step: what `breakdown.Mixture` says of one step, for many at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...core.names import REQUEST_DURATION, STAGE_TIME
from ...core.stages import OVERHEAD
from ..columns import Columns, Floats, Steps
from ..encoding import Ints
from .breakdown import MIN_REQUESTS
from .step_counts import Cut, StepCounts, alike, count_at, count_steps, cut


@dataclass(frozen=True, slots=True)
class StepMixtures:
    """The requests of steps that are equally fine, with the time they spent in each stage.

    Args:
        stages: Names of the stages.
        latency: The requests, at their own scale.
        requests: The requests, at the scale they share with `times`.
        times: The time they spent, in microseconds; of the same steps.
    """

    stages: tuple[str, ...]
    latency: StepCounts
    requests: StepCounts
    times: StepCounts

    def rows(self, quantile: float | None) -> Iterator[dict[str, object]]:
        """Yield for each step its start, requests, the latency at *quantile* (None: the mean), and its share by stage; in seconds."""
        value, spent = self._mean() if quantile is None else self._at(quantile)
        seconds = spent / np.maximum(spent.sum(axis=1), 1)[:, None] * value[:, None]
        told = zip(self.latency.starts.tolist(), self.latency.total.tolist(), value.tolist(), strict=True)
        for (at, n, whole), some, by_stage in zip(told, spent.tolist(), seconds.tolist(), strict=True):
            named = zip(self.stages, some, by_stage, strict=True)
            # Time nobody claimed, as from a client that knows no stages, is overhead.
            known = {stage: each for stage, any_of_it, each in named if any_of_it} or {OVERHEAD: whole}
            yield {"at": at, "n": n, "value_seconds": whole, **known}

    def _mean(self) -> tuple[Floats, Ints]:
        return self.latency.sum.sum(axis=1) / self.latency.total, self.times.amount.sum(axis=2)

    def _at(self, quantile: float) -> tuple[Floats, Ints]:
        """Return the latency, and the time that the requests there spent by stage; shape (n, stages)."""
        place = self.latency.places_of(quantile)
        # The last is where -1 points to: requests that took no time spent it nowhere.
        centre = np.append(self.latency.index >> (self.latency.scale - self.requests.scale), 0)[place]
        reach = _reaches(self.requests, centre)
        near = (np.abs(self.times.index - centre[:, None]) <= reach[:, None]) & (place >= 0)[:, None]
        return self.latency.values_at(quantile), np.where(near[:, None, :], self.times.amount, 0).sum(axis=2)


def _reaches(requests: StepCounts, centre: Ints) -> Ints:
    """Return how many buckets on both sides of *centre* it takes to hold `MIN_REQUESTS`, or all there are; shape (n,)."""
    if not len(requests.index):
        return np.zeros_like(centre)
    distance = np.abs(requests.index - centre[:, None])
    order = np.argsort(distance, axis=1, kind="stable")
    held = np.cumsum(np.take_along_axis(requests.amount.sum(axis=1), order, axis=1), axis=1)
    place = (held < np.minimum(MIN_REQUESTS, held[:, -1:])).sum(axis=1)
    return np.take_along_axis(np.take_along_axis(distance, order, axis=1), place[:, None], axis=1)[:, 0]


def step_mixtures(columns: Columns, steps: Steps) -> Iterator[StepMixtures]:
    """Yield the steps of *columns*, of `breakdown.METRICS` and sorted by time, that have requests."""
    requests, times = columns.of(REQUEST_DURATION), columns.of(STAGE_TIME)
    counted, timed = cut(requests, steps), cut(times, steps)
    shared = np.minimum(counted.scale, _scales_of(timed, counted.starts, counted.scale))
    # The latency at its own scale, so that it is the same number everywhere; shares at one both metrics have.
    for chosen in alike(counted.scale, shared):
        at, scale = counted.starts[chosen], int(shared[chosen.start])
        latency = count_steps(requests, counted, chosen, int(counted.scale[chosen.start]))
        coarse = latency if scale == latency.scale else count_steps(requests, counted, chosen, scale)
        here = times.where(np.isin(steps.of(times.times), at))
        spent = count_at(here, np.searchsorted(at, steps.of(here.times)), at, scale)
        yield StepMixtures(columns.stages, latency, coarse, spent)


def _scales_of(found: Cut, at: Ints, otherwise: NDArray[np.int64]) -> Ints:
    """Return the scales of the steps that start *at*, where *found* has them, and *otherwise* where not."""
    if not len(found.starts):
        return otherwise
    place = np.minimum(np.searchsorted(found.starts, at), len(found.starts) - 1)
    return np.where(found.starts[place] == at, found.scale[place], otherwise)
