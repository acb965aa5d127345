"""What would a percentile be if one stage were faster? Requests are moved, and all are sorted again.

To subtract a stage's time from a percentile promises too much: other requests move up to be the new percentile. So all
requests are moved down by what they spend in the stage beyond what would be left of it, sorted by where they stand then,
and the percentiles are read again.

What single requests spent is not kept, but for every bucket of the latency what all of its requests spent together, and
how many of them the stage dominates. Those it does not dominate are taken to spend what is usual in it, its median, but
not more than the mean of the bucket; the rest belongs to those it dominates. Without that, requests that were slow for
another reason would be taken to gain as much as those that waited, and the tail would look cheaper than it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ...core.histogram import bucket_middle, rank_of
from ...core.names import REQUEST_DURATION, STAGE_DURATION
from ..columns import Columns, Counts, add_up
from ..encoding import Ints
from ..points import Question, Snapshot
from ..selection import Selection
from .breakdown import METRICS, Mixture
from .fetch import fetch
from .frames import frame

Floats: TypeAlias = NDArray[np.float64]

COLUMNS = ("percentile", "before_seconds", "after_seconds", "ceiling_seconds")


@dataclass(frozen=True, slots=True)
class Groups:
    """Requests alike in their latency and in what they spend in one stage.

    Args:
        latency: Shape (k,). [seconds]
        spent: Time in the stage, not above the latency; shape (k,). [seconds]
        requests: How many a group has; shape (k,), at least one altogether.
    """

    latency: Floats
    spent: Floats
    requests: Ints

    def quantiles(self, left: Floats, wanted: Sequence[float]) -> list[float]:
        """Return the latency at the *wanted* quantiles (nearest rank) if so much were *left* of the stage, in seconds.

        Args:
            left: Time in the stage; shape (k,). [seconds]
            wanted: [0..1]
        """
        # What is saved comes first: where that is nothing, the latency stays as it is to the last bit.
        moved = self.latency - (self.spent - left)
        order = np.argsort(moved, kind="stable")
        held = np.cumsum(self.requests[order])
        ranks = [rank_of(quantile, int(held[-1])) for quantile in wanted]
        return moved[order][np.searchsorted(held, ranks)].tolist()


def whatif(
    snapshot: Snapshot,
    selection: Selection,
    stage: str,
    percentiles: Sequence[float],
    *,
    floor: float,
    factor: float | None,
) -> pd.DataFrame:
    """See `Reader.whatif`."""
    columns = fetch(snapshot, Question(selection, (*METRICS, STAGE_DURATION)))
    rows: list[dict[str, float]] = []
    requests, floor_seconds = 0, None
    if len(columns.of(REQUEST_DURATION)):
        own = _own(columns.of(STAGE_DURATION), stage)
        groups = _groups(Mixture(columns), stage, own.value_at(0.5).value if own.total else 0.0)
        requests = int(groups.requests.sum())
        if factor is None and own.total:
            floor_seconds = own.value_at(floor).value
        rows = _rows(groups, percentiles, _left(groups.spent, floor_seconds, factor))
    made = frame(COLUMNS, rows)
    made.attrs |= {"requests": requests, "floor_seconds": floor_seconds}
    return made


def _own(durations: Columns, stage: str) -> Counts:
    """Return the distribution of the own time of *stage*."""
    return add_up(durations.where(np.array([name == stage for name in durations.stages], bool)[durations.stage]))


def _groups(mixed: Mixture, stage: str, usual_seconds: float) -> Groups:
    counts = mixed.latency
    latency = np.array([bucket_middle(index, counts.scale) for index in counts.index.tolist()], np.float64)
    requests, dominated = counts.amount.sum(axis=0), mixed.dominated_by(stage)
    in_others, in_dominated = split(latency * mixed.share_of(stage), latency, requests, dominated, usual_seconds)
    # Requests that took no time stand at zero, whatever happens to the stage.
    return Groups(
        np.concatenate(([0.0], latency, latency)),
        np.concatenate(([0.0], in_others, in_dominated)),
        np.concatenate(([counts.zero.sum()], requests - dominated, dominated)),
    )


def split(
    mean: Floats, latency: Floats, requests: Ints, dominated: Ints, usual_seconds: float
) -> tuple[Floats, Floats]:
    """Return what the requests of each bucket that the stage does not dominate spend in it, and those that it does.

    Together they spend *mean* a request; none spends more than its latency.

    Args:
        mean: What a request of the bucket spends in the stage on average, not above the latency; shape (k,). [seconds]
        latency: Shape (k,). [seconds]
        requests: Shape (k,), at least one each.
        dominated: Those the stage takes most of; shape (k,).
        usual_seconds: What is usual in the stage. [seconds]
    """
    others = requests - dominated
    total = mean * requests
    usual = np.minimum(mean, usual_seconds)
    in_dominated = np.minimum((total - others * usual) / np.maximum(dominated, 1), latency)
    in_others = (total - dominated * in_dominated) / np.maximum(others, 1)
    return np.where(others > 0, in_others, mean), np.where(dominated > 0, in_dominated, mean)


def _left(spent: Floats, floor_seconds: float | None, factor: float | None) -> Floats:
    if factor is not None:
        return spent * factor
    return spent if floor_seconds is None else np.minimum(spent, floor_seconds)


def _rows(groups: Groups, percentiles: Sequence[float], left: Floats) -> list[dict[str, float]]:
    read = [groups.quantiles(each, percentiles) for each in (groups.spent, left, np.zeros_like(left))]
    return [dict(zip(COLUMNS, values, strict=True)) for values in zip(percentiles, *read, strict=True)]
