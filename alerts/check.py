"""`stagelens check slo.yaml`: say what an SLO file promises and when it will page, or everything that is wrong with it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path

from ..core.errors import ConfigError
from . import burn, words
from .burn import Tier
from .config import DEFAULT_FILE
from .policy_file import default_policy
from .slo import Slo
from .slo_file import Definitions, read


def main(argv: Sequence[str]) -> int:
    """Check the file named in *argv*.

    Returns:
        0 with a summary on the output, or 1 with every problem on the error output.
    """
    parser = argparse.ArgumentParser(
        prog="stagelens check",
        description="Check an SLO file: exit 0 with what it promises, or 1 with every mistake in it.",
    )
    parser.add_argument("file", nargs="?", type=Path, default=DEFAULT_FILE, help="the SLO file (default: %(default)s)")
    path: Path = parser.parse_args(argv).file
    try:
        definitions = read(path, os.environ)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    print("\n".join(summary(path, definitions)))
    return 0


def summary(path: Path, definitions: Definitions) -> Iterator[str]:
    """Say what *definitions* promise, tier by tier, and where messages go."""
    slos, channels = definitions.slos, definitions.channels
    yield f"{path}: {_plural(len(slos), 'SLO')}, {_plural(len(channels), 'channel')}"
    for slo in slos:
        yield ""
        yield from _about(slo)
    yield ""
    if not channels:
        yield "No channels: incidents are kept and shown on the dashboard, and nobody is told."
    for entry in channels:
        waiting = f" (messages wait: {entry.lacking} is not set here)" if entry.lacking else ""
        yield f"Messages go to {entry.name}{'' if entry.name == entry.kind else f' ({entry.kind})'}{waiting}"


def _about(slo: Slo) -> Iterator[str]:
    yield f"{slo.name}: {slo.in_words()}"
    budget = words.percent(slo.budget)
    yield f"  The budget is {budget} of requests: {words.count(1e6 * slo.budget)} in a million."
    for tier in burn.tiers(default_policy(), slo.window):
        yield f"  {_tier(tier, slo)}"


def _tier(tier: Tier, slo: Slo) -> str:
    rule = f"{tier.severity:<6} when the budget burns {words.times(tier.burn)} over {_span(tier.long)} and {_span(tier.short)}"
    if not burn.reachable(tier, slo.objective):
        highest = words.times(1 / slo.budget)
        return f"{rule}: left out, it cannot burn faster than {highest} at this objective"
    share = words.percent(min(1.0, tier.burn * slo.budget))
    outage = burn.time_to_fire(tier, slo.objective, 1.0)
    soonest = "" if outage is None else f"; {_span(outage)} into a total outage"
    return f"{rule} ({share} of requests bad{soonest})"


def _span(length: timedelta) -> str:
    return words.duration(length)


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
