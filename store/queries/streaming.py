"""Queries about streaming requests: time to the first token, time between tokens, token counts, and speed by load.

The first token is detected in several ways (`names.DEFINITION`), whose results are never mixed. Stage times are stored by series,
not by definition, so a breakdown is only possible for series with one definition in the window; requests of other series are left
out, and their number is returned.

The load follows from Little's law: the mean number of requests in a stage is the time that requests spend in the stage per second
of wall time. The law holds for any order and length of the requests; a request that lasts longer than a step counts in the step
in which it ended.

Source: Little, A Proof for the Queuing Formula: L = λW, Operations Research 9 (1961).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ...core import names
from ...core.columns import Ints
from ...core.histogram import TOKEN_COUNTS, Histogram
from ..selection import Selection
from ..storage import Columns, PointQuery, StageCounts, add_up
from .fetch import QueryGroup, count_at, fetch, fetch_steps, histograms_by_key, points_with_key
from .frames import frame, with_step_times
from .latency import Mixture, breakdown_frame
from .time_series import quantiles_of_steps

SPEED_COLUMNS = (*("load", "low_load", "high_load", "steps", "n"), *("p50_seconds", "p99_seconds", "output_per_second"))
_SPEED_METRICS = (names.STAGE_DURATION, names.OUTPUT_TOKEN, names.TOKENS)
_DECODE = "decode"
FIRST_TOKEN_METRICS = (names.FIRST_TOKEN, names.FIRST_TOKEN_TIME)
# Metrics by size bucket have no definition; the definition of their series is that of this metric.
_MEASURED_BY = {names.FIRST_TOKEN_BY_INPUT: names.FIRST_TOKEN, names.OUTPUT_TOKEN_BY_OUTPUT: names.OUTPUT_TOKEN}


class StreamingQueries(QueryGroup):
    """Queries of streaming requests: time to the first token, time between tokens, and number of tokens."""

    def first_token_breakdown(
        self, selection: Selection, percentiles: Sequence[float], definition: str | None = None
    ) -> pd.DataFrame:
        """Return the time to the first token by stage, for the requests at each of its percentiles.

        Returns:
            The columns of `breakdown`, with the time to the first token instead of the latency. `attrs`: definition ("" without
            requests), definitions (number of requests of the selection by definition), requests (number of counted requests),
            left_out (number of requests not counted, because their series also have other definitions).
        """
        with self._snapshot() as snapshot:
            points = points_of_definition(
                fetch(snapshot, PointQuery(selection, FIRST_TOKEN_METRICS, by="series")), names.FIRST_TOKEN, definition
            )
            counted = points.columns.of(names.FIRST_TOKEN)
            mixed = Mixture(points.columns, FIRST_TOKEN_METRICS) if len(counted) else None
            table = breakdown_frame(mixed, percentiles)
            table.attrs["definition"] = points.definition
            table.attrs["definitions"] = points.definitions
            table.attrs["left_out"] = points.definitions.get(points.definition, 0) - table.attrs["requests"]
            return table

    def streams(self, selection: Selection, metric: str) -> dict[str, Histogram]:
        """Return the distributions of a streaming metric of *selection*, or of failed outbound calls.

        Returns:
            Histogram by definition (definitions must not be mixed), by type of token, or by failure of the call.
        """
        with self._snapshot() as snapshot:
            return histograms_by_key(fetch(snapshot, PointQuery(selection, (metric,))))

    def streams_over_time(
        self, selection: Selection, metric: str, key: str, quantiles: Sequence[float], step: timedelta
    ) -> pd.DataFrame:
        """Return quantiles of a distribution of `streams` over time.

        Returns:
            Columns at (UTC), n (number of values in the step), total (sum of the values), and one for each quantile: p50,
            p99, p99.9, …; in seconds, or tokens.
        """
        with self._snapshot() as snapshot:
            columns, steps = fetch_steps(snapshot, PointQuery(selection, (metric,)), step)
            return with_step_times(
                quantiles_of_steps(points_with_key(columns, key), steps, quantiles), steps, selection
            )

    def by_band(self, selection: Selection, metric: str, definition: str) -> dict[str, Histogram]:
        """Return token times by the length of the prompt or the completion.

        Returns:
            Histogram of the times by bucket of the number of tokens (`core.histogram.TOKEN_COUNTS`), smallest first. [seconds]
        """
        with self._snapshot() as snapshot:
            clock = _MEASURED_BY[metric]
            columns = points_of_definition(
                fetch(snapshot, PointQuery(selection, (clock, metric), by="series")), clock, definition
            ).columns
            histograms = histograms_by_key(columns.of(metric))
            return {band: histograms[band] for band in sorted(histograms, key=TOKEN_COUNTS.position)}

    def speed_by_load(self, selection: Selection, definition: str, step: timedelta, groups: int) -> pd.DataFrame:
        """Return the time between tokens by the number of requests that decode concurrently.

        By Little's law this number, the load, is the time that all requests spend in `decode` per second. The steps of the window
        are sorted by load and combined into *groups* with about equally many requests; incomplete steps at the edges of the
        window are left out.

        Returns:
            Columns load (mean of the group), low_load, high_load (lowest and highest load of its steps), steps (number of steps),
            n (number of requests), p50_seconds, p99_seconds (quantiles of the mean time between two tokens), output_per_second
            (tokens), ordered by load. `attrs`: step_seconds, steps (number of used steps), newest_load (load of the last used
            step; None without steps).
        """
        with self._snapshot() as snapshot:
            columns, cut = fetch_steps(snapshot, PointQuery(selection, _SPEED_METRICS), step)
            paced = points_with_key(columns.of(names.OUTPUT_TOKEN), definition)
            # A window of a single step has no variation of load.
            steps = _load_by_step(columns, paced, cut.width, selection.seconds) if cut.width else pd.DataFrame()
            table = (
                _group_by_load(steps, paced, cut.width, groups)
                if cut.width and len(steps)
                else frame(SPEED_COLUMNS, [])
            )
            newest = float(steps["load"].loc[steps.index.max()]) if len(steps) else None
            table.attrs.update(step_seconds=cut.width, steps=len(steps), newest_load=newest)
            return table


def _load_by_step(columns: Columns, paced: Columns, width: int, window: tuple[int, int]) -> pd.DataFrame:
    decoded, output = (
        points_with_key(columns.of(names.STAGE_DURATION), _DECODE),
        points_with_key(columns.of(names.TOKENS), names.TOKENS_OUT),
    )
    table = pd.DataFrame(
        {
            "load": _sum_by_step(decoded, decoded.sum / width, width),
            "n": _sum_by_step(paced, paced.counts, width),
            "output_per_second": _sum_by_step(output, output.sum / width, width),
        }
    ).fillna(0.0)
    whole = (table.index >= window[0]) & (table.index + width <= window[1])
    return table[whole & (table["load"] > 0) & (table["n"] > 0)].sort_values("load", kind="stable")


def _sum_by_step(columns: Columns, values: NDArray[Any], width: int) -> pd.Series[Any]:
    return pd.Series(values).groupby(_step_starts(columns, width)).sum()


def _step_starts(columns: Columns, width: int) -> Ints:
    return columns.times - columns.times % width


def _group_by_load(steps: pd.DataFrame, paced: Columns, width: int, groups: int) -> pd.DataFrame:
    middle = steps["n"].cumsum() - steps["n"] / 2
    group = pd.Series(pd.factorize((middle / steps["n"].sum() * groups).astype(int))[0], steps.index)
    chosen = paced.where(np.isin(_step_starts(paced, width), steps.index))
    group_of_step = group.reindex(_step_starts(chosen, width)).to_numpy(np.int64)
    counts = count_at(chosen, group_of_step, np.arange(int(group.max()) + 1), int(chosen.scale.min()))
    load = steps["load"].groupby(group)
    values = {
        "load": load.mean(),
        "low_load": load.min(),
        "high_load": load.max(),
        "steps": load.size(),
        "n": counts.total,
        "p50_seconds": counts.values_at(0.5),
        "p99_seconds": counts.values_at(0.99),
        "output_per_second": steps["output_per_second"].groupby(group).mean(),
    }
    return pd.DataFrame(values, columns=list(SPEED_COLUMNS))


@dataclass(frozen=True, slots=True)
class DefinitionPoints:
    definition: str
    definitions: dict[str, int]
    columns: Columns


def points_of_definition(columns: Columns, metric: str, definition: str | None) -> DefinitionPoints:
    """Select the points of the series that have only *definition*."""
    first = columns.of(metric)
    requests = _requests_by_definition(add_up(first), columns.stages)
    wanted = (
        definition if definition is not None else max(requests, key=lambda name: (requests[name], name), default="")
    )
    is_wanted = np.array([stage == wanted for stage in columns.stages], bool)[first.stage]
    alone = np.setdiff1d(first.series[is_wanted], first.series[~is_wanted])
    return DefinitionPoints(wanted, requests, columns.where(np.isin(columns.series, alone)))


def _requests_by_definition(counts: StageCounts, stages: Sequence[str]) -> dict[str, int]:
    requests = counts.amount.sum(axis=1) + counts.zero
    return {stage: int(n) for stage, n in zip(stages, requests.tolist(), strict=True) if n}
