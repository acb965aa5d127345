"""Learning what is normal for one group from what the store has kept of it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from ...store import Group, Reader, Selection
from . import stage_attribution
from .learning import learn_from
from .minutes import Minutes, Spent
from .policy import TailPolicy
from .series import as_minutes, longest, moment
from .state_store import Learnt
from .tally import Tally, tally

DAY = 1440
# The steps in which it is looked at where the time goes.
SPENT_STEP = timedelta(minutes=10)


def select(group: Group, start: int, end: int) -> Selection:
    """Return the requests of *group* in [start, end), in minutes since the epoch."""
    part = {group.dimension: group.value} if group.dimension else {}
    return Selection(moment(start), moment(end), service=group.service, environment=group.environment, **part)


def learn(
    read: Reader, policy: TailPolicy, busy: timedelta, group: Group, span: tuple[int, int]
) -> tuple[Learnt, Tally] | None:
    """Learn what is normal for *group*.

    Args:
        read: The store's queries.
        policy: What matters.
        busy: So many minutes with requests it takes.
        group: Whose requests.
        span: When it was first seen, and until when it is learnt. [minutes since the epoch]

    Returns:
        What was learnt, and the last hours counted by its questions; None when there is too little to learn from.
    """
    first, at = span
    start = max(first, at - policy.reference.length)
    if at - start < policy.reference.least:
        return None
    served: dict[int, int] = {}
    reference = learn_from(policy, lambda: _days(read, group, (start, at), served))
    if reference is None or sum(served.values()) < busy / timedelta(minutes=1):
        return None
    known = list(_spent(read, group, start, at))
    recent = tally(reference.rows, as_minutes(read.minutes(select(group, at - longest(policy), at))))
    return Learnt(at, reference, stage_attribution.learn_habits(policy, known)), recent


def spent(read: Reader, group: Group, start: int, end: int) -> Spent:
    """Return where the time of the requests of *group* went in [start, end), in minutes since the epoch."""
    found = read.spent(select(group, start, end), SPENT_STEP)
    return Spent(found.start, found.step, found.index, found.total, found.stages, found.seconds)


def _days(read: Reader, group: Group, span: tuple[int, int], served: dict[int, int]) -> Iterator[Minutes]:
    """Yield the days of *span*, and note how many minutes of each had requests."""
    for low in range(*span, DAY):
        day = as_minutes(read.minutes(select(group, low, min(low + DAY, span[1]))))
        served[low] = int(day.total.any(axis=1).sum())
        yield day


def _spent(read: Reader, group: Group, start: int, end: int) -> Iterator[Spent]:
    for low in range(start, end, DAY):
        yield spent(read, group, low, min(low + DAY, end))
