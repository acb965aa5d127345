"""Elements shared by all charts: binary arrays, ticks, stacked bands, labels, markers and axis rules."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import unescape
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from ...core.stages import label
from ..ui.design_tokens import family, hue, stage_colour
from ..ui.format import axis_duration

Figure = dict[str, Any]
Trace = dict[str, Any]
Annotation = dict[str, Any]
Shape = dict[str, Any]

# A band has 92 % of its hue, so that hairlines and the grid are visible through the stack.
BAND = 0.92
# A band is labelled at the right edge if it has at least this part of the plot's height.
MIN_LABEL_SHARE = 0.033
# Minimum distance of two labels at the right edge, as part of the height.
LABEL_GAP = 0.055
# Name above a marker: height [px]; width of a letter and margin as part of a half-width chart. [ratio]
MARKER_ROW = 14
_NAME_SHARE, _NAME_EDGE = 0.0125, -0.06
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


def figure(
    data: list[Trace], margin: tuple[int, int, int, int], *, narrow: Figure | None = None, **layout: Any
) -> Figure:
    """Return the figure of *data* with the margins left, right, top and bottom; *narrow* is its layout on phones."""
    chart = {"data": data, "layout": {"margin": dict(zip("lrtb", margin, strict=True)), **layout}}
    return chart if narrow is None else {**chart, "narrow": narrow}


def fixed_axis(low: float, high: float, **rest: Any) -> dict[str, Any]:
    """Return an axis that the reader cannot zoom."""
    return {"range": [low, high], "fixedrange": True, **rest}


def spike(colour: str) -> dict[str, Any]:
    """Return the options of an axis with a line through the hovered point."""
    return {"showspikes": True, "spikemode": "across", "spikethickness": 1, "spikecolor": colour, "spikedash": "solid"}


def f4(values: ArrayLike) -> dict[str, str]:
    """Return *values* as Plotly's base64 typed array of 32-bit floats, 5.3 bytes per value."""
    return _packed(np.ascontiguousarray(values, dtype=np.float32), "f4")


def f8(values: ArrayLike) -> dict[str, str]:
    """Return *values* as Plotly's base64 typed array of 64-bit floats, for times."""
    return _packed(np.ascontiguousarray(values, dtype=np.float64), "f8")


def raw(values: ArrayLike, kind: str) -> str:
    """Return *values* as base64 bytes of the NumPy type *kind*, for data that the browser decodes itself."""
    return base64.b64encode(np.ascontiguousarray(values, dtype=kind).tobytes()).decode()


def safe(text: str) -> str:
    """Return *text*, which may be user input, escaped so that Plotly does not interpret it as HTML.

    >>> safe("<a href=x>&")
    '&lt;a href=x&gt;&amp;'
    """
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def ticks(low: float, high: float, wanted: int = 5, write: Callable[[float], str] = axis_duration) -> dict[str, Any]:
    """Return `tickvals` and `ticktext` at round values in [low, high], formatted like the numbers of the page.

    >>> ticks(0, 0.6)["tickvals"]
    [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    """
    if not high > low:
        return {"tickvals": [low], "ticktext": [write(low)]}
    rough = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * min(_STEPS, key=lambda factor: abs(factor * power - rough))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    values = [float(f"{index * step:.6g}") for index in range(first, last + 1)]
    return {"tickvals": values, "ticktext": [write(value) for value in values]}


def log_ticks(low: float, high: float) -> dict[str, Any]:
    """Return ticks of a logarithmic axis of durations in [low, high]: at 1 and 3 of each decade, or at round values.

    >>> log_ticks(0.01, 0.1)["tickvals"], log_ticks(0.021, 0.024)["tickvals"]
    ([0.01, 0.03, 0.1], [0.021, 0.022, 0.023, 0.024])
    """
    decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    values = [lead * 10.0**power for power in decades for lead in (1, 3)]
    shown = [float(f"{value:.6g}") for value in values if low * 0.999 <= value <= high * 1.001]
    if len(shown) < 2:  # noqa: PLR2004 - a single tick shows no scale
        return ticks(low, high, 3)
    return {"tickvals": shown, "ticktext": [axis_duration(value) for value in shown]}


def band(x: Any, y: ArrayLike, stage: str, group: str = "one", axis: str = "y") -> Trace:
    return {
        "type": "scatter",
        "mode": "lines",
        "x": x,
        "y": f4(y),
        "yaxis": axis,
        "stackgroup": group,
        "fillcolor": stage_colour(stage, solid=BAND),
        "line": {"width": 0.8, "color": "$surface"},
        "name": safe(label(stage)),
        # Name of the pattern that the browser draws.
        "meta": {"family": family(stage)},
        "hoverinfo": "none",
    }


def line(x: Any, y: Any, *, width: float = 1.6, colour: str = "$ink", dash: str = "solid", **rest: Any) -> Trace:
    style = {"width": width, "color": colour, "dash": dash}
    styled = {"type": "scatter", "mode": "lines", "x": x, "y": y, "line": style}
    return {**styled, "hoverinfo": "skip", **rest}


def dots(x: Sequence[float], y: Sequence[float]) -> Trace:
    marker = {"size": 6, "color": "$ink", "line": {"width": 1.5, "color": "$surface"}}
    return markers(list(x), list(y), marker, hoverinfo="skip", cliponaxis=False)


def markers(x: Any, y: Any, marker: dict[str, Any], **rest: Any) -> Trace:
    return {"type": "scatter", "mode": "markers", "x": x, "y": y, "marker": marker, **rest}


def note(text: str, x: Any, y: Any, *, xref: str = "x", yref: str = "y", **rest: Any) -> Annotation:
    return {"x": x, "y": y, "xref": xref, "yref": yref, "showarrow": False, "text": text, **rest}


def value_label(text: str, x: Any, y: Any, **rest: Any) -> Annotation:
    style: Annotation = {"font": {"size": 12, "color": "$ink"}, "bgcolor": "$surface@.82", "borderpad": 1}
    return {**note(f"<b>{text}</b>", x, y), "xanchor": "center", "yanchor": "bottom", "yshift": 5, **style, **rest}


def horizontal_line(y: float, colour: str, dash: str = "4px,3px") -> Shape:
    return _line_shape("paper", "y", (0, 1), (y, y), {"width": 1.2, "color": colour, "dash": dash})


def vertical_line(x: float, y0: float, y1: float, colour: str, dash: str = "dot", *, yref: str = "y") -> Shape:
    return _line_shape("x", yref, (x, x), (y0, y1), {"width": 1, "color": colour, "dash": dash})


def _line_shape(xref: str, yref: str, x: tuple[float, float], y: tuple[float, float], style: dict[str, Any]) -> Shape:
    ends = {"x0": x[0], "x1": x[1], "y0": y[0], "y1": y[1]}
    return {"type": "line", "xref": xref, "yref": yref, **ends, "line": style}


def releases(markers: Mapping[float, str], *, reported: bool = False) -> tuple[list[Shape], list[Annotation]]:
    shapes = [vertical_line(at, 0, 1, "$ink", "solid" if reported else "2px,3px", yref="paper") for at in markers]
    style: Annotation = {"font": {"size": 11, "color": "$ink"}, "bgcolor": "$surface", "borderpad": 1, "xshift": -3}
    notes = [
        note(f"<b>▾ {safe(name)}</b>", at, 1, yref="paper", xanchor="left", yanchor="bottom", **style)
        for at, name in markers.items()
    ]
    return shapes, notes


def marker_rows(notes: Sequence[Annotation], low: float, high: float, rows: int = 2) -> tuple[list[Annotation], int]:
    """Return the marker names arranged in up to *rows* rows without overlap, and the number of rows used.

    A name that fits in no row is omitted; its line stays. A name that would extend beyond the chart ends at its line.
    """
    occupied: list[list[tuple[float, float]]] = [[] for _ in range(rows)]
    shown: list[Annotation] = []
    for annotation in notes:
        at = (float(annotation["x"]) - low) / (high - low)
        width = _NAME_EDGE + _NAME_SHARE * len(annotation["text"])
        late = at + width > 1
        start, end = (at - width, at) if late else (at, at + width)
        free = (
            row for row, names in enumerate(occupied) if all(end <= left or right <= start for left, right in names)
        )
        row = next(free, None)
        if row is not None:
            occupied[row].append((start, end))
            side = {"xanchor": "right", "xshift": 3} if late else {}
            shown.append({**annotation, "yshift": MARKER_ROW * row, **side})
    return sorted(shown, key=lambda one: float(one["x"])), sum(map(bool, occupied))


def rectangle(x0: float, x1: float, y0: float, y1: float, colour: str, *, above: bool = False) -> Shape:
    """Return a filled rectangle from *x0* to *x1* [axis units], *y0* to *y1* [ratio of the plot's height]."""
    field = {"type": "rect", "xref": "x", "yref": "paper", "x0": x0, "x1": x1, "y0": y0, "y1": y1}
    return {**field, "fillcolor": colour, "line": {"width": 0}, "layer": "above" if above else "below"}


def outline(x0: float, x1: float, y0: float, y1: float) -> Shape:
    corners = {"type": "rect", "x0": x0, "x1": x1, "y0": y0, "y1": y1}
    return {**corners, "fillcolor": "rgba(0,0,0,0)", "line": {"width": 1.5, "color": "$ink"}}


def band_labels(heights: Mapping[str, float], top: float, min_share: float = MIN_LABEL_SHARE) -> list[Annotation]:
    places: list[tuple[str, float]] = []
    base = 0.0
    for stage, height in heights.items():
        if height >= top * min_share:
            middle = base + height / 2
            places.append((stage, max(middle, places[-1][1] + top * LABEL_GAP) if places else middle))
        base += height
    return [_band_label(stage, min(y, top * 0.985)) for stage, y in places]


def named_colours(figure: Figure) -> dict[str, str]:
    colours_by_name: dict[str, str] = {}
    for trace in figure["data"]:
        cells = trace.get("_cells", {})
        colours = (trace.get("fillcolor"), *(trace.get(element, {}).get("color") for element in ("marker", "line")))
        parts = [(trace.get("name"), colour) for colour in colours]
        if cells.get("byStage"):
            parts = list(zip(cells["labels"], (shade for _, shade in trace["colorscale"][2::3]), strict=True))
        for name, colour in parts:
            part = re.match(r"\$(?:st\.(\w+)|(deco))", str(colour))
            if part and (name or part[1]):
                colours_by_name[unescape(name or label(part[1]))] = part[part.lastindex or 1]
    return colours_by_name


def stages_of(frame: pd.DataFrame, excluded: Iterable[str]) -> list[str]:
    return [str(name) for name in frame.columns if name not in set(excluded) and float(frame[name].abs().sum()) > 0]


def without_side_labels(notes: Sequence[Annotation]) -> list[Annotation]:
    return [annotation for annotation in notes if not (annotation["xref"] == "paper" and annotation["x"] == 1)]


def _band_label(stage: str, y: float) -> Annotation:
    swatch = f"<span style='color:{{$st.{hue(stage)}}}'>■</span>"
    style: Annotation = {"font": {"size": 11.5, "color": "$text", "weight": 550}, "xshift": 6}
    return note(
        f"{swatch} {safe(label(stage))}", 1, y, xref="paper", xanchor="left", yanchor="middle", align="left", **style
    )


def _packed(array: np.ndarray[Any, Any], kind: str) -> dict[str, str]:
    return {"dtype": kind, "bdata": base64.b64encode(array.tobytes()).decode()}
