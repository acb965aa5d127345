"""What is made of a run when it is over: a summary on stderr, a page, a file."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable

from ..core.errors import StagelensError
from ..instrumentors.config import DEFAULT_ENDPOINT
from ..instrumentors.run import Kept
from .findings import findings
from .page import write_page
from .saved import Run, save
from .temp_collector import Keeping
from .terminal import show

_log = logging.getLogger(__name__)

__all__ = ["Run", "tell"]


def tell(here: Keeping, run: Run, kept: Kept) -> bool:
    """Tell of *run*, which is over; return whether all was made that was asked for."""
    made = True
    for trouble in here.finish():
        made = _failed(f"not all of the run could be counted: {trouble}")
    found = findings(here.store.read)
    # Without counted requests the summary would advise on instrumentation, while the cause is the failed store.
    if made or found.services:
        made &= _made(lambda: show(found, run))
    if here.send_on():
        print(f"stagelens run: all of it was sent to the collector on {DEFAULT_ENDPOINT}", file=sys.stderr)
    for path, write in ((kept.report, write_page), (kept.save, save)):
        if path is not None:
            made &= _made(lambda path=path, write=write: write(here.store, path, run), f"wrote {path}")
    return made


def _made(make: Callable[[], None], done: str = "") -> bool:
    """Say *done*, or what went wrong: how the command ended matters more than what can be told of it."""
    try:
        make()
    except StagelensError as error:
        return _failed(str(error))
    except Exception:  # noqa: BLE001 - as above
        _log.exception("stagelens run: a fault of its own")
        return False
    if done:
        print(f"stagelens run: {done}", file=sys.stderr)
    return True


def _failed(text: str) -> bool:
    print(f"stagelens run: {text}", file=sys.stderr)
    return False
