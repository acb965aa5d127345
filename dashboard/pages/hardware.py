"""Hardware card: utilization of CPUs and GPUs, overall and in slow time steps, by process and device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pandas as pd
from dash import html
from dash.development.base_component import Component

from ...core import hardware as measures
from ...core.hardware import CPU_SHARE, GPU, GPU_MEMORY, Measure, host_of
from ...core.histogram import has_enough_samples
from ..figures.over_time import hardware_figure
from ..ui.components import Node, card, chart, code_block, empty, spark, table, with_code
from ..ui.format import SPACE, UNKNOWN, count, duration, megahertz, percent, percentile, size, span
from .page import Context, installable

# Share of the time steps that count as slow, and the minimum number of steps.
SLOW_SHARE, MIN_STEPS = 0.1, 20
# Maximum number of lines in the chart, and of rows in the table.
_MOST_LINES, _MOST_ROWS = 12, 24
_QUANTILES = (0.99, 0.95, 0.9, 0.5)
# Smaller differences in utilization count as equal. [ratio]
_MORE = 0.05
_Write = Callable[[float], str]
_Columns = Mapping[Measure, tuple[str, str, _Write]]
_PROCESS: _Columns = {
    measures.CPU: ("CPUs", "mean", count),
    measures.CPU_SHARE: ("of its CPUs", "mean", percent),
    measures.THROTTLED: ("at its limit", "mean", percent),
    measures.MEMORY: ("Memory", "most", size),
    measures.THREADS: ("Threads", "most", lambda threads: count(int(threads))),
    measures.LOOP_LAG: ("Worst loop lag", "most", duration),
}
_GPU: _Columns = {
    measures.GPU: ("Busy", "mean", percent),
    measures.GPU_MEMORY: ("Memory", "most", size),
    measures.GPU_MEMORY_SHARE: ("filled", "most", percent),
    measures.GPU_POWER: ("Power", "mean", lambda watts: f"{count(watts)}{SPACE}W"),
    measures.GPU_CLOCK: ("Clock", "mean", megahertz),
    measures.PCIE_IN: ("PCIe in", "mean", lambda rate: f"{size(rate)}/s"),
    measures.PCIE_OUT: ("PCIe out", "mean", lambda rate: f"{size(rate)}/s"),
}
_TORCH: _Columns = {
    measures.TORCH_ALLOCATED: ("Allocated", "most", size),
    measures.TORCH_RESERVED: ("Reserved", "most", size),
}
# Measures that may delay requests although the service is idle, with the words before and after their shares.
_OTHERS = {
    measures.HOST_CPU: ("CPUs of the whole machine", "busy"),
    measures.THROTTLED: ("The container was throttled at its CPU limit in", "of the scheduler periods"),
}


def hardware_card(context: Context) -> Component:
    frame = hardware_frame(context)
    if frame.empty:
        return card("Hardware", _no_hardware())
    axis = context.axis_of(frame)
    (kind, shares), (quantile, tail) = utilization(frame), _tail(context)
    tail_name = percentile(quantile)
    body: list[Node] = [html.P(_finding(frame, kind, shares, tail, tail_name), className="says")]
    if len(shares):
        named = odd_one_out(shares)
        drawn = _drawn(shares, named)
        figure = hardware_figure(drawn, tail, axis, name=f"{kind} busy", tail_name=tail_name, named=named)
        spoken = f"{kind} busy {percent(float(shares['share'].mean()))} on average, up to {percent(float(shares['share'].max()))} in a step."
        wide = shares.assign(share=shares["share"].round(4)).pivot_table(index="at", columns="place", values="share")
        body.append(
            chart("hardware", figure, spoken, 260, frame=wide.reset_index().rename(columns={"at": "time (UTC)"}))
        )
        body.append(line_names(drawn, named, kind))
    for what, columns in (("GPU", _GPU), ("Process", _PROCESS), ("Device of torch", _TORCH)):
        body.append(_table(frame, what, columns))
    return card(
        "Hardware",
        body,
        sub=f"mean per {span(axis.step)}; memory and lag: maximum",
        foot=with_code(_footnotes(frame, kind)),
    )


def _no_hardware() -> Component:
    return empty(
        "No host metrics in this window",
        "Agents report their process every ten seconds after the first request; older versions "
        "do not. Agents report GPUs if nvidia-ml-py is installed next to the service. In a clone of Stagelens, with its environment active:",
        code_block(f"pip install {installable('gpu')}"),
    )


def _tail(context: Context) -> tuple[float, pd.DataFrame]:
    """Return the highest percentile with enough requests in most steps, and its time series (at, value [seconds])."""
    series = context.source.cached(
        context.source.read.quantiles_over_time, context.selection, _QUANTILES, context.axis.step
    )
    for quantile in _QUANTILES:
        sure = series[[has_enough_samples(int(n), quantile) for n in series["n"]]]
        if 2 * len(sure) >= len(series) or quantile == _QUANTILES[-1]:
            return quantile, sure[["at"]].assign(value=sure[f"p{100 * quantile:g}"])
    raise AssertionError  # the last quantile always returns


def _finding(frame: pd.DataFrame, kind: str, shares: pd.DataFrame, tail: pd.DataFrame, tail_name: str) -> str:
    if shares.empty:
        return "GPU utilization is not available: a MIG slice reports no utilization."
    comparison = compare_slow_steps(shares, tail)
    mean = f"{kind}s busy {percent(float(shares['share'].mean()))} of the time"
    if comparison is None:
        return f"{mean}; not enough data with {tail_name} for a comparison with slow requests."
    when = f"In the slowest tenth of the time ({tail_name} above {duration(comparison.threshold_seconds)}) {kind}s were"
    return " ".join([f"{when} {_comparison_words(comparison)}.", *_other_causes(frame, tail)])


def _comparison_words(comparison: SlowComparison) -> str:
    if abs(comparison.slow - comparison.other) < _MORE:
        return f"{percent(comparison.slow)} busy, as at other times: their load is not the cause"
    return f"{percent(comparison.slow)} busy, at other times {percent(comparison.other)}"


def _other_causes(frame: pd.DataFrame, tail: pd.DataFrame) -> list[str]:
    causes: list[str] = []
    for measure, (before, after) in _OTHERS.items():
        comparison = compare_slow_steps(shares_of_measure(frame, measure.key), tail)
        if comparison is not None and comparison.slow - comparison.other >= _MORE:
            causes.append(f"{before} {percent(comparison.slow)} {after}, at other times {percent(comparison.other)}.")
    return causes


def odd_one_out(shares: pd.DataFrame) -> str:
    means = shares.groupby("place")["share"].mean()
    away = (means - means.median()).abs()
    if len(means) <= 2:  # noqa: PLR2004 - of two, none is closer to the middle
        return str(means.idxmax())
    return str(away.idxmax()) if away.max() >= _MORE else ""


def _drawn(shares: pd.DataFrame, named: str) -> pd.DataFrame:
    most = shares.groupby("place")["share"].mean().nlargest(_MOST_LINES).index
    return shares[shares["place"].isin([*most, named])]


def line_names(drawn: pd.DataFrame, named: str, kind: str) -> Component:
    means = drawn.groupby("place")["share"].mean()
    others = means.drop(named, errors="ignore")
    entries = [("vkey", f"{named}: {percent(float(means[named]))} busy")] if named else []
    if len(others):
        group = f"{len(others)} others" if named else f"{len(others)} {kind}s"
        ends = dict.fromkeys(percent(float(share)) for share in (others.min(), others.max()))
        name = str(others.index[0]) if len(others) == 1 else group
        entries.append(("vkey old", f"{name}: {' to '.join(ends)} busy"))
    return html.Div([html.Span([html.I(className=css), text]) for css, text in entries], className="legend")


def _table(frame: pd.DataFrame, what: str, columns: _Columns) -> Component | None:
    measured = frame[frame["measure"].isin([measure.key for measure in columns])]
    if measured.empty:
        return None
    shown = {measure: title for measure, title in columns.items() if (measured["measure"] == measure.key).any()}
    first = next(iter(shown)).key
    means = measured[measured["measure"] == first].groupby("place")["mean"].mean()
    places = sorted(
        {str(device) for device in measured["place"]}, key=lambda device: (-float(means.get(device, 0.0)), device)
    )
    head: list[tuple[Node, str]] = [(what, ""), ("", "hide"), *((name, "r") for name, _, _ in shown.values())]
    rows = [_row(measured[measured["place"] == place], place, first, shown) for place in places[:_MOST_ROWS]]
    more = f"{len(places) - _MOST_ROWS} less busy rows are not shown." if len(places) > _MOST_ROWS else None
    return html.Div([table(head, rows, what), html.P(more, className="muted") if more else None])


def _row(rows_of_place: pd.DataFrame, place: str, first: str, columns: _Columns) -> Component:
    trend = [float(mean) for mean in rows_of_place[rows_of_place["measure"] == first]["mean"]]
    cells: list[Component] = [
        html.Th(html.Span(place, className="mono"), scope="row"),
        html.Td(spark(trend, css="spk"), className="hide"),
    ]
    for measure, (_, statistic, write) in columns.items():
        values = rows_of_place[rows_of_place["measure"] == measure.key]
        text = UNKNOWN
        if len(values):
            text = write(float(values["most"].max() if statistic == "most" else values["mean"].mean()))
        cells.append(html.Td(text, className="r"))
    return html.Tr(cells)


def _footnotes(frame: pd.DataFrame, kind: str) -> str:
    host = frame[frame["measure"] == measures.HOST_CPU.key]["mean"]
    whole = f"All processes of the machines: CPUs {percent(float(host.mean()))} busy. " if len(host) else ""
    if kind == "GPU":
        return f"{whole}A GPU counts as busy while any kernel runs, so 100 % busy is not full load."
    return f"{whole}No GPU is reported; run `pip install {installable('gpu')}` in the environment of the service."


@dataclass(frozen=True, slots=True)
class SlowComparison:
    threshold_seconds: float
    slow: float
    other: float


def utilization(frame: pd.DataFrame) -> tuple[str, pd.DataFrame]:
    """Return the busiest kind of device (GPU or CPU) and its utilization.

    With GPUs the result is their utilization by all processes. Without GPUs it is the CPU time of all processes of the service on
    a machine, relative to the CPUs they may use.

    Returns:
        "GPU" or "CPU", and a frame with the columns at, place, share; empty without reports.
    """
    if frame["measure"].isin([GPU.key, GPU_MEMORY.key]).any():
        rows = frame[frame["measure"] == GPU.key]
        return "GPU", rows[["at", "place"]].assign(share=rows["mean"])
    rows = frame[frame["measure"] == CPU_SHARE.key]
    hosts = rows[["at", "mean"]].assign(place=[host_of(device) for device in rows["place"]])
    added = hosts.groupby(["at", "place"])["mean"].sum().clip(upper=1.0)
    return "CPU", added.rename("share").reset_index()


def mean_utilization(frame: pd.DataFrame) -> float | None:
    """Return the mean utilization of all machines; None without reports [ratio]."""
    _, shares = utilization(frame)
    return float(shares["share"].mean()) if len(shares) else None


def compare_slow_steps(values: pd.DataFrame, tail: pd.DataFrame) -> SlowComparison | None:
    both = values.groupby("at")["share"].mean().to_frame().join(tail.set_index("at")["value"], how="inner").dropna()
    if len(both) < MIN_STEPS:
        return None
    threshold = float(both["value"].quantile(1 - SLOW_SHARE))
    slow = both["value"] > threshold
    if not slow.any():
        return None
    return SlowComparison(threshold, float(both["share"][slow].mean()), float(both["share"][~slow].mean()))


def shares_of_measure(frame: pd.DataFrame, measure: str) -> pd.DataFrame:
    rows = frame[frame["measure"] == measure]
    return rows[["at", "place"]].assign(share=rows["mean"])


def hardware_frame(context: Context) -> pd.DataFrame:
    return context.source.cached(context.source.read.hardware, context.selection, context.axis.step)
