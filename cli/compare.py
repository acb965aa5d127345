"""`stagelens compare`: compare two saved runs, versions or time windows, and check thresholds.

Files are imported into a temporary store; versions and windows are read from an existing store.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rich.console import Console

from ..analysis.comparison import ServingPeriod, version_times
from ..collector.config import CollectorConfig
from ..collector.imports.importer import import_file
from ..collector.ingest.validation import TimeWindow
from ..collector.traces.sampling import SamplingPolicy
from ..core.errors import ConfigError, StagelensError
from ..core.settings.schema import STORE
from ..core.settings.values import parse_duration
from ..core.stages import BY_KEY
from ..core.text import is_whole_number
from ..store import Reader, Retention, Selection, Store
from ..store.store_factory import open_existing
from .commands import add_settings
from .compare_output import json_text, junit_text, markdown, print_comparison
from .comparison import RunComparison, Side, Threshold, compare_sides, read_percentile, read_thresholds
from .files import check_writable, open_atomic, temporary_folder

_EVER = timedelta(days=36_500)
_BEGINNING = datetime(1970, 1, 2, tzinfo=UTC)
_BUCKET = timedelta(seconds=10)
_MAX_CLOCK_SKEW = timedelta(days=1)
# A comparison needs only counts, no traces.
_NO_TRACES = SamplingPolicy(errors=0, slow=0, uniform=0)
_STDOUT = "-"
_EPILOG = """\
exit codes: 0 no threshold is exceeded, 1 a threshold is exceeded, 2 wrong usage or an unreadable file, 3 too few requests,
130 interrupted

  stagelens compare base.json head.json --fail-on p99:+10%,stage:queue:+5ms --min-requests 1000
  stagelens compare --service checkout --versions 1.4 1.5 --window 1h
  stagelens compare --service checkout --windows 2026-11-01T09:00Z/2026-11-01T10:00Z 2026-11-02T09:00Z/2026-11-02T10:00Z
"""


class NoRequestsError(StagelensError):
    """One side of the comparison has no requests."""


@contextmanager
def sides_from_files(paths: Sequence[Path], selection: Selection) -> Generator[tuple[Reader, Side, Side]]:
    """Import two files, of any format that `stagelens import` reads, and yield a reader and both sides."""
    retention = Retention(seconds_10=_EVER, minutes=_EVER, hours=_EVER, traces=_EVER, batches=_EVER)
    with ExitStack() as stack:
        folder = stack.enter_context(temporary_folder("compare"))
        store = Store.open(f"sqlite:///{folder / 'compare.db'}", retention=retention)
        stack.callback(store.close)
        sides: list[Side] = []
        for name, path in zip("ab", paths, strict=True):
            imported = import_file(path, store, TimeWindow(0, sys.maxsize), keep=_NO_TRACES, environment=name)
            for problem in imported.broken:
                print(f"stagelens: {path}: skipped: {problem}", file=sys.stderr)
            service = _choose_service(list(imported.services), selection.service, str(path))
            sides.append(Side(str(path), replace(selection, service=service, environment=name)))
        yield store.read, *_require_requests(store.read, sides)


def sides_from_versions(
    read: Reader, selection: Selection, versions: Sequence[str], window: timedelta
) -> tuple[Side, Side]:
    """Return the requests of two *versions* in the last *window* in which both served.

    Versions that served one after the other are each compared over their own last *window*.
    """
    service = _choose_store_service(read, selection)
    releases = read.releases(environment=selection.environment)
    of_service = releases[releases["service"] == service]
    lives: list[ServingPeriod] = []
    for version in versions:
        seen = of_service[of_service["version"] == version]
        if seen.empty:
            there = ", ".join(str(version) for version in of_service["version"]) or "none"
            msg = f"{service} has no version {version!r}; known versions: {there}"
            raise ConfigError(msg)
        first, last = seen["first_seen"].min().to_pydatetime(), seen["last_seen"].max().to_pydatetime()
        lives.append(ServingPeriod(first, last + _BUCKET))

    def side(version: str, life: ServingPeriod) -> Side:
        start, end = read.whole(max(life.start, life.end - window), life.end)
        return Side(
            version, replace(selection, service=service, version=version, start=start, end=end), has_window=True
        )

    def sides(first: ServingPeriod, second: ServingPeriod) -> list[Side]:
        return [side(version, life) for version, life in zip(versions, (first, second), strict=True)]

    def fewest(first: ServingPeriod, second: ServingPeriod) -> int:
        return min(read.latency(side.selection).count for side in sides(first, second))

    times = version_times(lives[0], lives[1], fewest)
    return _require_requests(read, sides(times.a, times.b))


def sides_from_windows(read: Reader, selection: Selection, windows: Sequence[str]) -> tuple[Side, Side]:
    """Return two time windows, each written as FROM/TO in ISO 8601; UTC if there is no time zone."""
    service = _choose_store_service(read, selection)
    sides: list[Side] = []
    for window in windows:
        start, end = read.whole(*_parse_window(window))
        sides.append(Side(window, replace(selection, service=service, start=start, end=end), has_window=True))
    return _require_requests(read, sides)


def all_time_selection(service: str | None, environment: str | None, route: str | None) -> Selection:
    end = datetime.fromtimestamp(time.time(), UTC) + _MAX_CLOCK_SKEW
    return Selection(_BEGINNING, end, service=service, environment=environment, route=route)


def _parse_window(text: str) -> tuple[datetime, datetime]:
    try:
        start, end = (datetime.fromisoformat(part) for part in text.split("/"))
    except ValueError:
        msg = f"--windows {text!r}: write FROM/TO, such as 2026-11-01T09:00Z/2026-11-01T10:00Z"
        raise ConfigError(msg) from None
    start, end = (at if at.tzinfo else at.replace(tzinfo=UTC) for at in (start, end))
    if start >= end:
        msg = f"--windows {text!r}: the end is not after the start"
        raise ConfigError(msg)
    return start, end


def _choose_store_service(read: Reader, selection: Selection) -> str:
    services = [
        str(service)
        for service in read.services(selection.start, selection.end, environment=selection.environment)["service"]
    ]
    return _choose_service(services, selection.service, "the store")


def _choose_service(services: Sequence[str], name: str | None, where: str) -> str:
    if name in services:
        return name or ""
    there = ", ".join(services)
    if not services:
        msg = f"{where} contains no request"
        raise NoRequestsError(msg)
    if name is not None:
        msg = f"{where} has no service {name!r}; known services: {there}"
        raise ConfigError(msg)
    if len(services) > 1:
        msg = f"{where} has several services ({there}); choose one with --service"
        raise ConfigError(msg)
    return services[0]


def _require_requests(read: Reader, sides: Sequence[Side]) -> tuple[Side, Side]:
    for side in sides:
        if not read.latency(side.selection).count:
            of_route = f" of route {side.selection.route!r}" if side.selection.route else ""
            msg = f"{side.name} has no request{of_route} of {side.selection.service}"
            raise NoRequestsError(msg)
    a, b = sides
    return a, b


EXIT_PASSED, EXIT_FAILED, EXIT_USAGE, EXIT_UNKNOWN, EXIT_INTERRUPTED = 0, 1, 2, 3, 130
_EXIT_CODES = {"passed": EXIT_PASSED, "failed": EXIT_FAILED, "unknown": EXIT_UNKNOWN}


def compare(parser: argparse.ArgumentParser) -> None:
    parser.usage = "stagelens compare [options] (A.json B.json | --versions A B | --windows FROM/TO FROM/TO)"
    parser.description = (
        "Compare the latency of A and B, stage by stage, with a confidence interval for each difference."
    )
    parser.epilog = _EPILOG
    add = parser.add_argument
    add("files", nargs="*", type=Path, metavar="FILE", help="saved runs, or files that `stagelens import` reads")
    add("--versions", nargs=2, metavar=("A", "B"), help="two versions of a service in the store")
    add("--window", metavar="TIME", default="1h", help="time window per version (default 1h)")
    add("--windows", nargs=2, metavar="FROM/TO", help="two time windows of a service in the store, ISO 8601")
    add("--service", metavar="NAME", help="service; required if there are several")
    add("--environment", metavar="NAME", help="environment in the store")
    add("--route", metavar="ROUTE", help="only requests of this route")
    percentile = "percentile of the stages (default: the highest of p50, p90 and p99 with enough requests)"
    add("--percentile", metavar="PNN", help=percentile)
    limits = "thresholds for exit code 1, such as p99:+10%%,stage:queue:+5ms,ttft:p50:+20ms,errors:+1%%"
    add("--fail-on", action="append", default=[], metavar="LIMITS", help=limits)
    least = "minimum number of requests on each side; exit code 3 below it"
    add("--min-requests", type=_count, default=0, metavar="N", help=least)
    add("--strict", action="store_true", help="fail on the point estimate; ignore confidence intervals")
    add("--markdown", metavar="FILE", help="write a Markdown report for a pull request; - for stdout")
    add("--junit", metavar="FILE", help="write a JUnit test case for each threshold")
    add("--json", metavar="FILE", help="write all numbers as JSON; - for stdout")
    add_settings(parser, STORE)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace, environment: Mapping[str, str]) -> int:
    try:
        return _compare(options, environment)
    except NoRequestsError as error:
        print(f"stagelens: {error}: nothing to compare", file=sys.stderr)
        return EXIT_UNKNOWN
    except StagelensError as error:
        print(f"stagelens: {error}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        print("\nstagelens: interrupted; nothing was compared", file=sys.stderr)
        return EXIT_INTERRUPTED


def _compare(options: argparse.Namespace, environment: Mapping[str, str]) -> int:
    thresholds = [threshold for text in options.fail_on for threshold in read_thresholds(text)]
    quantile = None if options.percentile is None else _percentile(options.percentile)
    outputs: list[tuple[str, str | None, Callable[[RunComparison], str]]] = [
        ("--markdown", options.markdown, markdown),
        ("--junit", options.junit, junit_text),
        ("--json", options.json, json_text),
    ]
    for option, target, _ in outputs:
        if target and target != _STDOUT:
            check_writable(Path(target), option)
    with _open_sides(options, environment) as (read, a, b):
        comparison = compare_sides(read, a, b, quantile, thresholds, options.min_requests, strict=options.strict)
    _check_stages(thresholds, comparison)
    for _, target, text in outputs:
        _write(target, text(comparison))
    if not any(target == _STDOUT for _, target, _ in outputs):
        print_comparison(comparison, Console())
    return _EXIT_CODES[comparison.outcome]


@contextmanager
def _open_sides(options: argparse.Namespace, environment: Mapping[str, str]) -> Generator[tuple[Reader, Side, Side]]:
    ways = [bool(options.files), options.versions is not None, options.windows is not None]
    if sum(ways) != 1 or len(options.files) not in (0, 2):
        msg = "give two files, two --versions or two --windows; see the examples in `stagelens compare --help`"
        raise ConfigError(msg)
    selection = all_time_selection(options.service, options.environment, options.route)
    if options.files:
        if options.environment:
            msg = "--environment applies to stores only; files are compared as a whole"
            raise ConfigError(msg)
        with sides_from_files(options.files, selection) as opened_sides:
            yield opened_sides
        return
    window = parse_duration(options.window, "--window")
    with closing(open_existing(CollectorConfig.from_env(environment))) as store:
        read = store.read
        sides = (
            sides_from_versions(read, selection, options.versions, window)
            if options.versions
            else sides_from_windows(read, selection, options.windows)
        )
        yield read, *sides


def _check_stages(thresholds: Sequence[Threshold], comparison: RunComparison) -> None:
    seen = {change.stage for change in comparison.stages}
    for threshold in thresholds:
        if threshold.stage and threshold.stage not in seen and threshold.stage not in BY_KEY:
            msg = f"--fail-on {threshold.text!r}: no request has the stage {threshold.stage!r}; known stages: {', '.join(sorted(seen))}"
            raise ConfigError(msg)


def _percentile(text: str) -> float:
    try:
        return read_percentile(text)
    except ConfigError as error:
        msg = f"--percentile: {error}; write one such as p99 or p99.9"
        raise ConfigError(msg) from None


def _write(target: str | None, text: str) -> None:
    if target == _STDOUT:
        print(text)
    elif target:
        with open_atomic(Path(target)) as file:
            file.write(text + "\n")


def _count(text: str) -> int:
    if not is_whole_number(text):
        msg = f"{text!r} is not a number of requests; write one such as 1000"
        raise argparse.ArgumentTypeError(msg)
    return int(text)
