"""Cold requests, in which something was loaded or warmed up: how many there are, the switch that leaves them out, its words."""

from __future__ import annotations

from dataclasses import replace

from dash.development.base_component import Component

from ..components import link
from ..format import count
from ..view import ONLY_COLD, WITHOUT_COLD
from .page import Context

# What the address says of them, after "request of".
WORDS = {WITHOUT_COLD: "what was warm", ONLY_COLD: "what was cold"}
WAY_OUT = "Cold and warm"


def leave_out(context: Context) -> Component | None:
    """Return the switch that leaves them out; None where there are none, or the address says already what it wants."""
    if context.service is None or "cold" in context.view.part:
        return None
    number = _requests(context, ONLY_COLD)
    if not number:
        return None
    title = f"Something was loaded or warmed up in {_several(number)}: show the others alone"
    href = context.view.here(cold=WITHOUT_COLD)
    return link(f"Leave out {count(number)} cold", href=href, className="btn", title=title)


def chip_words(context: Context) -> tuple[str, str, str]:
    """Return what a chip says of them: its name, its value, and what pressing it does."""
    chosen = context.view.part["cold"]
    number = _requests(context, ONLY_COLD if chosen == WITHOUT_COLD else WITHOUT_COLD)
    what = "cold" if chosen == WITHOUT_COLD else "warm"
    return "Without", f"{count(number)} {what}", f"{_several(number)} left out that were {what}: show all"


def _requests(context: Context, cold: str) -> int:
    return context.source.ask(context.source.read.latency, replace(context.selection, cold=cold)).count


def _several(number: int) -> str:
    return f"{count(number)} request{'s' * (number != 1)}"
