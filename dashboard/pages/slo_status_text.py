"""How objectives stand, in words: since when nothing can be judged, until when work is planned, how many are in trouble."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Literal

from dash import html

from ...alerts.evaluation.slo_status import URGENCY, SloState, SloStatus
from ...alerts.objectives.maintenance import ActiveMaintenance
from ...alerts.objectives.slo import Slo
from ..components import WORDS, Node
from ..format import day, times
from ..view import View

# Numbers are coloured where somebody has to do something about them.
COLOURS = {"burning": "bad", "at_risk": "warn"}


def moment(at: datetime, view: View) -> str:
    """Return when *at* is on the reader's clock, with the date where it is not today's."""
    local = at.astimezone(view.zone)
    return f"{local:%H:%M}" if local.date() == view.now.astimezone(view.zone).date() else day(local)


def note(found: SloStatus, view: View) -> str:
    """Return since when or until when *found* stands as it does, as far as its state says one; else nothing."""
    if found.state == "stale" and found.stale_since is not None:
        return f"since {moment(found.stale_since, view)}"
    if found.state == "maintenance" and found.work is not None:
        return f"{until(found.work, view)} ({found.work.why})" if found.work.why else until(found.work, view)
    return ""


def until(work: ActiveMaintenance, view: View) -> str:
    """Return when *work* is over, in words."""
    return f"until {moment(work.until, view)}" if work.until else "for more than a month"


def state_line(found: SloStatus, view: View) -> str:
    """Return the state of *found* with its note: `Stale since 12:03`."""
    return f"{WORDS[found.state]} {note(found, view)}".rstrip()


def burn_note(found: SloStatus, view: View) -> list[Node]:
    """Return how fast the budget of *found* burns, or why nobody knows it now."""
    if found.state in ("stale", "maintenance", "no_data"):
        return [html.Span(state_line(found, view), className="warn" if found.state == "stale" else "muted")]
    return [html.Span(f"burning {times(found.burn_1h)}", className="bad" if found.burn_1h > 1 else "muted"), " · 1 h"]


def planned_among(slo: Slo, start: datetime, end: datetime) -> str:
    """Say that requests of planned work are shown where they are: they count for nothing."""
    if not slo.maintenance.intervals(start, end):
        return ""
    return " Requests of planned work are among them, though they do not count."


def worst(states: Collection[str]) -> SloState | Literal[""]:
    """Return the most urgent of *states*; "" where there is none."""
    for state in URGENCY:
        if state in states:
            return state
    return ""


def counted(states: Sequence[str]) -> list[str]:
    """Return how many are in each state that is not healthy, the most urgent first.

    >>> counted(["healthy", "stale", "burning", "stale"])
    ['1 burning', '2 stale']
    """
    numbers = {state: states.count(state) for state in URGENCY if state != "healthy"}
    return [f"{number} {WORDS[state].lower()}" for state, number in numbers.items() if number]
