"""Outputs of a finished run: a summary on stderr, an HTML page, a saved file.

The summary has latency, stages, and the slowest request of each service, by the same rules as the dashboard. Stdout is left to the
command.
"""

from __future__ import annotations

import logging
import math
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from heapq import nlargest
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from ..analysis.breakdown import stages_at
from ..analysis.comparison import MIN_CHANGE, highest_quantile
from ..analysis.profile import FunctionTime, functions
from ..analysis.waterfall import NS, position_of, spans_by_start, unexplained_ns, wall_seconds
from ..core.errors import StagelensError
from ..core.histogram import Estimate, confidence_interval, has_enough_samples, samples_needed
from ..core.names import METHOD, PROBE_DURATION, STATUS_ERROR
from ..core.stages import label, ordered
from ..dashboard.ui.format import duration, interval, percent, percentile, portion, several, span, whole
from ..dashboard.ui.trace_text import span_name, span_note
from ..dashboard.view import trace_name
from ..dashboard.web.report import run_report
from ..instrumentors.run import RunOutputs
from ..questions.breakdown import breakdown
from ..store import Reader, RetainedTrace, Selection, Store
from .compare_output import FULL, SHADED, plain_table, stage_colour, styled
from .files import open_atomic
from .saved_run import Run, save_run
from .temp_collector import TemporaryCollector

# Width of the bar of a whole request. [columns]
_WATERFALL_COLUMNS = 32
# Maximum number of intervals shown; shorter ones are counted but not shown.
_MAX_INTERVALS = 12
QUANTILES = (0.5, 0.95, 0.99)
_MAX_ROUTES = 8
_BUCKET = timedelta(seconds=10)
# Maximum line length; longer lines are hard to read. [columns]
_MAX_COLUMNS = 100
# Width of the bar of the longest stage. [columns]
_BAR_COLUMNS = 28
_NO_REQUESTS_HELP = """
Stagelens counts each HTTP request of a web framework. In a script, it counts the
outermost call of a library that runs models.
 - Did the command receive requests? Send some, then stop the command with Ctrl-C.
 - Does the command use a supported library? Otherwise define a request in the
   code:  with stagelens.request("name"): ...
 - Did the command end by SIGKILL or os._exit? Then its counts were not sent."""
_MAX_NAME_CHARS = 60


def waterfall_table(trace: RetainedTrace) -> Table:
    wall = wall_seconds(trace.duration_ns)
    longest = {
        id(span) for span in nlargest(_MAX_INTERVALS, trace.spans, key=lambda stage_span: stage_span["duration_ns"])
    }
    table = plain_table("The slowest request", "time")
    table.add_column(_ellipsized(styled(_request_name(trace), "dim")))
    for stage_span in spans_by_start(trace.spans):
        if id(stage_span) in longest:
            table.add_row(
                styled(span_name(stage_span)),
                styled(duration(stage_span["duration_ns"] / NS)),
                _ellipsized(_interval_bar(stage_span, wall)),
            )
    if len(trace.spans) > len(longest):
        table.add_row(styled(f"{several(len(trace.spans) - len(longest), 'shorter interval')}", "dim"))
    for stage, spent in unexplained_ns(trace.spans, trace.stages_ns).items():
        table.add_row(styled(label(stage)), styled(duration(spent / NS)), styled("between the stages", "dim"))
    table.add_row(styled("Total", "bold"), styled(duration(wall), "bold"))
    return table


def _ellipsized(text: Text) -> Text:
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _request_name(trace: RetainedTrace) -> str:
    request = " ".join(str(part) for part in (trace.attributes.get(METHOD), trace.series.route) if part)
    failed = "failed" if trace.series.status == STATUS_ERROR else ""
    return "  ".join(part for part in (request, failed, trace.trace_id[:8]) if part)


def _interval_bar(span: Mapping[str, Any], wall: float) -> Text:
    left, width = (percent / 100 * _WATERFALL_COLUMNS for percent in position_of(span, wall))
    start = min(round(left), _WATERFALL_COLUMNS - 1)
    bar = Text(" " * start).append(FULL * max(round(left + width) - start, 1), stage_colour(str(span["stage"])))
    note = span_note(span)
    return bar.append_text(styled(f" {note}", "dim")) if note else bar


# Functions in the summary, and the share of the latency from which a function is worth a line.
_MAX_FUNCTIONS, _MIN_SHARE = 8, 0.02


@dataclass(frozen=True, slots=True)
class RequestStats:
    name: str
    requests: int
    errors: int
    quantiles: Sequence[Estimate | None]


@dataclass(frozen=True, slots=True)
class StageTimes:
    quantile: float | None
    stages: Mapping[str, float]

    @property
    def name(self) -> str:
        return "mean" if self.quantile is None else percentile(self.quantile)

    @property
    def seconds(self) -> float:
        return sum(self.stages.values())


@dataclass(frozen=True, slots=True)
class ServiceSummary:
    whole: RequestStats
    routes: Sequence[RequestStats]
    more_routes: int
    typical: StageTimes
    tail: StageTimes | None
    slowest: RetainedTrace | None
    functions: Sequence[FunctionTime] = ()


@dataclass(frozen=True, slots=True)
class RunSummary:
    services: Sequence[ServiceSummary]
    dropped: int
    probes: int = 0


def run_window(read: Reader) -> tuple[datetime, datetime] | None:
    """Return start and end of the requests, in whole buckets; None without requests."""
    seen = read.releases()
    return None if seen.empty else (seen["first_seen"].min(), seen["last_seen"].max() + _BUCKET)


def summarize_run(read: Reader) -> RunSummary:
    window, dropped = run_window(read), read.state().dropped
    if window is None:
        return RunSummary([], dropped)
    by_requests = read.services(*window).sort_values("requests", ascending=False)
    # Probes do not extend the window.
    probes = read.fleet_counts(Selection(window[0], window[1] + timedelta(days=1)), PROBE_DURATION).values()
    services = [_service_summary(read, Selection(*window, service=name)) for name in by_requests["service"]]
    return RunSummary(services, dropped, sum(sum(by_key.values()) for by_key in probes))


def _service_summary(read: Reader, about: Selection) -> ServiceSummary:
    whole = _request_stats(read, about.service or "", about)
    routes = list(read.dimensions(about)["route"])
    shown = routes[:_MAX_ROUTES] if len(routes) > 1 else []
    typical, tail = _stage_times(read, about, whole.requests)
    exemplars = read.exemplars(about, limit=1)
    return ServiceSummary(
        whole,
        [_request_stats(read, route, replace(about, route=route)) for route in shown],
        len(routes) - len(shown) if shown else 0,
        typical,
        tail,
        read.trace(trace_name(*exemplars.iloc[0][["trace_id", "span_id"]])) if len(exemplars) else None,
        _slow_functions(read, about, tail),
    )


def _slow_functions(read: Reader, about: Selection, tail: StageTimes | None) -> list[FunctionTime]:
    bands = read.profile(about, (0.5, tail.quantile)) if tail and tail.quantile else []
    if not bands:
        return []
    median, slow = bands
    least = slow.latency * 1e3 * _MIN_SHARE
    return [function for function in functions(slow, median) if function.tail_self_ms >= least][:_MAX_FUNCTIONS]


def _request_stats(read: Reader, name: str, about: Selection) -> RequestStats:
    latency = read.latency(about)
    n = latency.count
    errors = read.latency(replace(about, status="error")).count
    return RequestStats(
        name,
        n,
        errors,
        [confidence_interval(latency, quantile) if has_enough_samples(n, quantile) else None for quantile in QUANTILES],
    )


def _stage_times(read: Reader, about: Selection, requests: int) -> tuple[StageTimes, StageTimes | None]:
    if not has_enough_samples(requests, 0.5):
        mean = read.breakdown_over_time(about, None, about.end - about.start)
        return StageTimes(None, stages_at(mean.drop(columns="at"), 0)), None
    tail = highest_quantile(requests)
    stages = breakdown(read, about, (0.5, tail or 0.5))
    return StageTimes(0.5, stages.stages(0.5)), StageTimes(tail, stages.stages(tail)) if tail else None


def print_summary(summary: RunSummary, run: Run, console: Console | None = None) -> None:
    out = console or Console(stderr=True)
    out.width = min(out.width, _MAX_COLUMNS)
    for part in _summary_parts(summary, run):
        out.print()
        out.print(part, highlight=False)


def _summary_parts(summary: RunSummary, run: Run) -> Iterator[RenderableType]:
    length = run.end - run.start
    ran = span(length) if length >= timedelta(minutes=1) else duration(length.total_seconds())
    if not summary.services:
        yield Text.assemble(styled(f"No request was recorded in {ran}.", "bold"), _NO_REQUESTS_HELP)
    for service in summary.services:
        yield _service_heading(service.whole, ran)
        yield _latency_table(service)
        yield _stage_time_table(service.typical, service.tail)
        if service.tail is not None and service.functions:
            yield _function_table(service.tail, service.functions)
            yield from _stage_options(service.functions)
        if service.slowest is not None:
            yield waterfall_table(service.slowest)
    if summary.probes:
        text = f"{several(summary.probes, 'health probe')} not included; STAGELENS_PROBES=none counts them as requests."
        yield styled(text)
    if summary.dropped:
        yield styled(f"{several(summary.dropped, 'request')} could not be counted and are not included.", "bold red")


def _service_heading(line: RequestStats, ran: str) -> Text:
    share = percent(line.errors / line.requests, 2)
    failed = styled(f"  {several(line.errors, 'error')}, {share}", "bold red") if line.errors else "  no errors"
    return Text.assemble(styled(line.name, "bold"), styled(f"  {several(line.requests, 'request')} in {ran}"), failed)


def _latency_table(service: ServiceSummary) -> Table:
    table = plain_table("Latency", "n", "errors", *map(percentile, QUANTILES))
    for line in (service.whole, *service.routes):
        table.add_row(
            Text.assemble("all\n", ("95 % CI", "dim")) if line is service.whole else styled(line.name),
            styled(whole(line.requests)),
            styled(whole(line.errors), "red" if line.errors else ""),
            *(_latency_cell(*quantile_estimate) for quantile_estimate in zip(QUANTILES, line.quantiles, strict=True)),
        )
    if service.more_routes:
        table.add_row(styled(f"and {several(service.more_routes, 'route')} more", "dim"))
    return table


def _latency_cell(quantile: float, estimate: Estimate | None) -> Text:
    if estimate is None:
        return Text.assemble("\u2013\n", styled(f"needs {whole(samples_needed(quantile))}", "dim"))
    between = (
        interval(estimate.low, estimate.high) if math.isfinite(estimate.high) else f"from {duration(estimate.low)}"
    )
    return Text.assemble(styled(duration(estimate.value), "bold"), "\n", styled(between, "dim"))


def _stage_time_table(typical: StageTimes, tail: StageTimes | None) -> Table:
    if tail is None:
        table = plain_table("Where the time goes", typical.name)
        table.add_column()
    else:
        table = plain_table("Where the time goes", typical.name, tail.name, "more")
        table.add_column(styled(f"{FULL} as in {typical.name}  {SHADED} more in {tail.name}", "dim"))
    there = tail or typical
    longest = max(*typical.stages.values(), *there.stages.values(), 1e-9)
    for stage in ordered({*typical.stages, *there.stages}):
        before, now = typical.stages.get(stage, 0.0), there.stages.get(stage, 0.0)
        more = [duration(now), duration(now - before, sign=True)] if tail else []
        table.add_row(
            styled(label(stage)),
            *map(styled, (duration(before), *more)),
            _stage_bar(stage, before / longest, now / longest),
        )
    more = [duration(there.seconds), duration(there.seconds - typical.seconds, sign=True)] if tail else []
    blame = [styled(blame_text(typical, tail))] if tail else []
    table.add_row("Total", *map(styled, (duration(typical.seconds), *more)), *blame, style="bold")
    return table


def _function_table(tail: StageTimes, function_times: Sequence[FunctionTime]) -> Table:
    table = plain_table(f"Your code at {tail.name}", percentile(0.5), tail.name, "more")
    table.add_column(styled("stage", "dim"))
    for function_time in function_times:
        usual, more = function_time.median_self_ms, function_time.growth_ms
        table.add_row(
            styled(function_time.title),
            styled("\u2013" if usual is None else duration(usual / 1e3)),
            styled(duration(function_time.tail_self_ms / 1e3), "bold"),
            styled("" if more is None else duration(more / 1e3, sign=True)),
            styled(label(function_time.stage)),
        )
    return table


def _stage_options(function_times: Sequence[FunctionTime]) -> Iterator[Text]:
    option = next((function_time.stage_option for function_time in function_times if function_time.stage_option), "")
    if option:
        yield Text.assemble("To measure it exactly:  ", (f"stagelens run {option}", "bold"))


def _stage_bar(stage: str, before: float, now: float) -> Text:
    same, whole = round(_BAR_COLUMNS * min(before, now)), round(_BAR_COLUMNS * now)
    return Text(FULL * same + SHADED * (whole - same) or "\u258f", stage_colour(stage))


def blame_text(typical: StageTimes, tail: StageTimes) -> str:
    r"""Return the stage that accounts for most of the additional latency of the tail, with its share.

    >>> blame_text(StageTimes(0.5, {"forward": 1.0, "queue": 0.5}), StageTimes(0.99, {"forward": 1.0, "queue": 2.0}))
    'Queue, 100\u202f% of the increase'
    """
    more = {stage: seconds - typical.stages.get(stage, 0.0) for stage, seconds in tail.stages.items()}
    stage = max(more, key=lambda stage_key: more[stage_key])
    added = tail.seconds - typical.seconds
    return (
        f"{label(stage)}, {portion(more[stage] / added)} of the increase"
        if added > MIN_CHANGE * typical.seconds
        else ""
    )


_log = logging.getLogger(__name__)


def write_run_outputs(here: TemporaryCollector, run: Run, outputs: RunOutputs) -> bool:
    """Write the outputs of the finished *run*; return whether all requested ones were written."""
    succeeded = True
    for trouble in here.finish():
        succeeded = _report_failure(f"some requests of the run were not counted: {trouble}")
    summary = summarize_run(here.store.read)
    # Without counted requests the summary would suggest instrumentation, although the failed store is the cause.
    if succeeded or summary.services:
        succeeded &= _run_step(lambda: print_summary(summary, run))
    for path, write in ((outputs.report, write_page), (outputs.save, save_run)):
        if path is not None:
            succeeded &= _run_step(lambda path=path, write=write: write(here.store, path, run), f"wrote {path}")
    return succeeded


def write_page(store: Store, path: Path, run: Run) -> None:
    name = shlex.join(run.command)
    short = name if len(name) <= _MAX_NAME_CHARS else f"{name[: _MAX_NAME_CHARS - 1]}…"
    window = run_window(store.read) or (run.start, run.end)
    text = run_report(store, *window, f"{short} · Stagelens", f"{name} ended with exit code {run.exit_code}.")
    with open_atomic(path) as file:
        file.write(text)


def _run_step(make: Callable[[], None], done: str = "") -> bool:
    """Run one output step and print *done*, or the error, which must not replace the exit code of the command."""
    try:
        make()
    except StagelensError as error:
        return _report_failure(str(error))
    except Exception:  # noqa: BLE001 - as above
        _log.exception("stagelens run: internal error")
        return False
    if done:
        print(f"stagelens run: {done}", file=sys.stderr)
    return True


def _report_failure(text: str) -> bool:
    print(f"stagelens run: {text}", file=sys.stderr)
    return False
