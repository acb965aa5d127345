"""Commands that work on the store: `storage`, `backup`, `restore`, `migrate` and `import`."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from ..collector import commands
from ..collector.config import CollectorConfig
from ..collector.imports.command import import_files
from ..collector.imports.formats import FORMATS
from ..core.errors import StoreError
from ..core.settings.schema import COLLECTOR, STORE
from ..store import backup as store_backup
from .commands import add_settings

# Exit code of shells after Ctrl-C.
_INTERRUPTED = 130
_IMPORT_SETTINGS = ("STAGELENS_DATABASE", "STAGELENS_POINTS", "STAGELENS_COLLECTOR_CONFIG")


def storage(parser: argparse.ArgumentParser) -> None:
    text = "delete services and all their data; `*` matches any characters"
    _define(parser, _storage).add_argument("what", metavar="forget SERVICE", nargs="*", help=text)


def backup(parser: argparse.ArgumentParser) -> None:
    text = "new file; to view it: `stagelens dashboard --database sqlite:///FILE`"
    command = _define(parser, lambda options, config: commands.backup(config, options.file))
    command.add_argument("file", metavar="FILE", type=Path, help=text)


def restore(parser: argparse.ArgumentParser) -> None:
    command = _define(parser, lambda options, config: commands.restore(config, options.file))
    command.add_argument("file", metavar="FILE", type=Path, help="the backup")


def migrate(parser: argparse.ArgumentParser) -> None:
    command = _define(parser, lambda options, config: commands.migrate(config, options.to, options.to_points))
    to = "URL of the new database: sqlite:///path or postgresql://user:password@host/database"
    command.add_argument("--to", metavar="X", required=True, help=to)
    points = "URL of a ClickHouse database for the histograms: clickhousedb://… (default none)"
    command.add_argument("--to-points", metavar="X", help=points)


def import_(parser: argparse.ArgumentParser) -> None:
    formats = "\n".join(f"  {file_format.title}" for file_format in FORMATS)
    parser.description = (
        "Import the requests of files. A file that is imported again is not counted again. gzip is supported."
    )
    parser.epilog = f"formats, detected from the content of the file:\n{formats}"
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--service", metavar="NAME", help="service of the requests (default: from the file)")
    parser.add_argument("--environment", metavar="NAME", help="environment of the requests (default: from the file)")
    add_settings(parser, [setting for setting in (*STORE, *COLLECTOR) if setting.variable in _IMPORT_SETTINGS])
    parser.set_defaults(run=_import)


def _define(
    parser: argparse.ArgumentParser, work: Callable[[argparse.Namespace, CollectorConfig], None]
) -> argparse.ArgumentParser:
    def run(options: argparse.Namespace, environment: Mapping[str, str]) -> int:
        _log_to_stderr()
        logging.getLogger(store_backup.__name__).setLevel(logging.INFO)
        try:
            work(options, CollectorConfig.from_env(environment))
        except KeyboardInterrupt:
            print("\nstagelens: interrupted; run a restore or migrate again to continue", file=sys.stderr)
            return _INTERRUPTED
        return 0

    add_settings(parser, STORE)
    parser.set_defaults(run=run)
    return parser


def _storage(options: argparse.Namespace, config: CollectorConfig) -> None:
    if not options.what:
        commands.print_storage(config)
        return
    word, *services = options.what
    if word != "forget" or not services:
        msg = f"`stagelens storage {word}` is not a command; write `stagelens storage forget SERVICE …`"
        raise StoreError(msg)
    commands.forget(config, services)


def _import(options: argparse.Namespace, environment: Mapping[str, str]) -> int:
    _log_to_stderr()
    given = {"--database": options.STAGELENS_DATABASE, "--points": options.STAGELENS_POINTS}
    words = [word for option, value in given.items() if value for word in (option, value)]
    return import_files(options.files, environment, options.service, options.environment, words)


def _log_to_stderr() -> None:
    # Hides the informational messages of alembic.
    logging.basicConfig(level=logging.WARNING, format="stagelens: %(message)s", stream=sys.stderr)
