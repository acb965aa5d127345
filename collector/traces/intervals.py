"""The intervals of requests: rows that have a stage, what is before the first row below one, and what a call did elsewhere.

A call to a process that was seen as well is split by durations alone, since their clocks may differ: as much of it as the other
process was busy belongs to the stage of the call, the rest was on the way, half of it before and half after.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...core.stages import OVERHEAD, position
from .assembly import Joined
from .batching import Bools, Ints
from .self_time import Intervals

# What a call takes beside what the other process was busy.
ON_THE_WAY = "network"


def stages_of(joined: Joined) -> list[str]:
    """Return all stages the labels know, in the order of charts, `overhead` last."""
    labels = joined.gathered.labels
    found = {ON_THE_WAY} | {stage for label in labels for stage in (label.stage, label.head) if stage}
    return [*sorted(found - {OVERHEAD}, key=position), OVERHEAD]


def intervals_of(joined: Joined, stages: Sequence[str]) -> Intervals:
    """Return the intervals of the whole requests of *joined*."""
    gathered, requests = joined.gathered, len(joined.roots)
    rows = gathered.rows
    number = {stage: place for place, stage in enumerate(stages)}
    stage = np.array([number.get(label.stage, -1) for label in gathered.labels], np.int64)[gathered.label]
    head = np.array([number.get(label.head, -1) for label in gathered.labels], np.int64)[gathered.label]
    is_root = np.zeros(len(rows), np.bool_)
    is_root[joined.roots] = True
    of_request = joined.request >= 0

    staged = np.flatnonzero(of_request & ~is_root & (stage >= 0))
    place = np.full(len(rows), -1)
    place[joined.roots], place[staged] = np.arange(requests), requests + np.arange(len(staged))
    around = _nearest(joined, place >= 0)
    start, end = rows["start"], rows["end"].copy()
    # What has not ended does so with its request at the latest.
    endless = np.flatnonzero(of_request & (end == 0))
    end[endless] = end[joined.roots][joined.request[endless]]

    parents, first = _first_below(joined, np.flatnonzero(of_request & (head >= 0)))
    calls, busy = _calls(joined, staged, end)
    inner = np.maximum(end[calls] - start[calls] - busy, 0) // 2
    stage_of_root, stage_of_row = stage[joined.roots], stage[staged]
    stage_of_root[stage_of_root < 0] = len(stages) - 1
    stage_of_row[place[calls] - requests] = number[ON_THE_WAY]
    return Intervals(
        request=np.concatenate((np.arange(requests), *(joined.request[each] for each in (staged, parents, calls)))),
        start=np.concatenate((start[joined.roots], start[staged], start[parents], start[calls] + inner)),
        end=np.concatenate((
            end[joined.roots],
            end[staged],
            np.clip(first, start[parents], np.maximum(end[parents], start[parents])),
            np.minimum(start[calls] + inner + busy, end[calls]),
        )),
        stage=np.concatenate((stage_of_root, stage_of_row, head[parents], stage[calls])),
        within=np.concatenate((
            np.arange(requests),
            place[around[joined.up[staged]]],
            place[around[parents]],
            place[calls],
        )),
    )  # fmt: skip


def _is_client(joined: Joined) -> Bools:
    """Return which rows wait for what they call."""
    return joined.gathered.of_labels(lambda label: label.kind == "client", np.bool_).astype(bool)


def _nearest(joined: Joined, is_interval: Bools) -> Ints:
    """Return for each row of a request the nearest from it upwards that is an interval."""
    nearest = np.arange(len(is_interval))
    passed = (joined.request >= 0) & ~is_interval
    nearest[passed] = joined.up[passed]
    while True:
        further = nearest[nearest]
        if np.array_equal(further, nearest):
            return nearest
        nearest = further


def _first_below(joined: Joined, rows: Ints) -> tuple[Ints, Ints]:
    """Return those of *rows* that have any below them, and when the first of them starts."""
    below = np.flatnonzero((joined.request >= 0) & (joined.up >= 0))
    first = np.full(len(joined.up), np.iinfo(np.int64).max)
    np.minimum.at(first, joined.up[below], joined.gathered.rows["start"][below])
    rows = rows[first[rows] != np.iinfo(np.int64).max]
    return rows, first[rows]


def _calls(joined: Joined, staged: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Return those of *staged* rows that called another process, and how long it was busy with them, in nanoseconds."""
    rows = joined.gathered.rows
    busy = np.zeros(len(rows), np.int64)
    spent = np.maximum(rows["end"] - rows["start"], 0)
    np.add.at(
        busy, joined.callers, np.minimum(spent[joined.called], end[joined.callers] - rows["start"][joined.callers])
    )
    calls = np.intersect1d(staged, joined.callers)
    calls = calls[_is_client(joined)[calls]]
    took = np.maximum(end[calls] - rows["start"][calls], 0)
    return calls, np.clip(busy[calls], 0, took)
