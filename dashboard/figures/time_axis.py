"""The time axis all charts of a page share: window, step, zone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from typing import Any

import numpy as np
import pandas as pd

from ..view import BUCKET_SECONDS

# A chart has 30 to 120 steps; the store's finest bucket is 10 s.
MAX_STEPS = 120
STEPS = tuple(
    timedelta(seconds=seconds)
    for seconds in (10, 20, 30, 60, 120, 180, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400)
)
_DAY = timedelta(days=1)


def step_for(length: timedelta) -> timedelta:
    """Return the finest step that cuts *length* into at most 120.

    >>> step_for(timedelta(hours=6)), step_for(timedelta(minutes=5))
    (datetime.timedelta(seconds=180), datetime.timedelta(seconds=10))
    """
    return next((step for step in STEPS if length <= step * MAX_STEPS), STEPS[-1])


@dataclass(frozen=True, slots=True)
class TimeAxis:
    """A window of time on the x axis.

    Plotly shows the numbers it gets as UTC. They are therefore shifted to the reader's zone first.

    Args:
        start: The left end.
        end: The right end.
        step: The width of one bucket.
        zone: The reader's zone.
    """

    start: datetime
    end: datetime
    step: timedelta
    zone: tzinfo

    def place(self, at: datetime) -> float:
        """Return where *at* stands, in milliseconds of the reader's wall clock."""
        local = at.astimezone(self.zone)
        offset = local.utcoffset() or timedelta()
        return (local.timestamp() + offset.total_seconds()) * 1000

    def places(self, starts: Iterable[Any]) -> list[float]:
        """Return where the middles of the steps that begin at *starts* stand."""
        return [self.place(pd.Timestamp(at).to_pydatetime() + self.step / 2) for at in starts]

    @property
    def counted(self) -> tuple[datetime, datetime]:
        """From when to when requests are counted: a window takes the store's buckets that start in it (`store.Selection`)."""
        return _next_bucket(self.start), _next_bucket(self.end)

    def begin(self, at: datetime) -> datetime:
        """Return where the step that has *at* begins: at a multiple of its width since the epoch, which may be before the window.

        A step that takes the whole window begins with it.
        """
        first, last = self.counted
        if self.step >= last - first:
            return at
        return at - timedelta(seconds=at.timestamp() % self.step.total_seconds())

    def covered_seconds(self, starts: Iterable[Any]) -> np.ndarray:
        """Return how much time was counted in each step: the first and the last one may be cut by the window."""
        first, last = self.counted
        inside = [
            (min(self.begin(at) + self.step, last) - max(at, first)).total_seconds()
            for at in (pd.Timestamp(each).to_pydatetime() for each in starts)
        ]
        return np.maximum(np.array(inside, dtype=float), 1.0)

    def layout(self) -> dict[str, Any]:
        """Return the axis for a Plotly layout."""
        return {
            "type": "date",
            "showgrid": False,
            "tickformat": self._tick_format(),
            "nticks": 8,
            "range": [self.place(self.start), self.place(self.end)],
        }

    def _tick_format(self) -> str:
        length = self.end - self.start
        if length <= timedelta(minutes=5):
            return "%H:%M:%S"
        return "%H:%M" if length <= _DAY else "%-d %b"


def gaps_filled(frame: pd.DataFrame, axis: TimeAxis) -> pd.DataFrame:
    """Return *frame* with an empty row where a step is missing between two that are there.

    Without it a line would be drawn straight across the time nothing was received.
    """
    if frame.empty:
        return frame
    at = pd.to_datetime(frame["at"], utc=True)
    whole = pd.date_range(axis.begin(at.min().to_pydatetime()), at.max(), freq=axis.step)
    # The first step begins where the window does, which may be between two.
    whole, known = whole[whole >= at.min()], pd.DatetimeIndex(at)
    return frame.assign(at=at).set_index("at").reindex(whole.union(known)).rename_axis("at").reset_index()


def _next_bucket(at: datetime) -> datetime:
    return at + timedelta(seconds=-at.timestamp() % BUCKET_SECONDS)
