"""Capacity page: latency by load with a fitted curve, capacity within the objective, batch sizes and cost."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import numpy as np
import pandas as pd
from dash import html
from dash.development.base_component import Component

from ...analysis.capacity import MIN_STEPS, Capacity, Curve, Refusal, capacity_at, fit_curve
from ...analysis.costs import HOUR_SECONDS, MILLION
from ...core.histogram import Histogram, has_enough_samples, samples_needed, value_at
from ...core.stages import label
from ..figures.capacity import VersionLoad, batch_figure, load_figure
from ..figures.time_axis import STEPS, TimeAxis, step_for
from ..ui.components import Node, card, chart, empty, link, spark, tile, tiles
from ..ui.format import (
    MANIFOLD,
    MINUS,
    UNKNOWN,
    axis_duration,
    count,
    duration,
    money,
    percent,
    percentile,
    signed_change,
    span,
    times,
    whole,
)
from .hardware import hardware_card
from .measures import measure
from .page import Context, Page, panel
from .scope_filter import scope_text
from .service_frame import service_page
from .spending import cost_card, cost_tile

# Steps shared with another version do not measure the load of this version.
_ALONE = 0.9
# Steps cut by the window are shorter than their nominal length.
_WHOLE = 0.95
_BUCKET = timedelta(seconds=10)
# Buckets with fewer runs are omitted.
_MIN_RUNS = 20
_MODEL = ("forward", "prefill")


def render(context: Context) -> Page:
    return service_page(context, "capacity", lambda: _body(context))


def _body(context: Context) -> list[Node]:
    loads = loads_of(context)
    now = request_rates(context)
    cards = [
        panel("Throughput against latency", lambda: _load_card(context, loads), "c8"),
        panel("Batch size", lambda: batch_card(context, "c4"), "c4"),
        panel("Hardware", lambda: hardware_card(context), "c12"),
        panel("Cost by stage", lambda: cost_card(context, "c12"), "c12"),
    ]
    return [
        _verdict_banner(*capacity_text(loads, now)),
        _scope_note(context),
        _tiles(context, loads, now),
        html.Div(cards, className="grid"),
    ]


def request_rates(context: Context) -> list[float]:
    """Return the request rate [requests/s] over time; the last value is the current rate."""
    series = context.source.cached(
        context.source.read.quantiles_over_time, context.selection, (0.5, 0.99), context.axis.step
    )
    rates = context.rates(series)
    return [*rates, 0.0] if rates and context.silence else rates


def capacity_text(loads: Loads, rates: list[float]) -> tuple[str, str]:
    now, capacity = loads.now, loads.now.capacity
    if capacity is not None and loads.threshold_seconds is not None:
        inside = f"{now.version} keeps {loads.name} within {axis_duration(loads.threshold_seconds)}"
        if capacity.rate <= 0:
            first = f"{now.version} has a {loads.name} above {axis_duration(loads.threshold_seconds)} at any load."
        else:
            first = f"{inside} up to about {count(capacity.rate)}/s ({count(capacity.low)} to {count(capacity.high)}/s at 95 %)."
        return first, " ".join(_capacity_details(now, rates))
    if isinstance(now.curve, Curve):
        return (
            "The capacity within an objective is unknown: this service has no latency objective.",
            f"The curve has its knee at {count(now.curve.knee)}/s: above it, latency grows faster than throughput."
            if now.curve.knee_is_sure
            else "The knee of the curve is unknown: the measured load was not near it.",
        )
    return "Not enough data to estimate capacity.", f"No curve: {why_none(now, loads.quantile)}"


def _scope_note(context: Context) -> Component | None:
    part = scope_text(context.view, ("m", "r"))
    if not part:
        return None
    return html.Div(f"Only {part}. The replicas also serve other requests of the service.", className="quiet")


def _capacity_details(load: Load, rates: list[float]) -> list[str]:
    capacity = load.capacity
    if capacity is None or not isinstance(load.curve, Curve):
        return []
    notes = [_headroom_sentence(rates[-1], capacity.rate)] if rates else []
    if capacity.beyond:
        highest = count(load.curve.highest_rate)
        notes.append(f"Extrapolated: the highest measured rate is {highest}/s.")
    return [*notes, f"The knee of the curve is at {count(load.curve.knee)}/s."] if load.curve.knee_is_sure else notes


def _headroom_sentence(now: float, capacity: float) -> str:
    if capacity <= 0:
        return ""
    if now > capacity:
        return f"The service handles {count(now)}/s now, {percent(now / capacity - 1)} above its capacity."
    if not now:
        return f"The service handles no request now and can take up to {count(capacity)}/s."
    growth = capacity / now - 1
    more = f"{percent(growth)} more requests" if growth < MANIFOLD else f"{times(1 + growth)} as many requests"
    return f"The service handles {count(now)}/s now and can take {more} (it uses {percent(now / capacity)} of its capacity)."


def _verdict_banner(first: str, rest: str) -> Component:
    return html.Div(
        html.Div([html.Div(first, className="big"), html.Div(rest, className="muted")], className="say"),
        className="verdict",
    )


def _tiles(context: Context, loads: Loads, rates: list[float]) -> Component:
    serving = (
        tile("Serving now", count(rates[-1]), "/s", _since(context), spark(rates))
        if rates
        else tile("Serving now", UNKNOWN)
    )
    return tiles(
        [
            serving,
            _capacity_tile(loads),
            _headroom_tile(loads, rates[-1] if rates else None),
            batch_tile(context),
            cost_tile(context),
            best_batch_tile(context, loads),
        ]
    )


def _since(context: Context) -> str:
    return f"no request for {span(context.silence)}" if context.silence else f"over {span(context.axis.step)}"


def _capacity_tile(loads: Loads) -> Component:
    name, capacity = "Capacity within SLO", loads.now.capacity
    if capacity is None:
        return tile(name, UNKNOWN, "", "needs an objective" if loads.threshold_seconds is None else "no curve yet")
    before = loads.before.capacity if loads.before else None
    below: Node = f"{count(capacity.low)} to {count(capacity.high)} /s at 95 %"
    if before is not None and loads.before is not None:
        worse = before.rate > capacity.rate
        below = html.Span(
            f"was {count(before.rate)} /s on {loads.before.version}", className="bad" if worse else "good"
        )
    if capacity.beyond:
        below = html.Span("extrapolated", className="warn")
    return tile(name, count(capacity.rate), "/s", below)


def _headroom_tile(loads: Loads, now: float | None) -> Component:
    capacity, name = loads.now.capacity, "Headroom"
    if capacity is None or not now:
        return tile(name, UNKNOWN, "", "capacity is unknown" if capacity is None else "no request now")
    if capacity.rate <= 0:
        return tile(name, "0", "%", html.Span("over the SLO at any load", className="bad"))
    before = loads.before.capacity if loads.before else None
    word, kind = ("above capacity", "bad") if now > capacity.rate else ("more load", "")
    text = f"{word}; uses {percent(now / capacity.rate)} of capacity"
    if before is not None and loads.before is not None and before.rate > 0:
        text += f", {percent(now / before.rate)} on {loads.before.version}"
        kind = "bad" if before.rate > capacity.rate else "good"
    return tile(name, signed_change(capacity.rate / now - 1), "", html.Span(text, className=kind))


def _load_card(context: Context, loads: Loads) -> Component:
    title, now = "Throughput against latency", loads.now
    sub = f"{loads.name} of each {span(now.step)}; line = fitted queueing curve"
    if not len(now.steps):
        longer = [link("Last 24 h", href=context.view.here(from_="now-24h", to=None), className="btn")]
        return card(
            title, empty("Not enough data for a curve", why_none(now, loads.quantile), actions=longer), size="c8"
        )
    sides = [_version_load(load) for load in (now, loads.before) if load is not None]
    figure = load_figure(sides[0], sides[1] if len(sides) > 1 else None, loads.threshold_seconds, loads.name)
    curve = now.curve
    foot: list[Node] = []
    if isinstance(curve, Curve):
        foot = [
            html.Span(["without waiting ", html.B(duration(curve.base))]),
            html.Span(["saturation at ", html.B(f"{count(curve.saturation)}/s")]),
            html.Span(["mean error of the curve ", html.B(percent(curve.residual))]),
            html.Span("dotted: extrapolated", className="muted"),
        ]
    return card(
        title,
        chart("load", figure, _load_words(loads), 366, frame=_load_table(loads)),
        sub=sub if isinstance(curve, Curve) else f"{loads.name} of each {span(now.step)}",
        tools=_versions(loads),
        foot=html.Span(foot, className="facts") if foot else None,
        size="c8",
    )


def _version_load(load: Load) -> VersionLoad:
    curve = load.curve if isinstance(load.curve, Curve) else None
    return VersionLoad(load.version, *load_arrays(load), curve, load.capacity)


def _versions(loads: Loads) -> Component:
    shown = [(loads.now, "vkey")] + ([(loads.before, "vkey old")] if loads.before else [])
    return html.Span([html.Span([html.I(className=css), load.version]) for load, css in shown], className="legend")


def _load_words(loads: Loads) -> str:
    rate, latency = load_arrays(loads.now)
    seen = f"{len(rate)} steps of {loads.now.version} between {count(float(rate.min()))} and {count(float(rate.max()))} requests/s"
    capacity = loads.now.capacity
    fits = f"; up to {count(capacity.rate)}/s are within the objective" if capacity else ""
    return f"{seen}, {loads.name} from {duration(float(latency.min()))} to {duration(float(latency.max()))}{fits}."


def _load_table(loads: Loads) -> pd.DataFrame:
    parts = [load.steps.assign(version=load.version) for load in (loads.before, loads.now) if load is not None]
    whole = pd.concat(parts, ignore_index=True)[["version", "at", "n", "rate", "latency"]]
    return whole.rename(
        columns={"at": "time (UTC)", "n": "requests", "rate": "rate (requests/s)", "latency": f"{loads.name} (seconds)"}
    )


@dataclass(frozen=True, slots=True)
class Load:
    version: str
    steps: pd.DataFrame
    step: timedelta  # length of a step
    curve: Curve | Refusal  # fitted curve, or the reason why there is none
    capacity: Capacity | None  # capacity within the threshold; None without a curve or a threshold


@dataclass(frozen=True, slots=True)
class Loads:
    now: Load
    before: Load | None
    quantile: float
    threshold_seconds: float | None

    @property
    def name(self) -> str:
        return percentile(self.quantile)


def loads_of(context: Context) -> Loads:
    slo_status, threshold = context.covering_slo, context.threshold_seconds
    quantile = slo_status.slo.objective if slo_status else 0.99
    versions = context.versions
    names = [str(version) for version in versions["version"]]
    served = [name for name, n in zip(names, versions["requests"], strict=True) if n > 0]
    chosen = context.view.scope.get("v") or (served or names)[-1]
    at = names.index(chosen) if chosen in names else len(names) - 1
    first = max(context.axis.start, _first_moment(versions["first_seen"].iloc[at]))
    now = _load(context, names[at], (first, context.view.end), quantile, threshold)
    before = None
    if at > 0:
        last = min(_first_moment(versions["last_seen"].iloc[at - 1]) + _BUCKET, context.view.end)
        first = max(last - (context.view.end - context.view.start), _first_moment(versions["first_seen"].iloc[at - 1]))
        before = _load(context, names[at - 1], (first, last), quantile, threshold) if first < last else None
    return Loads(now, before if before is not None and len(before.steps) else None, quantile, threshold)


def why_none(load: Load, quantile: float) -> str:
    if isinstance(load.curve, Curve):
        return ""
    if len(load.steps) >= MIN_STEPS:
        return f"{load.curve.text}."
    needs = f"each step ({span(load.step)}) needs {whole(samples_needed(quantile))} requests for {percentile(quantile)}"
    return f"{load.curve.text}: {needs}. A longer window has more steps."


def _load(
    context: Context, version: str, window: tuple[datetime, datetime], quantile: float, threshold: float | None
) -> Load:
    source, (start, end) = context.source, window
    selection = replace(context.selection, start=start, end=end, version=version)
    requests = measure(source, selection).requests
    step = _step(end - start, requests, quantile)
    name = percentile(quantile)
    of_version = source.cached(source.read.quantiles_over_time, selection, (quantile,), step)
    everyone = source.cached(source.read.quantiles_over_time, replace(selection, version=None), (quantile,), step)
    real = timedelta(seconds=float(of_version.attrs.get("step_seconds") or step.total_seconds()))
    axis = TimeAxis(start, end, real, context.view.zone)
    merged = of_version.merge(everyone[["at", "n"]], on="at", suffixes=("", "_all"))
    covered = axis.covered_seconds(merged["at"])
    usable = (merged["n"] >= _ALONE * merged["n_all"]) & (covered >= _WHOLE * real.total_seconds())
    usable &= np.array([has_enough_samples(int(n), quantile) for n in merged["n"]], dtype=bool)
    if context.view.live and len(merged) and end == context.view.end:
        # Agents have not sent all data of the newest step yet.
        usable &= merged["at"] < merged["at"].max()
    steps = merged.loc[usable, ["at", "n"]].reset_index(drop=True)
    steps["rate"] = steps["n"] / real.total_seconds()
    steps["latency"] = merged.loc[usable, name].to_numpy(dtype=float)
    rate, latency = (steps[column].to_numpy(dtype=float) for column in ("rate", "latency"))
    curve = fit_curve(rate, latency)
    capacity = (
        capacity_at(curve, rate, latency, threshold) if isinstance(curve, Curve) and threshold is not None else None
    )
    return Load(version, steps, real, curve, capacity)


def _step(length: timedelta, requests: int, quantile: float) -> timedelta:
    """Return the finest step that divides *length* into at most 120 steps, most of them with enough requests."""
    # Half as many again, because the request rate is lower at night.
    wanted = 1.5 * samples_needed(quantile) / max(requests / length.total_seconds(), 1e-9)
    enough = next((step for step in STEPS if step.total_seconds() >= wanted), STEPS[-1])
    return max(step_for(length), enough)


def _first_moment(at: object) -> datetime:
    return pd.Timestamp(at).to_pydatetime()  # pyright: ignore[reportArgumentType] - pandas types its timestamps as object


def load_arrays(load: Load) -> tuple[np.ndarray, np.ndarray]:
    """Return the request rates [requests/s] and latencies [seconds] of the steps of *load*."""
    return load.steps["rate"].to_numpy(dtype=float), load.steps["latency"].to_numpy(dtype=float)


@dataclass(frozen=True, slots=True)
class Band:
    name: str
    smallest: int
    largest: int
    runs: Histogram

    @property
    def size(self) -> float:
        """Middle batch size of the bucket [count]."""
        return (self.smallest + self.largest) / 2

    @property
    def mean_seconds(self) -> float:
        return self.runs.sum / self.runs.count

    @property
    def each_seconds(self) -> float:
        """Run time divided by the batch size, that is, model time per request [seconds]."""
        return self.mean_seconds / self.size


def bands_of(context: Context) -> list[Band]:
    histograms = context.source.cached(context.source.read.batches, context.selection)
    return [_band(name, runs) for name, runs in histograms.items() if runs.count]


def batch_tile(context: Context) -> Component:
    """Return the tile of the mean batch size in which requests ran, with its error bounds."""
    bands = bands_of(context)
    if not bands:
        return tile("Batch size", UNKNOWN, "", "no request reported a batch size")
    total = sum(band.runs.count for band in bands)
    mean, low, high = (
        sum(weigh(band) * band.runs.count for band in bands) / total
        for weigh in (lambda band: band.size, lambda band: band.smallest, lambda band: band.largest)
    )
    below = f"{count(low)} to {count(high)}, in buckets" if high > low else f"{count(total)} requests"
    return tile("Batch size", count(mean), f"up to {bands[-1].largest}", below)


def best_batch_tile(context: Context, loads: Loads) -> Component:
    name, bands = "Best batch within SLO", bands_of(context)
    if not bands:
        return tile(name, UNKNOWN, "", "no request reported a size")
    if loads.threshold_seconds is None:
        return tile(name, UNKNOWN, "", "needs an objective")
    limit = _model_time_limit(context, loads.threshold_seconds)
    if limit is None:
        return tile(name, UNKNOWN, "", f"{loads.name} needs more requests")
    fitting = [band for band in bands if (slow := value_at(band.runs, loads.quantile)) is not None and slow <= limit]
    if not fitting:
        return tile(name, UNKNOWN, "", "no measured size is fast enough")
    best = min(fitting, key=lambda band: band.each_seconds)
    usual = sum(band.runs.sum / band.size for band in bands) / sum(band.runs.count for band in bands)
    saved = 1 - best.each_seconds / usual
    return tile(name, best.name.replace("-", "–"), "", f"est. {MINUS}{percent(saved)} model time")  # noqa: RUF001 - an en dash marks a range


def batch_card(context: Context, size: str) -> Component:
    bands = [band for band in bands_of(context) if band.runs.count >= _MIN_RUNS]
    if not bands:
        why = "Shown when the model reports its batch size."
        return card("Batch size", empty("Batch size unknown", why), size=size)
    hourly, currency = _replica_hour(context)
    run = {band.name: band.mean_seconds for band in bands}
    if hourly is None:
        below = {band.name: band.each_seconds for band in bands}
        written, name = [duration(seconds) for seconds in below.values()], "time per request"
    else:
        below = {band.name: hourly / HOUR_SECONDS * band.each_seconds * MILLION for band in bands}
        written, name = [money(cost, currency) for cost in below.values()], "cost per 1 M requests at full load"
    stage = _larger_model_stage(context)
    figure = batch_figure(run, below, stage, written, name)
    unit = f"cost per 1 M requests ({currency})" if hourly is not None else "model time per request (seconds)"
    frame = pd.DataFrame(
        {
            "batch size": [band.name for band in bands],
            "requests": [band.runs.count for band in bands],
            "mean time of a run (seconds)": list(run.values()),
            unit: list(below.values()),
        }
    )
    spoken = f"A batch of {bands[0].name} takes {duration(bands[0].mean_seconds)}, a batch of {bands[-1].name} {duration(bands[-1].mean_seconds)}; per request {written[0]} and {written[-1]}."
    foot = None if hourly is not None else "Set per_replica_hour and replicas in the price file to see the cost."
    return card(
        "Batch size", chart("batch", figure, spoken, 400, frame=frame), sub=f"{label(stage)} by size", foot=foot and html.Span(foot), size=size
    )  # fmt: skip


def _band(name: str, runs: Histogram) -> Band:
    first, _, last = name.removesuffix("+").partition("-")
    return Band(name, int(first), int(last or first), runs)


def _model_time_limit(context: Context, threshold: float) -> float | None:
    measures = measure(context.source, context.selection)
    if measures.p99 is None:
        return None
    return threshold - sum(seconds for stage, seconds in measures.tail_stages.items() if stage not in _MODEL)


def _larger_model_stage(context: Context) -> str:
    spent = measure(context.source, context.selection).median_stages
    return max(_MODEL, key=lambda stage: spent.get(stage, 0.0))


def _replica_hour(context: Context) -> tuple[float | None, str]:
    costs, environment = context.source.costs, context.view.text("env")
    if costs is None:
        return None, ""
    whole, replicas = (
        costs.per_hour(context.service or "", environment),
        costs.replicas(context.service or "", environment),
    )
    return (whole / replicas if whole is not None and replicas else None), costs.currency
