"""`stagelens import`: import files with measurements into the store."""

from __future__ import annotations

import argparse
import logging
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from ...core.settings.schema import COLLECTOR, STORE
from ...store.schema import FINEST
from ...store.store_factory import open_store
from ..config import CollectorConfig, read_collector_file
from ..ingest.validation import TimeWindow
from ..traces.sampling import SamplingPolicy
from .importer import FORMATS, ImportResult, import_file
from .source import ImportFileError

# Maximum time that the clock of the file's writer may be ahead. [seconds]
_AHEAD_SECONDS = 86_400
_INTERRUPTED = 130
# Live spans are aggregated every two seconds, a file only once or a few times, so each run retains more traces.
_KEEP = SamplingPolicy(errors=50, slow=50, uniform=20)
_SERVICES_SHOWN = 8
_SETTINGS = ("STAGELENS_DATABASE", "STAGELENS_POINTS", "STAGELENS_COLLECTOR_CONFIG")


def parser() -> argparse.ArgumentParser:
    read = "\n".join(f"  {each.title}" for each in FORMATS)
    made = argparse.ArgumentParser(
        "stagelens import",
        description="Import the requests of files. A file that is imported again is not counted again. gzip is supported.",
        epilog=f"formats, detected from the content of the file:\n{read}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("files", nargs="+", type=Path, metavar="FILE")
    made.add_argument("--service", metavar="NAME", help="service of the requests (default: from the file)")
    made.add_argument("--environment", metavar="NAME", help="environment of the requests (default: from the file)")
    for setting in (*STORE, *COLLECTOR):
        if setting.variable in _SETTINGS:
            made.add_argument(setting.option, dest=setting.variable, metavar="X", help=setting.help.replace("%", "%%"))
    return made


def main(words: Sequence[str], environment: Mapping[str, str]) -> int:
    """Import the files that *words* name; return 0 if each was counted completely, 1 with skipped records, 2 for invalid *words*."""
    options = parser().parse_args(words)
    logging.basicConfig(level=logging.WARNING, format="stagelens: %(message)s", stream=sys.stderr)
    given = {key: value for key, value in vars(options).items() if key.startswith("STAGELENS_") and value}
    config = CollectorConfig.from_env(dict(environment) | given)
    rules = read_collector_file(config.config_file, environment).rules if config.config_file else ()
    failed, imported = False, list[ImportResult]()
    with closing(open_store(config)) as store:
        now = int(time.time())
        window = TimeWindow(now - int(config.retention.hours.total_seconds()), now + _AHEAD_SECONDS)
        keep = replace(_KEEP, everything=config.keeps_all_traces)
        for path in options.files:
            try:
                found = import_file(path, store, window, rules, keep, options.service, options.environment)
            except ImportFileError as error:
                print(f"stagelens: {error}", file=sys.stderr)
                failed = True
            except KeyboardInterrupt:
                print("\nstagelens: interrupted; import the same files again to continue", file=sys.stderr)
                return _INTERRUPTED
            else:
                imported.append(found)
                print("\n".join(_summary(found, config, now)), flush=True)
                failed = failed or found.broken_count > 0
        store.maintain()
    print("\n".join(_next_steps(imported, given)))
    return int(failed)


def _summary(found: ImportResult, config: CollectorConfig, now: int) -> Iterator[str]:
    yield f"{found.path}: {found.format}"
    if found.requests:
        spans = f", from {found.spans:,} spans" if found.spans else ""
        services = ", ".join(f"{name} {count:,}" for name, count in found.services.most_common(_SERVICES_SHOWN))
        more = f" and {len(found.services) - _SERVICES_SHOWN} more" if len(found.services) > _SERVICES_SHOWN else ""
        yield f"  {found.requests:,} requests{spans}; {found.traces:,} retained as traces"
        yield f"  services  {services}{more}"
        yield f"  time      {_utc(found.first)} to {_utc(found.last + FINEST)} UTC"
    if found.dropped:
        yield f"  {found.dropped:,} more requests were not counted, as reported by their agents"
    if found.known:
        yield f"  {found.known:,} requests were imported before, from this file or a similar one: not counted again"
    if not found.requests and not found.known:
        yield "  the file contains no request: nothing was counted"
    for note in (*found.notes, *_retention_notes(found, config, now)):
        yield f"  note: {note}"
    for each in found.broken:
        yield f"  skipped: {each}"
    if found.broken_count > len(found.broken):
        yield f"  skipped: {found.broken_count:,} records in total"


def _retention_notes(found: ImportResult, config: CollectorConfig, now: int) -> Iterator[str]:
    """Yield a note for each kind of detail whose retention is shorter than the age of the imported data."""
    if not found.requests:
        return
    for what, retention, lost in (
        ("buckets of 10 s", config.retention.seconds_10, "it is stored by the minute"),
        ("buckets of a minute", config.retention.minutes, "it is stored by the hour"),
        ("traces", config.retention.traces, "they are deleted soon"),
    ):
        if found.first < now - retention.total_seconds():
            yield f"some data is older than the retention of {what} ({retention.days} days): {lost}"


def _next_steps(imported: Sequence[ImportResult], given: Mapping[str, str]) -> Iterator[str]:
    if any(each.requests or each.known for each in imported):
        options = {"STAGELENS_DATABASE": "--database", "STAGELENS_POINTS": "--points"}
        words = [word for key, option in options.items() if key in given for word in (option, given[key])]
        yield f"view the data: {shlex.join(['stagelens', 'dashboard', *words])}, and select the time above"


def _utc(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}"
