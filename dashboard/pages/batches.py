"""What a service's batches tell: how large they are, how long one runs, and which size would still fit the objective."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
from dash import html
from dash.development.base_component import Component

from ...core.histogram import Histogram
from ...core.stages import label
from ..components import card, chart, empty, tile
from ..costs import HOUR_SECONDS, MILLION
from ..figures.capacity import batch_figure
from ..format import MINUS, UNKNOWN, count, duration, enough, money, percent
from .loads import Loads
from .measures import measure
from .page import Context

# A band with fewer runs than that says little of itself.
_MIN_RUNS = 20
_MODEL = ("forward", "prefill")


@dataclass(frozen=True, slots=True)
class Band:
    """The requests whose batch was of one size, about.

    Args:
        name: The band: `8-15`.
        smallest: Of its sizes. [count]
        largest: Of its sizes; the last band has no end, and says its start here. [count]
        runs: How long the model ran for its requests. [seconds]
    """

    name: str
    smallest: int
    largest: int
    runs: Histogram

    @property
    def size(self) -> float:
        """The middle of its sizes."""
        return (self.smallest + self.largest) / 2

    @property
    def mean_seconds(self) -> float:
        """The mean time of a run."""
        return self.runs.sum / self.runs.count

    @property
    def each_seconds(self) -> float:
        """How much of a run's time one of its requests takes."""
        return self.mean_seconds / self.size


def bands_of(context: Context) -> list[Band]:
    """Return the bands that requests of the window ran in, smallest first."""
    found = context.source.ask(context.source.read.batches, context.selection)
    return [_band(name, runs) for name, runs in found.items() if runs.count]


def batch_tile(context: Context) -> Component:
    """Return how many items a request's run had on average, and between which bounds that is sure."""
    bands = bands_of(context)
    if not bands:
        return tile("Batch size", UNKNOWN, "", "no request told one")
    total = sum(each.runs.count for each in bands)
    mean, low, high = (
        sum(weigh(each) * each.runs.count for each in bands) / total
        for weigh in (lambda band: band.size, lambda band: band.smallest, lambda band: band.largest)
    )
    below = f"{count(low)} to {count(high)}, kept in bands" if high > low else f"{count(total)} requests"
    return tile("Batch size", count(mean), f"up to {bands[-1].largest}", below)


def best_batch_tile(context: Context, loads: Loads) -> Component:
    """Return the size with the least model time a request whose runs still leave room inside the objective."""
    name, bands = "Best batch in SLO", bands_of(context)
    if not bands:
        return tile(name, UNKNOWN, "", "no request told a size")
    if loads.threshold_seconds is None:
        return tile(name, UNKNOWN, "", "needs an objective")
    room = _room(context, loads.threshold_seconds)
    if room is None:
        return tile(name, UNKNOWN, "", f"{loads.name} needs more requests")
    fitting = [each for each in bands if (slow := _slow(each, loads.quantile)) is not None and slow <= room]
    if not fitting:
        return tile(name, UNKNOWN, "", "none that ran fits")
    best = min(fitting, key=lambda each: each.each_seconds)
    usual = sum(each.runs.sum / each.size for each in bands) / sum(each.runs.count for each in bands)
    saved = 1 - best.each_seconds / usual
    return tile(name, best.name.replace("-", "–"), "", f"est. {MINUS}{percent(saved)} model time")  # noqa: RUF001 - from one to another


def batch_card(context: Context, size: str) -> Component:
    """Return what a run takes by batch size, above what that makes for one request, in money where a price says so."""
    bands = [each for each in bands_of(context) if each.runs.count >= _MIN_RUNS]
    if not bands:
        why = "Shown when the model says how many items it ran at once."
        return card("Batch size", empty("No batch size known", why), size=size)
    hourly, currency = _replica_hour(context)
    run = {each.name: each.mean_seconds for each in bands}
    if hourly is None:
        below = {each.name: each.each_seconds for each in bands}
        written, name = [duration(each) for each in below.values()], "of it, one request"
    else:
        below = {each.name: hourly / HOUR_SECONDS * each.each_seconds * MILLION for each in bands}
        written, name = [money(each, currency) for each in below.values()], "cost per 1 M, replicas always busy"
    stage = _stage(context)
    figure = batch_figure(run, below, stage, written, name)
    unit = f"cost per 1 M requests ({currency})" if hourly is not None else "model time of a request (seconds)"
    frame = pd.DataFrame(
        {
            "batch size": [each.name for each in bands],
            "requests": [each.runs.count for each in bands],
            "mean time of a run (seconds)": list(run.values()),
            unit: list(below.values()),
        }
    )
    spoken = f"A batch of {bands[0].name} runs {duration(bands[0].mean_seconds)}, one of {bands[-1].name} {duration(bands[-1].mean_seconds)}; for one request that is {written[0]} and {written[-1]}."
    foot = (
        None
        if hourly is not None
        else "With per_replica_hour and replicas in the file of prices, this shows what it costs."
    )
    return card(
        "Batch size", chart("batch", figure, spoken, 400, frame=frame), sub=f"{label(stage)} by size", foot=foot and html.Span(foot), size=size
    )  # fmt: skip


def _band(name: str, runs: Histogram) -> Band:
    first, _, last = name.removesuffix("+").partition("-")
    return Band(name, int(first), int(last or first), runs)


def _slow(band: Band, quantile: float) -> float | None:
    """Return the time of a slow run of *band*; None where too few tell of it."""
    found = band.runs.quantile(quantile) if enough(band.runs.count, quantile) else None
    return found.value if found else None


def _room(context: Context, threshold: float) -> float | None:
    """Return how long the model may run at p99, with all other stages as they are there; None where p99 is not known."""
    measures = measure(context.source, context.selection)
    if measures.p99 is None:
        return None
    return threshold - sum(seconds for stage, seconds in measures.tail_stages.items() if stage not in _MODEL)


def _stage(context: Context) -> str:
    """Return which of the two stages of a model takes more here."""
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
