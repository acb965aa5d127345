"""The requests that broke an objective: which stages they spend more time in than those that kept it."""

from __future__ import annotations

from datetime import datetime

import pandas as pd

from ...analysis.comparison import StageGrowth, blame
from ...store import Reader
from ..objectives.slo import Slo
from .links import CALM_BEFORE

# Kinds of objectives about whole requests. Of any other kind no stage of a request explains why it was broken.
OF_REQUESTS = ("latency", "availability")


def bad_excess(read: Reader, slo: Slo, began: datetime, now: datetime) -> tuple[StageGrowth, ...]:
    """Return the stages that bad requests spend more time in than good ones, worst first; the good ones of the calm before too.

    Args:
        read: The store's queries.
        slo: Which requests are bad.
        began: When the trouble began.
        now: The end of it.
    """
    # Failures are reported by their number: a request that fails at once spends no time in any stage.
    if slo.kind != "latency":
        return ()
    return excess(read.bad_breakdown(slo.select(began - CALM_BEFORE, now), slo.threshold_seconds))


def excess(breakdown: pd.DataFrame) -> tuple[StageGrowth, ...]:
    """Return the stages that grew, worst first, from a frame of `Reader.bad_breakdown`."""
    return blame(breakdown.rename(columns={"excess_seconds": "delta_seconds"}))
