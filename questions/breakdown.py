"""Which stages the requests at a percentile spend their time in, of how many requests, and how certain.

The estimator is `analysis.breakdown.RankWindow`, also behind the queries of several services, versions or steps of time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from ..analysis.breakdown import PERCENTILES, stages_at
from ..store import Reader, Selection


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Latency by percentile and stage.

    Args:
        table: Result of `Reader.breakdown`: one row for each percentile, one column for each stage. [seconds]
    """

    table: pd.DataFrame
    shares: pd.DataFrame

    @property
    def requests(self) -> int:
        return int(self.table.attrs["requests"])

    def stages(self, percentile: float) -> dict[str, float]:
        """Return the seconds by stage at one of the percentiles, which add up to the latency; empty without requests."""
        rows = self.table[self.table["percentile"] == percentile]
        return stages_at(rows, 0) if len(rows) else {}


def breakdown(read: Reader, selection: Selection, percentiles: Sequence[float] = PERCENTILES) -> Breakdown:
    return Breakdown(*read.breakdown_with_shares(selection, percentiles))
