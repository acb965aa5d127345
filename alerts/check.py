"""`stagelens check slo.yaml`: say what an SLO file promises and when it will page, or everything that is wrong with it.

Where there is a store, it also says when it would have paged in the last 30 days.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from ..core.errors import ConfigError, StoreError
from ..store import Store
from ..store.store_factory import StoreConfig, open_existing
from . import formatting
from .config import DEFAULT_FILE
from .evaluation import burn_rate
from .evaluation.burn_rate import Tier
from .objectives.slo import Slo
from .objectives.slo_file import Definitions, read
from .policy_file import default_policy
from .preview import LOOK_BACK, Seen, preview

DEFAULT_STORE = "the database in STAGELENS_DATABASE, or stagelens.db here, if there is one"


def main(argv: Sequence[str]) -> int:
    """Check the file named in *argv*.

    Returns:
        0 with a summary on the output, or 1 with every problem on the error output.
    """
    parser = argparse.ArgumentParser(
        prog="stagelens check",
        description="Check an SLO file: exit 0 with what it promises, or 1 with every mistake in it. "
        "With a store, also say when it would have paged in the last 30 days.",
    )
    parser.add_argument("file", nargs="?", type=Path, default=DEFAULT_FILE, help="the SLO file (default: %(default)s)")
    parser.add_argument("--store", metavar="URL", help=f"sqlite:///FILE or postgresql://… (default: {DEFAULT_STORE})")
    options = parser.parse_args(argv)
    try:
        definitions = read(options.file, os.environ)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    with ExitStack() as stack:
        store = _store(options.store, os.environ)
        if isinstance(store, Store):
            stack.callback(store.close)
        # Looking back takes seconds for each SLO: what is known already is shown meanwhile.
        for line in summary(options.file, definitions, store, _note):
            print(line, flush=True)
    return 0


def _store(url: str | None, env: Mapping[str, str]) -> Store | str:
    """Return the store to look back on, or why there is none.

    Raises:
        StoreError: The one that was named on the command line cannot be opened.
    """
    config = StoreConfig.from_env(env)
    try:
        return open_existing(replace(config, database=url) if url else config)
    except StoreError as error:
        if url:
            raise
        return f"{str(error).partition(';')[0]}; name one with --store"


def _note(text: str) -> None:
    """Show what is being done in a terminal, until the next line is there."""
    if sys.stderr.isatty():
        # Carriage return, and "erase to the end of the line" of ECMA-48.
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def summary(
    path: Path, definitions: Definitions, store: Store | str = "", note: Callable[[str], None] = lambda _: None
) -> Iterator[str]:
    """Say what *definitions* promise, tier by tier, what that would have meant lately, and where messages go.

    Args:
        path: The file.
        definitions: What it says.
        store: Where requests are, or why it is not known.
        note: Told what is being done when that takes a while, and nothing when it is done.
    """
    slos, channels = definitions.slos, definitions.channels
    yield f"{path}: {_plural(len(slos), 'SLO')}, {_plural(len(channels), 'channel')}"
    yield from (f"warning: {line}" for line in definitions.warnings)
    seen = Seen(store.read) if isinstance(store, Store) else None
    for slo in slos:
        yield ""
        yield from _about(slo)
        if seen is not None:
            note(f"  looking at the last {formatting.duration(LOOK_BACK)} …")
            lines = list(preview(seen, slo, default_policy(), _now()))
            note("")
            yield from (f"  {line}" for line in lines)
    yield ""
    if isinstance(store, str) and store:
        yield f"Nothing is said of the past: {store}"
    if not channels:
        yield "No channels: incidents are kept and shown on the dashboard, and nobody is told."
    for entry in channels:
        waiting = f" (messages wait: {entry.lacking} is not set here)" if entry.lacking else ""
        yield f"Messages go to {entry.name}{'' if entry.name == entry.kind else f' ({entry.kind})'}{waiting}"


def _about(slo: Slo) -> Iterator[str]:
    yield f"{slo.name}: {slo.in_words()}"
    yield f"  {_budget(slo)}"
    if slo.budgets:
        shares = ", ".join(f"{stage} {formatting.latency(length.total_seconds())}" for stage, length in slo.budgets)
        yield f"  Of its time, stages may take: {shares}."
    now = _now()
    if slo.reset is not None:
        verb = "counts" if slo.reset <= now else "will count"
        yield f"  Only what came since {formatting.moment(slo.reset)} {slo.reset.astimezone(UTC):%Y} {verb}."
    planned = slo.maintenance.intervals(now, now + timedelta(days=14))
    if planned:
        low, high = planned[0]
        yield f"  Next planned work: {formatting.moment(low)}, for {formatting.duration(high - low)}; it counts for nothing."
    for tier in burn_rate.tiers(default_policy(), slo.window):
        yield f"  {_tier(tier, slo)}"


def _budget(slo: Slo) -> str:
    budget = formatting.percent(slo.budget)
    if slo.kind == "coverage":
        return f"The budget is {budget} of the time of requests."
    if slo.kind == "freshness":
        return f"The budget is {budget} of the time: {formatting.duration(slo.budget * slo.window)} of {_span(slo.window)}."
    return f"The budget is {budget} of requests: {formatting.count(1e6 * slo.budget)} in a million."


def _tier(tier: Tier, slo: Slo) -> str:
    rule = f"{tier.severity:<6} when the budget burns {formatting.times(tier.burn)} over {_span(tier.long)} and {_span(tier.short)}"
    if not burn_rate.reachable(tier, slo.objective):
        highest = formatting.times(1 / slo.budget)
        return f"{rule}: left out, it cannot burn faster than {highest} at this objective"
    share = formatting.percent(min(1.0, tier.burn * slo.budget))
    what = {"coverage": "time unexplained", "freshness": "the time stale"}.get(slo.kind, "requests bad")
    return f"{rule} ({share} of {what}{_soonest(tier, slo)})"


def _soonest(tier: Tier, slo: Slo) -> str:
    outage = burn_rate.time_to_fire(tier, slo.objective, 1.0)
    if outage is None or slo.kind == "coverage":
        return ""
    if slo.kind == "freshness":
        return f"; {_span(outage + (slo.threshold or timedelta(0)))} into a silence"
    return f"; {_span(outage)} into a total outage"


def _now() -> datetime:
    return datetime.now(UTC)


def _span(length: timedelta) -> str:
    return formatting.duration(length)


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
