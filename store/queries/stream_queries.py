"""Questions to the store about requests that answer bit by bit."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pandas as pd

from ...core.histogram import Histogram
from ..selection import Selection
from . import first_token, latency, speed, streams
from .base import Questions


class StreamQuestions(Questions):
    """Tokens: how long the first one takes, how fast the others come, and how many there are."""

    def first_token_breakdown(
        self, selection: Selection, percentiles: Sequence[float], definition: str | None = None
    ) -> pd.DataFrame:
        """Return where the time to the first token goes, in the requests at each percentile of it.

        Args:
            selection: Whose requests.
            percentiles: [0..1]
            definition: How the first token was found; None for the way that most of the requests were measured by.

        Returns:
            The columns of `breakdown`, with the time to the first token for the latency. `attrs`: definition ("" without
            requests), definitions (requests of the selection by definition), requests (that are counted here), left_out
            (that are not, because their series knows other definitions too: their stages cannot be told apart).
        """
        with self._snapshot() as snapshot:
            return first_token.breakdown(snapshot, selection, percentiles, definition)

    def streams(self, selection: Selection, metric: str) -> dict[str, Histogram]:
        """Return what requests of *selection* that answer bit by bit were like, or their calls out that failed.

        Args:
            selection: Whose requests.
            metric: `names.FIRST_TOKEN`, `OUTPUT_TOKEN`, `STREAM_GAP` or `FAILED_CALL` (seconds), or `TOKENS` (tokens a request).

        Returns:
            The definition it was measured by, which must not be mixed with another, or the type of token, or what became
            of the call, to its histogram.
        """
        with self._snapshot() as snapshot:
            return latency.distributions(snapshot, selection, metric)

    def streams_over_time(
        self, selection: Selection, metric: str, key: str, quantiles: Sequence[float], step: timedelta
    ) -> pd.DataFrame:
        """Return the course of what `streams` answers as a whole.

        Args:
            selection: Whose requests.
            metric: As in `streams`.
            key: One definition, type of token, …
            quantiles: [0..1]
            step: How wide.

        Returns:
            Columns at (UTC), n (requests in the step), total (the sum of their values), and one for each quantile: p50,
            p99, p99.9, …; in seconds, or tokens.
        """
        with self._snapshot() as snapshot:
            return streams.streams_over_time(snapshot, selection, metric, key, quantiles, step=step)

    def by_band(self, selection: Selection, metric: str, definition: str) -> dict[str, Histogram]:
        """Return how the speed of an answer depends on how long the prompt or the answer was.

        Args:
            selection: Whose requests.
            metric: `names.FIRST_TOKEN_BY_INPUT` or `OUTPUT_TOKEN_BY_OUTPUT`.
            definition: How they were measured; series that know another definition too are left out.

        Returns:
            The band of the number of tokens (`core.histogram`), smallest first, to the times of its requests. [seconds]
        """
        with self._snapshot() as snapshot:
            return streams.by_band(snapshot, selection, metric, definition)

    def speed_by_load(self, selection: Selection, definition: str, step: timedelta, groups: int) -> pd.DataFrame:
        """Return how fast tokens come, by how many requests decode together.

        By Little's law that is the time all requests spend in `decode` in a second. Steps of the window are sorted by it
        and taken together in *groups* of about equally many requests; steps that the window cuts are left out.

        Args:
            selection: Whose requests.
            definition: How the time between tokens was measured.
            step: How wide; a request counts in the step it ended in.
            groups: How many at most.

        Returns:
            Columns load (mean of the group), low_load, high_load (of its steps), steps, n (requests), p50_seconds,
            p99_seconds (their mean time between two tokens), output_per_second (tokens); by rising load. `attrs`:
            step_seconds, steps (that were used), newest_load (of the last of them; None without any).
        """
        with self._snapshot() as snapshot:
            return speed.speed_by_load(snapshot, selection, definition, step, groups)
