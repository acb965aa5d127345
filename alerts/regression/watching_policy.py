"""What the search for regressions does with a store, read from `policy/watching.yaml`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from functools import cache

from ..policies import shipped
from ..policy_file import Severity


@dataclass(frozen=True, slots=True)
class Watching:
    """All of it.

    Args:
        severity: Who is told.
        delay: How long after its end a minute is judged.
        stretch: How much is read in one evaluation, at most.
        catch_up: From when on what was missed is stepped through.
        busy: So many minutes with requests it takes to learn from.
        refresh: How often an incident is described anew.
        blamed: Of how long the requests are looked at to describe it, at most.
        silence: Without a request for so long nothing can be said.
        released_before: A release so long before the trouble came with it.
        released_after: One so long after it too.
        together: Two versions are compared once both have served for so long.
        share: Of the minutes of that time each must have had requests in. [ratio]
        accepted_over: A level that is accepted is that of the requests of so long at most.
        accepted_beyond: So many of them must be beyond a threshold to say where it is now. [count]
    """

    severity: Severity
    delay: timedelta
    stretch: timedelta
    catch_up: timedelta
    busy: timedelta
    refresh: timedelta
    blamed: timedelta
    silence: timedelta
    released_before: timedelta
    released_after: timedelta
    together: timedelta
    share: float
    accepted_over: timedelta
    accepted_beyond: float


@cache
def default_watching() -> Watching:
    """Return the policy that comes with Stagelens."""
    return shipped(Watching, "watching")
