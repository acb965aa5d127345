"""Two cards of the tokens page: the way to the first token, and speed under load."""

from __future__ import annotations

import numpy as np
import pandas as pd
from dash import html
from dash.development.base_component import Component

from ...store import Reader, Selection
from ..components import card, chart, empty, spoken_stages
from ..figures.percentile import PERCENTILES, percentile_grid
from ..figures.tokens import first_token_figure, speed_figure
from ..format import count, duration, enough, needed, percentile, several, span, whole
from .fleet import smoothed, stages_at
from .page import Context
from .service_charts import percentile_table, population
from .token_measures import NO_COUNTS, TIME_COLUMNS, TokenMeasures

# A group of steps tells p99; with fewer requests in all, groups tell the median only.
_GROUP, _MEDIAN_GROUP = 1200, 40
_MOST_GROUPS, _MOST_MEDIAN_GROUPS = 12, 6
_LEAST_STEPS, _LEAST_GROUPS = 8, 3
_SPEED_COLUMNS = {
    "load": "requests decoding together",
    "low_load": "in the quietest step",
    "high_load": "in the busiest step",
    **{name: f"time per token {text}" for name, text in TIME_COLUMNS.items() if name != "n"},
    "n": "requests",
    "output_per_second": "output (tokens/s)",
}


def first_token_frame(context: Context, measures: TokenMeasures) -> pd.DataFrame:
    """Return where the time to the first token goes, over the percentiles that its requests can tell."""
    source = context.source
    frame = source.ask(_smoothed_first_tokens, source.read, context.selection, measures.definition)
    shown = percentile_grid(int(frame.attrs.get("requests", 0)))
    return frame[frame["percentile"].isin(shown)].reset_index(drop=True)


def _smoothed_first_tokens(read: Reader, selection: Selection, definition: str) -> pd.DataFrame:
    return smoothed(read.first_token_breakdown(selection, PERCENTILES, definition))


def first_token_card(context: Context, measures: TokenMeasures) -> Component:
    """Return the stages before the first token, by percentile."""
    title, frame = "Time to first token, by percentile", first_token_frame(context, measures)
    if not len(frame):
        return card(title, _too_few_first_tokens(frame, measures), size="c6")
    last = frame.iloc[-1]
    spoken = (
        f"Stages before the first token by percentile, up to {percentile(float(last['percentile']))}, "
        f"{duration(float(last['value_seconds']))}: {spoken_stages(stages_at(frame, len(frame) - 1))}."
    )
    left_out = int(frame.attrs["left_out"])
    foot = (
        f"{whole(left_out)} more come from series that also know another definition: their stages cannot be told apart."
    )
    return card(
        title,
        chart("first-token", first_token_figure(frame), spoken, 318, frame=_first_token_table(frame)),
        sub=population(frame),
        foot=foot if left_out else None,
        size="c6",
    )


def _first_token_table(frame: pd.DataFrame) -> pd.DataFrame:
    return percentile_table(frame).rename(columns={"latency (s)": "time to first token (s)"})


def _too_few_first_tokens(frame: pd.DataFrame, measures: TokenMeasures) -> Component:
    left_out = int(frame.attrs.get("left_out", 0))
    if left_out:
        return empty(
            "The stages cannot be told apart",
            f"All {several(left_out, 'request')} come from series that know several definitions. Give each way of answering "
            "its own route, then each has its own chart.",
        )
    return empty("Too few first tokens", _so_far(measures.first.count, 0.5))


def _so_far(n: int, quantile: float) -> str:
    return f"{whole(n)} so far in this window; {percentile(quantile)} needs {whole(needed(quantile))}."


def speed_card(context: Context, measures: TokenMeasures) -> Component:
    """Return how fast tokens come, by how many requests decode together."""
    title, source = "Token speed against load", context.source
    groups = _groups(measures.pace.count)
    frame = source.ask(
        source.read.speed_by_load, context.selection, measures.definition, context.axis.step, max(groups, 1)
    )
    steps, width = int(frame.attrs["steps"]), frame.attrs["step_seconds"]
    if groups < _LEAST_GROUPS or steps < _LEAST_STEPS or len(frame) < _LEAST_GROUPS:
        return card(title, _too_few_steps(measures, steps), size="c6")
    shown = _told(frame)
    first, last = shown.iloc[0], shown.iloc[-1]
    spoken = (
        f"With {count(first['load'])} requests decoding together a token takes {duration(first['p50_seconds'])} and "
        f"{count(first['output_per_second'])} come in a second; with {count(last['load'])}, "
        f"{duration(last['p50_seconds'])} and {count(last['output_per_second'])}."
    )
    how = (
        "Little's law: the seconds that requests spend decoding in each second. Steps of "
        f"{span(context.axis_of(frame).step) if width else 'the window'}, sorted by it, about equally many requests a point."
    )
    figure = speed_figure(shown, frame.attrs["newest_load"], "now" if context.view.live else "last step")
    sub = html.Span(f"{count(int(frame['n'].sum()))} requests in {steps} steps", title=how)
    return card(
        title, chart("token-speed", figure, spoken, 318, frame=shown.rename(columns=_SPEED_COLUMNS)), sub=sub, size="c6"
    )


def _groups(requests: int) -> int:
    """Return into how many groups so many *requests* are cut: each tells p99, or at least the median."""
    if requests >= _LEAST_GROUPS * _GROUP:
        return min(_MOST_GROUPS, requests // _GROUP)
    return min(_MOST_MEDIAN_GROUPS, requests // _MEDIAN_GROUP)


def _told(frame: pd.DataFrame) -> pd.DataFrame:
    """Return *frame* without the p99 that too few requests tell."""
    tells = np.array([enough(int(each), 0.99) for each in frame["n"]], dtype=bool)
    return frame.assign(p99_seconds=frame["p99_seconds"].where(tells))


def _too_few_steps(measures: TokenMeasures, steps: int) -> Component:
    if not measures.pace.count:
        return empty("No time from token to token", NO_COUNTS)
    if not steps:
        return empty("Nothing decoded", "Load is the time that requests spend in the stage decode, and none had it.")
    return empty(
        "Too little to compare",
        f"{several(measures.pace.count, 'request')} in {several(steps, 'step')}; it takes {_LEAST_GROUPS * _MEDIAN_GROUP} in "
        f"{_LEAST_STEPS}. A longer window has more.",
    )
