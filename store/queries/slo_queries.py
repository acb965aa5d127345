"""Questions to the store about promises: what broke them, how much, and whether anybody still listens."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

import pandas as pd

from ..indicator import Indicator
from ..selection import Selection, moment
from . import bad_over_time, indicators, liveness, slo
from .base import Questions
from .indicators import Tally
from .slo import SloCounts


class SloQuestions(Questions):
    """How many requests were bad, and which stages made them so."""

    def slo_counts(self, selection: Selection, threshold_seconds: float | None) -> SloCounts:
        """Return how many requests there are, and how many failed or took longer than *threshold_seconds* (None: failed)."""
        with self._snapshot() as snapshot:
            return slo.slo_counts(snapshot, selection, threshold_seconds)

    def slo_series(self, selection: Selection, threshold_seconds: float | None, step: timedelta) -> pd.DataFrame:
        """Return the same for each step that has requests.

        Returns:
            Columns at (UTC), total, bad.
        """
        with self._snapshot() as snapshot:
            return slo.slo_series(snapshot, selection, threshold_seconds, step)

    def bad_breakdown(self, selection: Selection, threshold_seconds: float | None) -> pd.DataFrame:
        """Return how much more time bad requests spend in each stage than good ones.

        Returns:
            Columns stage, bad_mean_seconds, good_mean_seconds (time in the stage a bad or good request; 0 without any),
            excess_seconds (bad - good), share (of the whole excess), by falling excess.
        """
        with self._snapshot() as snapshot:
            return slo.bad_breakdown(snapshot, selection, threshold_seconds)

    def bad_over_time(self, selection: Selection, threshold_seconds: float | None, step: timedelta) -> pd.DataFrame:
        """Return how many requests were bad in each step that has any requests, by the stage that made them so.

        A step's slow requests are shared out among the stages they spend more time in than the good ones of the whole
        selection do, in proportion to how much more; so are the failed ones where they took half as long again as good
        ones, and otherwise they are unexplained. The columns of a row add up to its `bad`, which is that of `slo_series`.

        Returns:
            Columns at (UTC), bad, unexplained, and one for each stage that explains any; counts, whole or not.
        """
        with self._snapshot() as snapshot:
            return bad_over_time.bad_over_time(snapshot, selection, threshold_seconds, step)

    def tally(self, selection: Selection, indicator: Indicator) -> Tally:
        """Return how much *indicator* counts in *selection*, and how much of it was bad."""
        return self.tallies([selection], indicator)[0]

    def tallies(self, selections: Iterable[Selection], indicator: Indicator) -> list[Tally]:
        """Return the same for each of *selections*, all as of one moment."""
        with self._snapshot() as snapshot:
            return [indicators.tally(snapshot, selection, indicator) for selection in selections]

    def tally_series(self, selection: Selection, indicator: Indicator, step: timedelta) -> pd.DataFrame:
        """Return the same for each step that has any.

        Returns:
            Columns at (UTC), requests (or minutes, for `freshness`), total and bad (in the unit of the indicator: requests,
            seconds of `coverage`, minutes of `freshness`).
        """
        with self._snapshot() as snapshot:
            return indicators.tally_series(snapshot, selection, indicator, step)

    def first_seen(self, selection: Selection) -> datetime | None:
        """Return when anything of *selection* was first seen, whatever its window; None for never. Exact to 10 s."""
        with self._snapshot() as snapshot:
            found = indicators.first_seen(snapshot, selection)
        return None if found is None else moment(found)

    def stale_since(self, now: datetime, patience: timedelta) -> datetime | None:
        """Return since when nothing came, if the collector did nothing else either for *patience*; None while it works."""
        with self._snapshot() as snapshot:
            return liveness.stale_since(snapshot, int(now.timestamp()), patience)
