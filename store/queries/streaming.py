"""Where the time to the first token goes: the breakdown with another clock.

The first token is found in several ways (`names.DEFINITION`), which never mix. Stages are told apart by series, not by
definition, so only series that know one definition in the window can say where its time went; requests of the others are
left out, and counted.

Requests that answer bit by bit: the course of one number, and how it depends on the number of tokens.

How fast tokens come when many requests decode at once: steps of the window, sorted by load.

Little's law: the mean number of requests in a stage is the time they spend there for each second of the clock. It holds
whatever the order and the lengths of the requests are; a request that lasts longer than a step counts where it ended.

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

from ...core.histogram import TOKEN_COUNTS, Histogram
from ...core.names import (
    FIRST_TOKEN,
    FIRST_TOKEN_BY_INPUT,
    FIRST_TOKEN_TIME,
    OUTPUT_TOKEN,
    OUTPUT_TOKEN_BY_OUTPUT,
    STAGE_DURATION,
    TOKENS,
    TOKENS_OUT,
)
from ..columns import Columns, StageCounts, add_up
from ..encoding import Ints
from ..points import PointQuery, Snapshot
from ..selection import Selection
from .fetch import QueryGroup, count_at, fetch, fetch_steps, histograms_by_key, points_with_key
from .frames import frame, with_step_times
from .latency import Mixture, breakdown_frame
from .time_series import quantiles_of_steps

SPEED_COLUMNS = (
    *("load", "low_load", "high_load", "steps", "n"),
    *("p50_seconds", "p99_seconds", "output_per_second"),
)
_SPEED_METRICS = (STAGE_DURATION, OUTPUT_TOKEN, TOKENS)
_DECODE = "decode"


class StreamingQueries(QueryGroup):
    """Tokens of streaming requests: time to the first one, time between them, and their number."""

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
            return _first_token_breakdown(snapshot, selection, percentiles, definition)

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
            return histograms_by_key(snapshot, selection, metric)

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
            return _streams_over_time(snapshot, selection, metric, key, quantiles, step=step)

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
            return _by_size(snapshot, selection, metric, definition)

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
            return _speed_by_load(snapshot, selection, definition, step, groups)


def _speed_by_load(
    snapshot: Snapshot, selection: Selection, definition: str, step: timedelta, groups: int
) -> pd.DataFrame:
    columns, cut = fetch_steps(snapshot, PointQuery(selection, _SPEED_METRICS), step)
    paced = points_with_key(columns.of(OUTPUT_TOKEN), definition)
    # A window of one step has no course.
    steps = _load_by_step(columns, paced, cut.width, selection.seconds) if cut.width else pd.DataFrame()
    made = _group_by_load(steps, paced, cut.width, groups) if cut.width and len(steps) else frame(SPEED_COLUMNS, [])
    newest = float(steps["load"].loc[steps.index.max()]) if len(steps) else None
    made.attrs.update(step_seconds=cut.width, steps=len(steps), newest_load=newest)
    return made


def _load_by_step(columns: Columns, paced: Columns, width: int, window: tuple[int, int]) -> pd.DataFrame:
    """Return load, n and output_per_second of the whole steps in which something decoded, by rising load."""
    decoded, output = (
        points_with_key(columns.of(STAGE_DURATION), _DECODE),
        points_with_key(columns.of(TOKENS), TOKENS_OUT),
    )
    held = np.concatenate((np.zeros(1, np.int64), np.cumsum(paced.buckets.amount)))
    found = pd.DataFrame(
        {
            "load": _sum_by_step(decoded, decoded.sum / width, width),
            "n": _sum_by_step(paced, paced.zero + np.diff(held[paced.buckets.offsets]), width),
            "output_per_second": _sum_by_step(output, output.sum / width, width),
        }
    ).fillna(0.0)
    whole = (found.index >= window[0]) & (found.index + width <= window[1])
    return found[whole & (found["load"] > 0) & (found["n"] > 0)].sort_values("load", kind="stable")


def _sum_by_step(columns: Columns, values: NDArray[Any], width: int) -> pd.Series[Any]:
    """Add up *values*, one a point of *columns*, by the start of the step it is in."""
    return pd.Series(values).groupby(_step_starts(columns, width)).sum()


def _step_starts(columns: Columns, width: int) -> Ints:
    return columns.times - columns.times % width


def _group_by_load(steps: pd.DataFrame, paced: Columns, width: int, groups: int) -> pd.DataFrame:
    """Take neighbours in load together, about equally many requests each."""
    middle = steps["n"].cumsum() - steps["n"] / 2
    group = pd.Series(pd.factorize((middle / steps["n"].sum() * groups).astype(int))[0], steps.index)
    chosen = paced.where(np.isin(_step_starts(paced, width), steps.index))
    place = group.reindex(_step_starts(chosen, width)).to_numpy(np.int64)
    counts = count_at(chosen, place, np.arange(int(group.max()) + 1), int(chosen.scale.min()))
    load = steps["load"].groupby(group)
    made = {
        "load": load.mean(),
        "low_load": load.min(),
        "high_load": load.max(),
        "steps": load.size(),
        "n": counts.total,
        "p50_seconds": counts.values_at(0.5),
        "p99_seconds": counts.values_at(0.99),
        "output_per_second": steps["output_per_second"].groupby(group).mean(),
    }
    return pd.DataFrame(made, columns=list(SPEED_COLUMNS))


FIRST_TOKEN_METRICS = (FIRST_TOKEN, FIRST_TOKEN_TIME)


@dataclass(frozen=True, slots=True)
class DefinitionPoints:
    """Requests that were measured in one way.

    Args:
        definition: Which; "" where there are no requests.
        definitions: Requests by definition, of the whole selection.
        columns: The points of the series that know this definition only.
    """

    definition: str
    definitions: dict[str, int]
    columns: Columns


def _first_token_breakdown(
    snapshot: Snapshot, selection: Selection, percentiles: Sequence[float], definition: str | None
) -> pd.DataFrame:
    found = points_of_definition(
        fetch(snapshot, PointQuery(selection, FIRST_TOKEN_METRICS, by="series")), FIRST_TOKEN, definition
    )
    counted = found.columns.of(FIRST_TOKEN)
    mixed = Mixture(found.columns, FIRST_TOKEN_METRICS) if len(counted) else None
    made = breakdown_frame(mixed, percentiles)
    made.attrs["definition"] = found.definition
    made.attrs["definitions"] = found.definitions
    made.attrs["left_out"] = found.definitions.get(found.definition, 0) - made.attrs["requests"]
    return made


def points_of_definition(columns: Columns, metric: str, definition: str | None) -> DefinitionPoints:
    """Choose *definition*, or the one that most requests were measured by, among *columns*, which tell series apart.

    Args:
        columns: What the answer is made of.
        metric: The one of them that is told apart by definition.
        definition: Which; None for the commonest.
    """
    first = columns.of(metric)
    found = _requests_by_definition(add_up(first), columns.stages)
    wanted = definition if definition is not None else max(found, key=lambda each: (found[each], each), default="")
    is_wanted = np.array([stage == wanted for stage in columns.stages], bool)[first.stage]
    alone = np.setdiff1d(first.series[is_wanted], first.series[~is_wanted])
    return DefinitionPoints(wanted, found, columns.where(np.isin(columns.series, alone)))


def _requests_by_definition(counts: StageCounts, stages: Sequence[str]) -> dict[str, int]:
    requests = counts.amount.sum(axis=1) + counts.zero
    return {stage: int(n) for stage, n in zip(stages, requests.tolist(), strict=True) if n}


# Bands are told apart by nothing else: which definition a time was measured by stands in the metric beside it.
_MEASURED_BY = {FIRST_TOKEN_BY_INPUT: FIRST_TOKEN, OUTPUT_TOKEN_BY_OUTPUT: OUTPUT_TOKEN}


def _streams_over_time(
    snapshot: Snapshot, selection: Selection, metric: str, key: str, quantiles: Sequence[float], *, step: timedelta
) -> pd.DataFrame:
    columns, steps = fetch_steps(snapshot, PointQuery(selection, (metric,)), step)
    return with_step_times(quantiles_of_steps(points_with_key(columns, key), steps, quantiles), steps, selection)


def _by_size(snapshot: Snapshot, selection: Selection, metric: str, definition: str) -> dict[str, Histogram]:
    clock = _MEASURED_BY[metric]
    columns = points_of_definition(
        fetch(snapshot, PointQuery(selection, (clock, metric), by="series")), clock, definition
    ).columns
    counted = columns.of(metric)
    present = {columns.stages[place] for place in counted.stage.tolist()}
    return {
        band: add_up(points_with_key(counted, band)).histogram() for band in sorted(present, key=TOKEN_COUNTS.position)
    }
