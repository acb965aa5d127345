"""Import of files with measurements into the store, and the summary that `stagelens import` prints."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from ...store.schema import FINEST
from ...store.store_factory import open_store
from ..config import CollectorConfig, read_collector_file
from ..ingest.validation import TimeWindow
from ..traces.sampling import SamplingPolicy
from .importer import ImportResult, import_file
from .source import ImportFileError

# Maximum time that the clock of the file's writer may be ahead. [seconds]
_AHEAD_SECONDS = 86_400
_INTERRUPTED = 130
# Live spans are aggregated every two seconds, a file only once or a few times, so each run retains more traces.
_KEEP = SamplingPolicy(errors=50, slow=50, uniform=20)
_SERVICES_SHOWN = 8


def import_files(
    paths: Sequence[Path],
    settings: Mapping[str, str],
    service: str | None = None,
    environment: str | None = None,
    dashboard_options: Sequence[str] = (),
) -> int:
    """Import the files at *paths* and print what was counted.

    Args:
        paths: The files.
        settings: Settings of the store and the collector, by environment variable.
        service: Service of the requests; None for that of the file.
        environment: Environment of the requests; None for that of the file.
        dashboard_options: Options with which `stagelens dashboard` shows the data.

    Returns:
        The exit code: 0 if each file was counted completely, 1 with skipped records.
    """
    config = CollectorConfig.from_env(settings)
    rules = read_collector_file(config.config_file, settings).rules if config.config_file else ()
    failed, imported = False, list[ImportResult]()
    with closing(open_store(config)) as store:
        now = int(time.time())
        window = TimeWindow(now - int(config.retention.hours.total_seconds()), now + _AHEAD_SECONDS)
        keep = replace(_KEEP, everything=config.keeps_all_traces)
        for path in paths:
            try:
                result = import_file(path, store, window, rules, keep, service, environment)
            except ImportFileError as error:
                print(f"stagelens: {error}", file=sys.stderr)
                failed = True
            except KeyboardInterrupt:
                print("\nstagelens: interrupted; import the same files again to continue", file=sys.stderr)
                return _INTERRUPTED
            else:
                imported.append(result)
                print("\n".join(_summary(result, config, now)), flush=True)
                failed = failed or result.broken_count > 0
        store.maintain()
    if any(import_result.requests or import_result.known for import_result in imported):
        command = shlex.join(["stagelens", "dashboard", *dashboard_options])
        print(f"view the data: {command}, and select the time above")
    return int(failed)


def _summary(result: ImportResult, config: CollectorConfig, now: int) -> Iterator[str]:
    yield f"{result.path}: {result.format}"
    if result.requests:
        spans = f", from {result.spans:,} spans" if result.spans else ""
        services = ", ".join(f"{name} {count:,}" for name, count in result.services.most_common(_SERVICES_SHOWN))
        more = f" and {len(result.services) - _SERVICES_SHOWN} more" if len(result.services) > _SERVICES_SHOWN else ""
        yield f"  {result.requests:,} requests{spans}; {result.traces:,} retained as traces"
        yield f"  services  {services}{more}"
        yield f"  time      {_utc(result.first)} to {_utc(result.last + FINEST)} UTC"
    if result.dropped:
        yield f"  {result.dropped:,} more requests were not counted, as reported by their agents"
    if result.known:
        yield f"  {result.known:,} requests were imported before, from this file or a similar one: not counted again"
    if not result.requests and not result.known:
        yield "  the file contains no request: nothing was counted"
    for note in (*result.notes, *_retention_notes(result, config, now)):
        yield f"  note: {note}"
    for problem in result.broken:
        yield f"  skipped: {problem}"
    if result.broken_count > len(result.broken):
        yield f"  skipped: {result.broken_count:,} records in total"


def _retention_notes(result: ImportResult, config: CollectorConfig, now: int) -> Iterator[str]:
    if not result.requests:
        return
    for what, retention, lost in (
        ("buckets of 10 s", config.retention.seconds_10, "it is stored by the minute"),
        ("buckets of a minute", config.retention.minutes, "it is stored by the hour"),
        ("traces", config.retention.traces, "they are deleted soon"),
    ):
        if result.first < now - retention.total_seconds():
            yield f"some data is older than the retention of {what} ({retention.days} days): {lost}"


def _utc(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}"
