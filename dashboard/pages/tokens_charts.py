"""Cards and measures of the tokens page, for one definition of the first token at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from dash import html
from dash.development.base_component import Component

from ...analysis.breakdown import PERCENTILES, Measures, measures_of, percentile_grid, stages_at
from ...core import names
from ...core.histogram import Histogram, has_enough_samples, samples_needed, value_at
from ...store import Selection
from ..figures.tokens import band_figure, first_token_figure, speed_figure
from ..source import Source
from ..ui.components import Node, card, chart, empty, gauge, spoken_stages, table
from ..ui.format import TIMES, UNKNOWN, count, duration, percent, percentile, several, span, whole
from .page import Context
from .service_charts import percentile_table, population

# Column titles of time columns.
TIME_COLUMNS = {"n": "requests", "p50_seconds": "p50 (s)", "p99_seconds": "p99 (s)"}
NO_COUNTS = (
    "Agents read token counts from `generate` of transformers and "
    "from responses of model servers. You can also send inference.tokens over OTLP."
)
# Smallest share that one decimal shows. [ratio]
_SMALL_SHARE = 0.001
# Requests in a group of steps: enough for p99, or, with fewer requests in total, for the median only.
_GROUP, _MEDIAN_GROUP = 1200, 40
_MOST_GROUPS, _MOST_MEDIAN_GROUPS = 12, 6
_LEAST_STEPS, _LEAST_GROUPS = 8, 3
_SPEED_COLUMNS = {
    "load": "requests decoding together",
    "low_load": "in the step with least load",
    "high_load": "in the step with most load",
    **{name: f"time per token {text}" for name, text in TIME_COLUMNS.items() if name != "n"},
    "n": "requests",
    "output_per_second": "output (tokens/s)",
}


def first_token_frame(context: Context, measures: TokenMeasures, selection: Selection | None = None) -> pd.DataFrame:
    source = context.source
    frame = source.cached(
        source.read.first_token_breakdown, selection or context.selection, PERCENTILES, measures.definition
    )
    shown = percentile_grid(int(frame.attrs.get("requests", 0)))
    return frame[frame["percentile"].isin(shown)].reset_index(drop=True)


def first_token_measures(context: Context, measures: TokenMeasures) -> Measures:
    frame = first_token_frame(context, measures)
    at = {quantile: frame[frame["percentile"] == quantile].reset_index(drop=True) for quantile in (0.5, 0.99)}
    values = [float(row["value_seconds"].iloc[0]) if len(row) else 0.0 for row in at.values()]
    stages = [stages_at(row, 0) if len(row) else {} for row in at.values()]
    requests = int(frame.attrs.get("requests", 0))
    return measures_of(requests, 0, (values[0], values[1]), (stages[0], stages[1]))


def pace_measures(measures: TokenMeasures) -> Measures:
    p50, p99 = (value_at(measures.pace, quantile) or 0.0 for quantile in (0.5, 0.99))
    return measures_of(measures.pace.count, 0, (p50, p99), ({"decode": p50}, {"decode": p99}))


def first_token_card(context: Context, measures: TokenMeasures) -> Component:
    title, frame = "Time to first token, by percentile", first_token_frame(context, measures)
    if not len(frame):
        return card(title, _too_few_first_tokens(frame, measures), size="c6")
    last = frame.iloc[-1]
    spoken = (
        f"Stages before the first token by percentile, up to {percentile(float(last['percentile']))}, "
        f"{duration(float(last['value_seconds']))}: {spoken_stages(stages_at(frame, len(frame) - 1))}."
    )
    left_out = int(frame.attrs["left_out"])
    numbers = percentile_table(frame).rename(columns={"latency (s)": "time to first token (s)"})
    foot = f"{whole(left_out)} more come from series with several definitions: their stages cannot be separated."
    return card(
        title,
        chart("first-token", first_token_figure(frame), spoken, 318, frame=numbers),
        sub=population(frame),
        foot=foot if left_out else None,
        size="c6",
    )


def _too_few_first_tokens(frame: pd.DataFrame, measures: TokenMeasures) -> Component:
    left_out = int(frame.attrs.get("left_out", 0))
    if left_out:
        return empty(
            "The stages cannot be separated",
            f"All {several(left_out, 'request')} come from series with several definitions. Use a separate "
            "route for each kind of response to get separate charts.",
        )
    needed = f"{percentile(0.5)} needs {whole(samples_needed(0.5))}."
    return empty("Too few first tokens", f"{whole(measures.first.count)} so far in this window; {needed}")


def speed_card(context: Context, measures: TokenMeasures) -> Component:
    title, source = "Token speed against load", context.source
    groups = _groups(measures.pace.count)
    frame = source.cached(
        source.read.speed_by_load, context.selection, measures.definition, context.axis.step, max(groups, 1)
    )
    steps, width = int(frame.attrs["steps"]), frame.attrs["step_seconds"]
    if groups < _LEAST_GROUPS or steps < _LEAST_STEPS or len(frame) < _LEAST_GROUPS:
        return card(title, _too_few_steps(measures, steps), size="c6")
    shown = _reliable_p99(frame)
    first, last = shown.iloc[0], shown.iloc[-1]
    spoken = (
        f"With {count(first['load'])} requests decoding together a token takes {duration(first['p50_seconds'])}, at "
        f"{count(first['output_per_second'])} tokens/s; with {count(last['load'])}, "
        f"{duration(last['p50_seconds'])}, at {count(last['output_per_second'])} tokens/s."
    )
    how = (
        "Mean number of requests in the decode stage (Little's law). Steps of "
        f"{span(context.axis_of(frame).step) if width else 'the window'}, sorted by load and grouped into points of about equally many requests."
    )
    figure = speed_figure(shown, frame.attrs["newest_load"], "now" if context.view.live else "last step")
    sub = html.Span(f"{count(int(frame['n'].sum()))} requests in {steps} steps", title=how)
    return card(
        title, chart("token-speed", figure, spoken, 318, frame=shown.rename(columns=_SPEED_COLUMNS)), sub=sub, size="c6"
    )


def _groups(requests: int) -> int:
    if requests >= _LEAST_GROUPS * _GROUP:
        return min(_MOST_GROUPS, requests // _GROUP)
    return min(_MOST_MEDIAN_GROUPS, requests // _MEDIAN_GROUP)


def _reliable_p99(frame: pd.DataFrame) -> pd.DataFrame:
    is_reliable = np.array([has_enough_samples(int(number), 0.99) for number in frame["n"]], dtype=bool)
    return frame.assign(p99_seconds=frame["p99_seconds"].where(is_reliable))


def _too_few_steps(measures: TokenMeasures, steps: int) -> Component:
    if not measures.pace.count:
        return empty("No time per token", NO_COUNTS)
    if not steps:
        return empty("No decoding", "No request had the stage Decode, which defines the load.")
    return empty(
        "Not enough data to compare",
        f"{several(measures.pace.count, 'request')} in {several(steps, 'step')}; the chart needs {_LEAST_GROUPS * _MEDIAN_GROUP} requests in "
        f"{_LEAST_STEPS} steps. Choose a longer window.",
    )


@dataclass(frozen=True, slots=True)
class TokenMeasures:
    definition: str  # definition by which the times were measured; "" without measured times
    definitions: Mapping[str, int]  # number of requests by definition
    first: Histogram  # time to the first token [seconds]
    pace: Histogram  # mean time from one token to the next of each request [seconds]
    gap: Histogram  # longest gap between two chunks of each response [seconds]
    taken_in: Histogram  # prompt lengths, for all definitions [tokens]
    put_out: Histogram  # response lengths, for all definitions [tokens]

    @property
    def timed(self) -> int:
        return self.definitions.get(self.definition, 0)

    @property
    def otherwise(self) -> int:
        return sum(self.definitions.values()) - self.timed


def token_measures(source: Source, selection: Selection | None, definition: str | None) -> TokenMeasures:
    histograms = {
        metric: source.cached(source.read.streams, selection, metric) if selection else {}
        for metric in (names.FIRST_TOKEN, names.OUTPUT_TOKEN, names.STREAM_GAP, names.TOKENS)
    }
    definitions = {
        name: histogram.count
        for name, histogram in (histograms[names.FIRST_TOKEN] or histograms[names.OUTPUT_TOKEN]).items()
    }
    commonest = max(definitions, key=lambda name: (definitions[name], name), default="")
    chosen = definition if definition is not None and (definition in definitions or not definitions) else commonest
    timed = (
        histograms[metric].get(chosen, Histogram())
        for metric in (names.FIRST_TOKEN, names.OUTPUT_TOKEN, names.STREAM_GAP)
    )
    counted = (histograms[names.TOKENS].get(kind, Histogram()) for kind in (names.TOKENS_IN, names.TOKENS_OUT))
    return TokenMeasures(chosen, definitions, *timed, *counted)


def measures_of_window(context: Context) -> TokenMeasures:
    return token_measures(context.source, context.selection, context.view.text("by"))


def definition_words(definition: str) -> str:
    return names.DEFINITIONS.get(definition, f"by a custom definition, {definition}")


@dataclass(frozen=True, slots=True)
class BandChart:
    name: str
    unit: str
    colour: str


def prompt_card(context: Context, measures: TokenMeasures) -> Component:
    histograms = first_tokens_by_prompt(context, measures.definition)
    return _band_card("TTFT by prompt length", histograms, measures.taken_in, _PROMPTS)


def first_tokens_by_prompt(context: Context, definition: str) -> Mapping[str, Histogram]:
    return context.source.cached(context.source.read.by_band, context.selection, names.FIRST_TOKEN_BY_INPUT, definition)


def pace_card(context: Context, measures: TokenMeasures) -> Component:
    histograms = context.source.cached(
        context.source.read.by_band, context.selection, names.OUTPUT_TOKEN_BY_OUTPUT, measures.definition
    )
    return _band_card("TPOT by response length", histograms, measures.put_out, _RESPONSES)


def _band_card(title: str, histograms: Mapping[str, Histogram], counted: Histogram, spec: BandChart) -> Component:
    rows = [
        {
            "band": band,
            "n": histogram.count,
            "p50_seconds": value_at(histogram, 0.5),
            "p99_seconds": value_at(histogram, 0.99),
        }
        for band, histogram in histograms.items()
        if has_enough_samples(histogram.count, 0.5)
    ]
    n = sum(histogram.count for histogram in histograms.values())
    if not rows:
        few = empty("Too few requests", f"{several(n, 'request')} so far; a bucket needs {samples_needed(0.5)}.")
        return card(title, few if n else _no_lengths(counted), size="c4")
    frame = pd.DataFrame(rows).astype({"p50_seconds": float, "p99_seconds": float})
    medians = frame["p50_seconds"].to_numpy(float)
    bands = list(frame["band"])
    spoken = (
        f"{title}: median {duration(float(medians[0]))} at {bands[0]} {spec.unit}, "
        f"{duration(float(medians[-1]))} at {bands[-1]}."
    )
    has_p99 = frame["p99_seconds"].notna().any()
    foot = None if has_p99 else f"p99 needs {whole(samples_needed(0.99))} requests in a bucket."
    table_of = frame.rename(columns={"band": spec.unit, **TIME_COLUMNS})
    return card(
        title,
        chart(spec.name, band_figure(frame, spec.colour, spec.unit), spoken, 280, frame=table_of),
        sub=f"{count(n)} requests",
        foot=foot,
        size="c4",
    )


def _no_lengths(counted: Histogram) -> Component:
    if not counted.count:
        return empty("No token counts", NO_COUNTS)
    return empty("No length for these requests", "No series with this TTFT definition reports token counts.")


def length_card(measures: TokenMeasures) -> Component:
    title, counted = "Response length", measures.put_out
    if not counted.count:
        return card(title, empty("No token counts", NO_COUNTS), size="c4")
    rows = requests_by_length(counted)
    widest = max(rows.values())
    body = [
        html.Tr(
            [
                html.Th(band, scope="row", className="r num"),
                html.Td(gauge(n / widest), className="fill"),
                html.Td(_share(n / counted.count), className="r num"),
                html.Td(count(n), className="r num muted"),
            ]
        )
        for band, n in rows.items()
    ]
    head: list[tuple[Node, str]] = [
        ("Tokens", "r"),
        (html.Span("Bar", className="sr"), "fill"),
        ("Share", "r"),
        ("Requests", "r"),
    ]
    listed = table(head, body, "Responses by number of tokens", css="lengths")
    return card(title, listed, sub=_length_summary(counted), foot=tail_words(measures), size="c4", flush=True)


def requests_by_length(counted: Histogram) -> dict[str, int]:
    """Return the number of requests by token count, in buckets that end at powers of two, such as 9 to 16.

    >>> list(requests_by_length(Histogram(0, {-1: 1, 0: 2, 1: 5})).values())
    [1, 2, 5]
    """
    coarse = Histogram(counted.scale, dict(counted.buckets))
    coarse.downscale(min(0, counted.scale))
    whole_band = {power: coarse.buckets.get(power, 0) for power in range(min(coarse.buckets), max(coarse.buckets) + 1)}
    return {_length_range(2.0**power, 2.0 ** (power + 1)): n for power, n in whole_band.items()}


def _length_range(low: float, high: float) -> str:
    first, last = int(low) + 1, int(high)
    return f"{last}" if first >= last else f"{first}{UNKNOWN}{last}"


def _share(ratio: float) -> str:
    return f"< {percent(_SMALL_SHARE, 1)}" if 0 < ratio < _SMALL_SHARE else percent(ratio, 1)


def _length_summary(counted: Histogram) -> str:
    usual, long = value_at(counted, 0.5), value_at(counted, 0.99)
    if usual is None:
        return several(counted.count, "request")
    tail = f", p99 {count(round(long))}" if long is not None else ""
    return f"p50 {count(round(usual))}{tail} tokens"


def tail_words(measures: TokenMeasures) -> str | None:
    values = [
        value_at(histogram, quantile) for histogram in (measures.put_out, measures.pace) for quantile in (0.5, 0.99)
    ]
    if None in values or not all(values):
        return None
    usual_length, long, usual_pace, slow = (float(value or 0) for value in values)
    longer, slower = long / usual_length, slow / usual_pace
    cause = "longer responses" if longer > slower else "slower tokens"
    return (
        f"From p50 to p99, responses are {count(longer)}{TIMES} longer and tokens {count(slower)}{TIMES} slower: "
        f"the main cause of the tail is {cause}."
    )


_PROMPTS = BandChart("first-token-by-input", "prompt tokens", "$ink")
_RESPONSES = BandChart("output-token-by-output", "response tokens", "$st.decode")
