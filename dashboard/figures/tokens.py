"""Token streaming charts: time to first token, token speed by load, and the effect of text length."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from ...analysis.breakdown import COLUMNS
from ...core.stages import label
from ..ui.format import UNKNOWN, count, duration, interval, percentile
from .elements import (
    Annotation,
    Figure,
    Trace,
    dots,
    f4,
    figure,
    fixed_axis,
    line,
    note,
    safe,
    stages_of,
    ticks,
    vertical_line,
    without_side_labels,
)
from .percentile import percentile_figure, place

_SIDE: Annotation = {"xref": "paper", "xanchor": "left", "yanchor": "middle", "xshift": 6, "font": {"size": 11.5}}
# Upper end of the lower panel, and lower end of the upper panel. [ratio of the plot's height]
_LOWER, _UPPER = 0.30, 0.40
_NAMED = 2


def first_token_figure(frame: pd.DataFrame) -> Figure:
    chart = percentile_figure(frame)
    places = [place(float(quantile), even=False) for quantile in frame["percentile"]]
    hover = _hover(_hover_lines(frame))
    chart["data"].append(line(f4(places), f4(frame["value_seconds"]), width=0, **hover))
    # On half the width, p90 and p95 would overlap.
    crowded = place(0.9, even=False)
    layout = chart["layout"]
    layout["annotations"] = [
        annotation
        for annotation in layout["annotations"]
        if annotation["xref"] == "paper" or annotation["x"] != crowded
    ]
    return chart


def _hover_lines(frame: pd.DataFrame) -> list[str]:
    """Return the hover text of each percentile: value, number of requests, error bounds and dominant stages."""
    stages = stages_of(frame, COLUMNS)
    parts = frame[stages].to_numpy(dtype=float)
    rows = zip(*(frame[name] for name in COLUMNS), parts, strict=True)
    return [
        f"<b>{percentile(float(quantile))} {duration(float(value))}</b> · n {count(float(n))}"
        f"<br>{interval(float(low), float(high))}<br>{_largest(stages, row)}"
        for quantile, n, value, low, high, row in rows
    ]


def _largest(stages: Sequence[str], seconds: np.ndarray) -> str:
    order: list[int] = np.argsort(-seconds)[:_NAMED].tolist()
    return ", ".join(
        f"{safe(label(stages[index]))} {duration(float(seconds[index]))}" for index in order if seconds[index]
    )


def speed_figure(frame: pd.DataFrame, newest: float | None, newest_name: str = "now") -> Figure:
    load, slow = frame["load"].to_numpy(float), frame["p99_seconds"].to_numpy(float)
    usual, output = frame["p50_seconds"].to_numpy(float), frame["output_per_second"].to_numpy(float)
    hover = _hover(_spoken_speed(frame))
    data = [
        *_between(load, usual, slow, "$st.decode"),
        line(f4(load), f4(usual), width=2, colour="$st.decode", mode="lines+markers", marker={"size": 5}, **hover),
        line(f4(load), f4(output), mode="lines+markers", marker={"size": 5}, yaxis="y2"),
    ]
    pace_top, output_top = float(np.nanmax([*usual, *slow]) * 1.08), float(max(output.max() * 1.12, 1e-9))
    notes = _ends(load, usual, slow, pace_top, ("TPOT p50", "TPOT p99"))
    notes.append(note("tokens/s", 1, float(output[-1]), yref="y2", **_SIDE))
    seen = [*load, *([] if newest is None else [newest])]
    low, high = float(min(seen)), float(max(seen))
    pad = max((high - low) * 0.03, high * 0.005)
    shapes = []
    if newest is not None:
        shapes = [vertical_line(newest, 0, 1, "$deco", "2px,2px", yref="paper")]
        notes.append(note(newest_name, newest, 1, yref="paper", yanchor="bottom"))
    title = {"text": "requests decoding together", "standoff": 6, "font": {"size": 11}}
    return _with_narrow(
        figure(
            data,
            (50, 74, 20, 42),
            xaxis=fixed_axis(
                low - pad, high + pad, anchor="y2", showgrid=False, title=title, **ticks(low, high, 5, count)
            ),
            yaxis=fixed_axis(0, pace_top, domain=[_UPPER, 1], **ticks(0, pace_top, 4)),
            yaxis2=fixed_axis(0, output_top, domain=[0, _LOWER], anchor="x", **ticks(0, output_top, 2, count)),
            annotations=notes,
            shapes=shapes,
        )
    )


def _spoken_speed(frame: pd.DataFrame) -> list[str]:
    columns = ("load", "n", "p50_seconds", "p99_seconds", "output_per_second")
    rows = zip(*(frame[name].to_numpy(float).tolist() for name in columns), strict=True)
    return [
        f"<b>{count(load)} at once</b> · n {count(n)}<br>p50 {duration(usual)}, p99 {duration(slow)}"
        f"<br>{count(output)} tok/s"
        for load, n, usual, slow, output in rows
    ]


def band_figure(frame: pd.DataFrame, colour: str, unit: str) -> Figure:
    usual, slow = (frame[name].to_numpy(float) for name in ("p50_seconds", "p99_seconds"))
    x = np.arange(len(frame), dtype=float)
    hover = _hover(_spoken_bands(frame, unit))
    data = [
        *_between(x, usual, slow, colour),
        line(f4(x), f4(usual), width=2, colour=colour, mode="lines+markers", marker={"size": 6}, **hover),
    ]
    top = float(np.nanmax([*usual, *slow]) * 1.1)
    # Bucket names are shortened to their lower end, because complete names do not fit.
    starts = [str(band).partition("-")[0].rstrip("+") for band in frame["band"]]
    title = {"text": f"{unit}, from", "standoff": 6, "font": {"size": 11}}
    names = {"tickvals": x.tolist(), "ticktext": starts}
    return _with_narrow(
        figure(
            data,
            (50, 40, 12, 42),
            xaxis=fixed_axis(-0.4, len(frame) - 0.6, showgrid=False, title=title, **names),
            yaxis=fixed_axis(0, top, **ticks(0, top, 4)),
            annotations=_ends(x, usual, slow, top, ("p50", "p99")),
        )
    )


def _spoken_bands(frame: pd.DataFrame, unit: str) -> list[str]:
    sizes = [str(band).replace("-", UNKNOWN) for band in frame["band"]]
    columns = (frame[name].to_numpy(float).tolist() for name in ("n", "p50_seconds", "p99_seconds"))
    return [
        f"<b>{size} {unit}</b> · n {count(n)}<br>p50 {duration(usual)}, p99 {duration(slow)}"
        for size, n, usual, slow in zip(sizes, *columns, strict=True)
    ]


def _hover(text: list[str]) -> Trace:
    return {"text": text, "hovertemplate": "%{text}<extra></extra>", "hoverinfo": "text"}


def _between(x: np.ndarray, usual: np.ndarray, slow: np.ndarray, colour: str) -> list[Trace]:
    is_finite = np.isfinite(slow)
    if is_finite.sum() <= 1:
        return [dots(x[is_finite].tolist(), slow[is_finite].tolist())]
    field = {"fill": "tonexty", "fillcolor": f"{colour}@.12"}
    below = line(f4(x[is_finite]), f4(usual[is_finite]), width=0)
    return [below, line(f4(x[is_finite]), f4(slow[is_finite]), width=1.5, colour=colour, dash="4px,3px", **field)]


def _ends(x: np.ndarray, usual: np.ndarray, slow: np.ndarray, top: float, names: tuple[str, str]) -> list[Annotation]:
    ends = [note(names[0], 1, float(usual[-1]), **_SIDE)]
    finite = np.flatnonzero(np.isfinite(slow))
    if len(finite) and finite[-1] == len(slow) - 1:
        ends.append(note(names[1], 1, max(float(slow[-1]), float(usual[-1]) + top * 0.09), **_SIDE))
    elif len(finite):
        # p99 may end earlier: further right there are too few requests.
        last = int(finite[-1])
        ends.append(note(names[1], float(x[last]), float(slow[last]), **{**_SIDE, "xref": "x"}))
    return ends


def _with_narrow(chart: Figure) -> Figure:
    layout = chart["layout"]
    narrow = {"margin": {**layout["margin"], "r": 14}, "annotations": without_side_labels(layout["annotations"])}
    return {**chart, "narrow": narrow}
