"""Outputs of a finished run: a summary on stderr, an HTML page, a saved file."""

from __future__ import annotations

import logging
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

from ..core.errors import StagelensError
from ..dashboard.web.report import run_report
from ..instrumentors.config import DEFAULT_ENDPOINT
from ..instrumentors.run import RunOutputs
from ..store import Store
from .files import open_atomic
from .run_summary import print_summary, run_window, summarize_run
from .saved_run import Run, save_run
from .temp_collector import TemporaryCollector

_log = logging.getLogger(__name__)

__all__ = ["Run", "write_run_outputs"]

_MAX_NAME_CHARS = 60


def write_run_outputs(here: TemporaryCollector, run: Run, outputs: RunOutputs) -> bool:
    """Write the outputs of the finished *run*; return whether all requested ones were written."""
    made = True
    for trouble in here.finish():
        made = _report_failure(f"some requests of the run were not counted: {trouble}")
    found = summarize_run(here.store.read)
    # Without counted requests the summary would suggest instrumentation, although the failed store is the cause.
    if made or found.services:
        made &= _run_step(lambda: print_summary(found, run))
    if here.send_on():
        print(f"stagelens run: all of it was sent to the collector on {DEFAULT_ENDPOINT}", file=sys.stderr)
    for path, write in ((outputs.report, write_page), (outputs.save, save_run)):
        if path is not None:
            made &= _run_step(lambda path=path, write=write: write(here.store, path, run), f"wrote {path}")
    return made


def write_page(store: Store, path: Path, run: Run) -> None:
    """Write the contents of *store* to *path* as a self-contained HTML page.

    Raises:
        StagelensError: The store cannot be read, or *path* cannot be written; the file is unchanged.
    """
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
        _log.exception("stagelens run: a fault of its own")
        return False
    if done:
        print(f"stagelens run: {done}", file=sys.stderr)
    return True


def _report_failure(text: str) -> bool:
    print(f"stagelens run: {text}", file=sys.stderr)
    return False
