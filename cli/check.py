"""`stagelens check slo.yaml`: validate an SLO file, and print its objectives with the alert tiers of each."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from contextlib import closing, nullcontext
from pathlib import Path

from ..alerts.check import open_store, summary
from ..alerts.config import DEFAULT_FILE
from ..alerts.objectives.slo_file import read_slo_file
from ..core.errors import ConfigError
from ..store import Store

_DESCRIPTION = """\
Validate an SLO file. Print its objectives and exit 0, or print all errors and exit 1. With a store, also list the
alerts of the last 30 days."""
_DEFAULT_STORE = "STAGELENS_DATABASE, or stagelens.db in this directory if it exists"


def check(parser: argparse.ArgumentParser) -> None:
    parser.description = _DESCRIPTION
    parser.add_argument("file", nargs="?", type=Path, default=DEFAULT_FILE, help="the SLO file (default: %(default)s)")
    parser.add_argument("--store", metavar="URL", help=f"sqlite:///FILE or postgresql://… (default: {_DEFAULT_STORE})")
    parser.set_defaults(run=_check)


def _check(options: argparse.Namespace, environment: Mapping[str, str]) -> int:
    try:
        definitions = read_slo_file(options.file, environment)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    store = open_store(options.store, environment)
    with closing(store) if isinstance(store, Store) else nullcontext():
        # The replay takes seconds per SLO, so each line is printed as soon as it is known.
        for line in summary(options.file, definitions, store, _note):
            print(line, flush=True)
    return 0


def _note(text: str) -> None:
    if sys.stderr.isatty():
        # Carriage return, and "erase to the end of the line" of ECMA-48.
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
