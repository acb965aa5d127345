"""The charts of a comparison: what B adds at each percentile, and both latencies."""

from __future__ import annotations

import pandas as pd
from dash.development.base_component import Component

from ...core.stages import label
from ..components import card, chart, empty, spoken_stages
from ..figures.compare import both_figure, delta_figure
from ..figures.parts import stages_of
from ..figures.percentile import COLUMNS, percentile_grid
from ..format import MILLI, duration, enough, needed, percentile, signed_change, whole
from .compare_words import side_names
from .comparison import Pair, fewest, lives_of
from .page import Context

# The tail beyond holds too few requests for a difference to mean anything.
_LAST_DELTA = 0.995
_MEDIAN = 0.5
# A stage with less of the change is not spoken of.
_SAID = 0.05


def delta_card(context: Context, pair: Pair) -> Component:
    """Return what B adds to A at each percentile, by stage."""
    title, sub = "What B adds, by percentile", "B minus A, split by stage; parts sum to the line"
    frames = _frames(context, pair)
    if frames is None:
        return card(title, _few(context, pair), size="c7")
    a, b = (each[each["percentile"] <= _LAST_DELTA].reset_index(drop=True) for each in frames)
    table = change_table(a, b)
    total = float(b["value_seconds"].iloc[-1] - a["value_seconds"].iloc[-1])
    last = {each: float(_ms(b, each).iloc[-1] - _ms(a, each).iloc[-1]) * MILLI for each in stages_of(b, COLUMNS)}
    causes = spoken_stages({each: seconds for each, seconds in last.items() if abs(seconds) >= abs(total) * _SAID}, 2)
    at = percentile(float(b["percentile"].iloc[-1]))
    name_a, name_b = side_names(context, pair)
    spoken = (
        f"What {name_b} adds to {name_a} at each percentile, split by stage: "
        f"{duration(total, sign=True)} at {at}" + (f", most of it {causes}." if causes else ".")
    )
    return card(title, chart("delta", delta_figure(a, b), spoken, 330, frame=table), sub=sub, size="c7")


def both_card(context: Context, pair: Pair) -> Component:
    """Return the latency of A and B by percentile."""
    frames = _frames(context, pair)
    if frames is None:
        return card("Latency by percentile", _few(context, pair), size="c7")
    a, b = frames
    name_a, name_b = side_names(context, pair)
    # The time of a window is too long for the room beside the plot, the pickers say it.
    known = lives_of(context)
    beside = (name_a if pair.a_name in known else "", name_b if pair.b_name in known else "")
    figure = both_figure(a, b, names=beside)
    at, before, after = (each.iloc[-1] for each in (b["percentile"], a["value_seconds"], b["value_seconds"]))
    spoken = (
        f"Latency of {name_a} and {name_b} by percentile on a logarithmic scale, at {percentile(float(at))} "
        f"{duration(float(before))} and {duration(float(after))}, {signed_change(float(after / before - 1) if before else None)}."
    )
    made = chart("both", figure, spoken, 290, frame=both_table(a, b))
    return card("Latency by percentile", made, sub="log scale", size="c7")


def change_table(a: pd.DataFrame, b: pd.DataFrame) -> pd.DataFrame:
    """Return the numbers of the first chart: percentile, both latencies, the change, and that of each stage."""
    stages = [*dict.fromkeys([*stages_of(b, COLUMNS), *stages_of(a, COLUMNS)])]
    made = {"percentile": b["percentile"] * 100, "A (ms)": _ms(a, "value_seconds"), "B (ms)": _ms(b, "value_seconds")}
    made["change (ms)"] = made["B (ms)"] - made["A (ms)"]
    made |= {f"{label(each)} (ms)": _ms(b, each) - _ms(a, each) for each in stages}
    return pd.DataFrame(made)


def both_table(a: pd.DataFrame, b: pd.DataFrame) -> pd.DataFrame:
    """Return the numbers of the second chart: percentile, each latency, and the band it is sure to lie in."""
    made = {"percentile": b["percentile"] * 100}
    for name, frame in (("A", a), ("B", b)):
        for text, column in ((name, "value"), (f"{name} at least", "low"), (f"{name} at most", "high")):
            made[f"{text} (ms)"] = _ms(frame, f"{column}_seconds")
    return pd.DataFrame(made)


def _ms(frame: pd.DataFrame, column: str) -> pd.Series[float]:
    found = frame[column] if column in frame.columns else pd.Series(0.0, index=frame.index)
    return found.astype(float) / MILLI


def _frames(context: Context, pair: Pair) -> tuple[pd.DataFrame, pd.DataFrame] | None:
    source, least = context.source, fewest(context, pair)
    grid = percentile_grid(least)
    if not grid or not enough(least, _MEDIAN):
        return None
    return source.ask(source.read.breakdown, pair.a, grid), source.ask(source.read.breakdown, pair.b, grid)


def _few(context: Context, pair: Pair) -> Component:
    said = f"p50 needs {needed(_MEDIAN)} requests on both sides, one has {whole(fewest(context, pair))}."
    return empty("Too few requests", said)
