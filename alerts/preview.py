"""The words of a backtest: when an SLO would have told somebody in the last 30 days."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cached_property

from ..core.settings.yaml_fields import meant
from ..store import Reader
from . import formatting
from .evaluation.backtest import Past, Preview, backtest
from .objectives.slo import Slo
from .policy_file import Policy

LOOK_BACK = timedelta(days=30)
# More of them say nothing more; the worst are shown.
_SHOWN = 5


class Seen:
    """What the store has seen, to tell a service that is quiet from one that is misspelt.

    Args:
        read: The store's queries.
    """

    def __init__(self, read: Reader) -> None:
        self.read = read

    @cached_property
    def services(self) -> list[str]:
        """The names of all services."""
        return sorted(set(self.read.releases()["service"]))


def preview(seen: Seen, slo: Slo, policy: Policy, now: datetime) -> Iterator[str]:
    """Yield lines about what *slo* would have told in the last 30 days before *now*.

    Raises:
        StoreError: The store cannot be read.
    """
    if slo.service not in seen.services:
        cure = meant(slo.service, seen.services) or f"; known are {', '.join(seen.services) or 'none yet'}"
        yield f"The store has never seen a service {slo.service!r}{cure}"
        return
    yield from _course(backtest(seen.read, slo, policy, now, LOOK_BACK), slo)
    yield from _definitions(seen.read, slo, now)


def _course(found: Preview, slo: Slo) -> Iterator[str]:
    if found.seen_from is None:
        yield f"The store has nothing of {slo.service} that this counts in the last {formatting.duration(LOOK_BACK)}."
        return
    since = max(found.since, found.seen_from)
    span = formatting.duration(found.until - since)
    known = f"the last {span}" if since == found.since else f"the {span} that are known"
    left = "" if found.budget_left is None else f"; {formatting.percent(found.budget_left)} of the budget is left"
    yield f"Over {known} this would have {_told(found.incidents)}{left}."
    worst = sorted(found.incidents, key=lambda each: (each.severity != "page", -each.spent))[:_SHOWN]
    for each in sorted(worst, key=lambda each: each.opened_at):
        yield f"  {_incident(each, found.until)}"
    if len(found.incidents) > _SHOWN:
        yield f"  and {len(found.incidents) - _SHOWN} more that spent less"
    if found.coarse_until is not None:
        yield f"  Before {_moment(found.coarse_until)} only whole hours are kept: what was shorter may be missed there."


def _told(incidents: tuple[Past, ...]) -> str:
    if not incidents:
        return "told nobody anything"
    pages = sum(each.severity == "page" for each in incidents)
    tickets = len(incidents) - pages
    paged = f"paged {_times(pages)}" if pages else "paged nobody"
    return f"{paged} and made {tickets} {'ticket' if tickets == 1 else 'tickets'}" if tickets else paged


def _times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{number} times")


def _incident(past: Past, until: datetime) -> str:
    length = formatting.duration((past.resolved_at or until) - past.opened_at)
    lasted = f"for {length}" if past.resolved_at else f"for {length} so far"
    spent = formatting.percent(past.spent)
    return f"{past.severity:<6} {_moment(past.opened_at)} {lasted} (burn {formatting.times(past.peak)}, {spent} of the budget)"


def _moment(at: datetime) -> str:
    at = at.astimezone(UTC)
    return f"{at.day} {at:%b %H:%M} UTC"


def _definitions(read: Reader, slo: Slo, now: datetime) -> Iterator[str]:
    """Say when first tokens were found in several ways, and the promise takes them all."""
    if slo.kind not in ("ttft", "tpot") or slo.definition is not None:
        return
    found = read.first_token_breakdown(slo.select(now - LOOK_BACK, now), (0.5,)).attrs["definitions"]
    if len(found) > 1:
        yield f"First tokens were found in several ways ({', '.join(sorted(found))}): choose one with `definition`."
