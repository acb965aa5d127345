"""What the length of a text does: to the time to the first token, to the pace, and how long answers are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd
from dash import html
from dash.development.base_component import Component

from ...core.histogram import Histogram
from ...core.names import FIRST_TOKEN_BY_INPUT, OUTPUT_TOKEN_BY_OUTPUT
from ..components import Node, card, chart, empty, gauge, table
from ..figures.tokens import band_figure
from ..format import TIMES, UNKNOWN, count, duration, enough, needed, percent, several, whole
from .page import Context
from .token_measures import NO_COUNTS, TIME_COLUMNS, TokenMeasures, value_at

# One decimal shows no less. [ratio]
_SMALL_SHARE = 0.001


@dataclass(frozen=True, slots=True)
class Look:
    """What a chart over bands is drawn with: its name, what the bands count, and a colour token."""

    name: str
    unit: str
    colour: str


_PROMPTS = Look("first-token-by-input", "prompt tokens", "$ink")
_ANSWERS = Look("output-token-by-output", "answer tokens", "$st.decode")


def prompt_card(context: Context, measures: TokenMeasures) -> Component:
    """Return the time to the first token by the length of the prompt."""
    found = context.source.ask(
        context.source.read.by_band, context.selection, FIRST_TOKEN_BY_INPUT, measures.definition
    )
    return _band_card("TTFT by prompt length", found, measures.taken_in, _PROMPTS)


def pace_card(context: Context, measures: TokenMeasures) -> Component:
    """Return the time from token to token by the length of the answer."""
    found = context.source.ask(
        context.source.read.by_band, context.selection, OUTPUT_TOKEN_BY_OUTPUT, measures.definition
    )
    return _band_card("TPOT by answer length", found, measures.put_out, _ANSWERS)


def _band_card(title: str, found: Mapping[str, Histogram], counted: Histogram, look: Look) -> Component:
    rows = [
        {"band": band, "n": each.count, "p50_seconds": value_at(each, 0.5), "p99_seconds": value_at(each, 0.99)}
        for band, each in found.items()
        if enough(each.count, 0.5)
    ]
    n = sum(each.count for each in found.values())
    if not rows:
        few = empty("Too few requests", f"{several(n, 'request')} so far; a band needs {needed(0.5)}.")
        return card(title, few if n else _no_lengths(counted), size="c4")
    frame = pd.DataFrame(rows).astype({"p50_seconds": float, "p99_seconds": float})
    medians = frame["p50_seconds"].to_numpy(float)
    bands = list(frame["band"])
    spoken = (
        f"{title}: median {duration(float(medians[0]))} at {bands[0]} {look.unit}, "
        f"{duration(float(medians[-1]))} at {bands[-1]}."
    )
    tells = frame["p99_seconds"].notna().any()
    foot = None if tells else f"p99 needs {whole(needed(0.99))} requests in a band."
    table_of = frame.rename(columns={"band": look.unit, **TIME_COLUMNS})
    return card(
        title,
        chart(look.name, band_figure(frame, look.colour, look.unit), spoken, 280, frame=table_of),
        sub=f"{count(n)} requests",
        foot=foot,
        size="c4",
    )


def _no_lengths(counted: Histogram) -> Component:
    if not counted.count:
        return empty("No token counts", NO_COUNTS)
    return empty("No length beside the time", "No series that is timed in this way alone told its tokens too.")


def length_card(measures: TokenMeasures) -> Component:
    """Return how long answers are, and whether the tail is longer answers or slower tokens."""
    title, counted = "Answer length", measures.put_out
    if not counted.count:
        return card(title, empty("No token counts", NO_COUNTS), size="c4")
    rows = lengths(counted)
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
    listed = table(head, body, "Answers by their number of tokens", css="lengths")
    return card(title, listed, sub=_typical(counted), foot=tail_words(measures), size="c4", flush=True)


def lengths(counted: Histogram) -> dict[str, int]:
    """Return requests by a doubling of tokens; a power of two ends a band, as it ends a bucket of the histogram: 9 to 16.

    >>> list(lengths(Histogram(0, {-1: 1, 0: 2, 1: 5})).values())
    [1, 2, 5]
    """
    coarse = Histogram(counted.scale, dict(counted.buckets))
    coarse.downscale(min(0, counted.scale))
    whole_band = {power: coarse.buckets.get(power, 0) for power in range(min(coarse.buckets), max(coarse.buckets) + 1)}
    return {_between(2.0**power, 2.0 ** (power + 1)): n for power, n in whole_band.items()}


def _between(low: float, high: float) -> str:
    first, last = int(low) + 1, int(high)
    return f"{last}" if first >= last else f"{first}{UNKNOWN}{last}"


def _share(ratio: float) -> str:
    return f"< {percent(_SMALL_SHARE, 1)}" if 0 < ratio < _SMALL_SHARE else percent(ratio, 1)


def _typical(counted: Histogram) -> str:
    usual, long = value_at(counted, 0.5), value_at(counted, 0.99)
    if usual is None:
        return several(counted.count, "request")
    tail = f", p99 {count(round(long))}" if long is not None else ""
    return f"p50 {count(round(usual))}{tail} tokens"


def tail_words(measures: TokenMeasures) -> str | None:
    """Say whether slow requests have longer answers or slower tokens: which of the two grows more from p50 to p99."""
    values = [value_at(each, quantile) for each in (measures.put_out, measures.pace) for quantile in (0.5, 0.99)]
    if None in values or not all(values):
        return None
    usual_length, long, usual_pace, slow = (float(each or 0) for each in values)
    longer, slower = long / usual_length, slow / usual_pace
    cause = "longer answers" if longer > slower else "slower tokens"
    return (
        f"From p50 to p99 answers get {count(longer)}{TIMES} longer and tokens {count(slower)}{TIMES} slower: "
        f"the tail is {cause}."
    )
