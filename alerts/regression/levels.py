"""A level that somebody took for normal: what was learnt before goes on, but is asked about the level as it is now.

How load and time of day move a tail, and how far chance goes, does not change with its level: it is kept from the days
before. The thresholds are moved to where the accepted requests have as many beyond. So the same level does not fire again,
and a further regression does from the first hour on; after a day all is learnt anew, from the accepted level alone.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...store import Reader
from .group_learning import select, spent
from .learning import add_up
from .minutes import Floats, Minutes, Spent
from .policy import TailPolicy
from .series import Watched, as_minutes, longest
from .stage_attribution import Habits, suspects
from .state_store import Accepted, Learnt
from .statistic import Expectation, Sums, features
from .tally import Row, Tally, rows_of, tally

# In so long blocks load and time of day hardly change. [minutes]
_BLOCK = 10


def settle(
    read: Reader, policy: TailPolicy, least: float, watched: Watched, accepted: Accepted
) -> tuple[Learnt, Tally]:
    """Return what was learnt of *watched* at the level that was accepted, and the last hours counted by its questions.

    Args:
        read: The store's queries.
        policy: What matters.
        least: So many accepted requests must be beyond a threshold to say where it is now. [count]
        watched: The series.
        accepted: The minutes that show what is normal now.
    """
    group, learnt, at = watched.group, watched.learnt, watched.progress.at
    shown = as_minutes(read.minutes(select(group, accepted.since, accepted.at)))
    reference = replace(learnt.reference, rows=_rows(policy, least, learnt, shown))
    habits = _habits(policy, learnt.habits, spent(read, group, accepted.since, accepted.at))
    recent = tally(reference.rows, as_minutes(read.minutes(select(group, at - longest(policy), at))))
    return Learnt(accepted.at, reference, habits), recent


def _rows(policy: TailPolicy, least: float, learnt: Learnt, shown: Minutes) -> tuple[Row, ...]:
    """Return the questions with their thresholds where *shown* has them; of those it cannot answer nothing is expected."""
    now = {(row.stage, row.at): row for row in rows_of(policy, *add_up([shown]))}
    rows = tuple(now.get((row.stage, row.at), row) for row in learnt.reference.rows)
    counted = tally(rows, shown)
    usual = _usual(learnt, rows, counted)
    beyond = counted.beyond.sum(axis=1)
    share = np.where(beyond >= least, beyond / np.maximum(usual, 1e-9), 0.0)
    return tuple(replace(row, expected=float(share[number])) for number, row in enumerate(rows))


def _usual(learnt: Learnt, rows: tuple[Row, ...], counted: Tally) -> Floats:
    """Return how many would be beyond if all were at a usual load and time of day: what shares are counted in; shape (rows,)."""
    asked = Expectation(learnt.reference.model, rows, range(len(rows)))
    ends = np.arange(len(counted), 0, -_BLOCK)
    lengths = np.minimum(ends, _BLOCK)
    requests, n, _ = Sums(counted).of(ends, lengths, asked.chosen)
    normal = asked.weights @ features(asked.load, requests, lengths, counted.start + ends).T
    return (n * np.exp(normal)).sum(axis=1)


def _habits(policy: TailPolicy, habits: Habits, shown: Spent) -> Habits:
    """Return *habits* with what stages took more in *shown* than they used to."""
    grown = {one.stage: one.seconds for one in suspects(policy, habits, shown, {})}
    stages = tuple(sorted({*habits.stages, *grown}))
    spread = dict(zip(habits.stages, habits.spread, strict=True))
    usual = (dict(zip(habits.stages, hour, strict=True)) for hour in habits.usual)
    return Habits(
        stages,
        tuple(tuple(hour.get(stage, 0.0) + grown.get(stage, 0.0) for stage in stages) for hour in usual),
        tuple(spread.get(stage, 0.0) for stage in stages),
    )
