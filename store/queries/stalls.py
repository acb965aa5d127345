"""What held up the requests at a percentile: on top of the breakdown, of the same requests and with the same exactness."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from ...core.names import STALL_TIME
from ..points import Question, Snapshot
from ..selection import Selection
from .breakdown import COLUMNS, METRICS, Mixture, row
from .fetch import fetch
from .frames import staged


def stalls(snapshot: Snapshot, selection: Selection, percentiles: Sequence[float]) -> pd.DataFrame:
    """See `Reader.stalls`."""
    # Most services have none, and need not be read again.
    if not len(fetch(snapshot, Question(selection, (STALL_TIME,)))):
        return staged(COLUMNS, [])
    mixed = Mixture(fetch(snapshot, Question(selection, (*METRICS, STALL_TIME))))
    bands = zip(percentiles, mixed.bands(percentiles), strict=True)
    return staged(COLUMNS, [row(quantile, band, band.held_up) for quantile, band in bands])
