"""The summary of a run: a screen of a terminal, 80 columns wide, on stderr, because stdout is the command's own."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import timedelta

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from ..core.histogram import Estimate
from ..core.stages import label, ordered
from ..dashboard.format import duration, interval, needed, percent, percentile, portion, several, span, whole
from .findings import QUANTILES, Findings, Line, Parts, Service
from .saved import Run
from .waterfall import waterfall
from .words import FULL, SHADED, colour, table, text

# Wider lines are no easier to read. [columns]
_WIDEST = 100
# What the longest stage takes. [columns]
_BAR = 28
_NOTHING = """
A request is what a web framework answers, or in a script the outermost call of
a library that runs models.
 - Was anything asked of it? Send it requests, then end it with Ctrl-C.
 - Does it use one of the supported libraries? Else its code says what a request
   is:  with stagelens.request("name"): ...
 - Did it end by SIGKILL or os._exit? What it had counted was never sent then."""


def show(found: Findings, run: Run, console: Console | None = None) -> None:
    """Print what was *found* of *run* on *console*, on stderr if left out."""
    out = console or Console(stderr=True)
    out.width = min(out.width, _WIDEST)
    for part in _parts(found, run):
        out.print()
        out.print(part, highlight=False)


def _parts(found: Findings, run: Run) -> Iterator[RenderableType]:
    length = run.end - run.start
    ran = span(length) if length >= timedelta(minutes=1) else duration(length.total_seconds())
    if not found.services:
        yield Text.assemble(text(f"No request was seen in {ran}.", "bold"), _NOTHING)
    for service in found.services:
        yield _head(service.whole, ran)
        yield _latencies(service)
        yield _stages(service.typical, service.tail)
        if service.slowest is not None:
            yield waterfall(service.slowest)
    if found.dropped:
        yield text(f"{several(found.dropped, 'request')} more could not be counted.", "bold red")


def _head(line: Line, ran: str) -> Text:
    share = percent(line.errors / line.requests, 2)
    failed = text(f"  {several(line.errors, 'error')}, {share}", "bold red") if line.errors else "  no errors"
    return Text.assemble(text(line.name, "bold"), text(f"  {several(line.requests, 'request')} in {ran}"), failed)


def _latencies(service: Service) -> Table:
    made = table("Latency", "n", "errors", *map(percentile, QUANTILES))
    for line in (service.whole, *service.routes):
        made.add_row(
            Text.assemble("all\n", ("95 % sure", "dim")) if line is service.whole else text(line.name),
            text(whole(line.requests)),
            text(whole(line.errors), "red" if line.errors else ""),
            *(_latency(*each) for each in zip(QUANTILES, line.quantiles, strict=True)),
        )
    if service.more_routes:
        made.add_row(text(f"and {several(service.more_routes, 'route')} more", "dim"))
    return made


def _latency(quantile: float, found: Estimate | None) -> Text:
    """Return a percentile above what the true one lies between, or how many requests it takes."""
    if found is None:
        return Text.assemble("\u2013\n", text(f"needs {whole(needed(quantile))}", "dim"))
    between = interval(found.low, found.high) if math.isfinite(found.high) else f"from {duration(found.low)}"
    return Text.assemble(text(duration(found.value), "bold"), "\n", text(between, "dim"))


def _stages(typical: Parts, tail: Parts | None) -> Table:
    if tail is None:
        made = table("Where the time goes", typical.name)
        made.add_column()
    else:
        made = table("Where the time goes", typical.name, tail.name, "more")
        made.add_column(text(f"{FULL} as in {typical.name}  {SHADED} more in {tail.name}", "dim"))
    there = tail or typical
    longest = max(*typical.stages.values(), *there.stages.values(), 1e-9)
    for stage in ordered({*typical.stages, *there.stages}):
        before, now = typical.stages.get(stage, 0.0), there.stages.get(stage, 0.0)
        more = [duration(now), duration(now - before, sign=True)] if tail else []
        made.add_row(
            text(label(stage)), *map(text, (duration(before), *more)), _bar(stage, before / longest, now / longest)
        )
    more = [duration(there.seconds), duration(there.seconds - typical.seconds, sign=True)] if tail else []
    said = [text(blame(typical, tail))] if tail else []
    made.add_row("Together", *map(text, (duration(typical.seconds), *more)), *said, style="bold")
    return made


def _bar(stage: str, before: float, now: float) -> Text:
    """Return a bar that is solid as far as both go, and shaded where only the tail does."""
    same, whole = round(_BAR * min(before, now)), round(_BAR * now)
    return Text(FULL * same + SHADED * (whole - same) or "\u258f", colour(stage))


def blame(typical: Parts, tail: Parts) -> str:
    """Say which stage the tail has most of what it has more.

    >>> blame(Parts(0.5, {"forward": 1.0, "queue": 0.5}), Parts(0.99, {"forward": 1.0, "queue": 2.0}))
    'all of it is Queue'
    """
    more = {stage: seconds - typical.stages.get(stage, 0.0) for stage, seconds in tail.stages.items()}
    stage = max(more, key=lambda each: more[each])
    added = tail.seconds - typical.seconds
    return f"{portion(more[stage] / added)} of it is {label(stage)}" if added > 0 else ""
