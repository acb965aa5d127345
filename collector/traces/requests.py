"""What is known of whole requests besides their time: whose they are, how they ended, and what their answer was like."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from ...core.names import STATUS_ERROR, STATUS_OK
from ...core.stages import OTHER
from ...store import Series
from ...store.series import COLD, WARM
from .assembly import Joined
from .batching import Bools, Ints, groups
from .columns import Flag, Label
from .intervals import intervals_of, stages_of
from .self_time import Intervals, Split, split

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers of requests that came token by token; the columns have shape (a,).

    Each is told by the topmost row of its request that knows of it; of several such there is only how many tokens there were.

    Args:
        request: Which request each is of, ascending.
        first_token: From the start of the request to the first token, 0 where it does not say. [nanoseconds]
        tokens_in: Tokens it took in, 0 where it does not say.
        tokens_out: Tokens it put out, 0 where it does not say.
        gap: The longest wait between two parts of the answer, 0 where it does not say. [nanoseconds]
        last: From the start of the request to the end of the row that tells of it. [nanoseconds]
        definition: How its first token was found; counts into *definitions*.
        definitions: Each once.
    """

    request: Ints
    first_token: Ints
    tokens_in: Ints
    tokens_out: Ints
    gap: Ints
    last: Ints
    definition: Ints
    definitions: Sequence[str]


@dataclass(frozen=True, slots=True)
class Requests:
    """Whole requests; the columns have shape (r,).

    Args:
        joined: Their rows.
        stages: All stages, in the order of charts, `overhead` last.
        intervals: Theirs.
        split: What they spent in each stage.
        start: [Unix nanoseconds]
        duration: [nanoseconds]
        known: Which of them an agent of ours has counted.
        failed: Which of them ended in an error.
        series: Counts into *kinds*.
        kinds: Whose requests there are.
        answers: Those that came token by token.
    """

    joined: Joined
    stages: Sequence[str]
    intervals: Intervals
    split: Split
    start: Ints
    duration: Ints
    known: Bools
    failed: Bools
    series: Ints
    kinds: Sequence[Series]
    answers: Answers


def requests_of(joined: Joined) -> Requests:
    """Return the whole requests of *joined*."""
    rows = joined.gathered.rows
    start = rows["start"][joined.roots]
    stages = stages_of(joined)
    intervals = intervals_of(joined, stages)
    known = np.zeros(len(joined.roots), np.bool_)
    known[joined.request[joined.gathered.flag(Flag.COUNTED) & (joined.request >= 0)]] = True
    failed = joined.gathered.flag(Flag.ERROR)[joined.roots]
    times = split(intervals, stages, len(joined.roots))
    cold = times.present[:, stages.index("load")] if "load" in stages else np.zeros_like(known)
    series, kinds = _series(joined, failed, cold)
    return Requests(
        joined=joined,
        stages=stages,
        intervals=intervals,
        split=times,
        start=start,
        duration=rows["end"][joined.roots] - start,
        known=known,
        failed=failed,
        series=series,
        kinds=kinds,
        answers=_answers(joined),
    )


def _series(joined: Joined, failed: Bools, cold: Bools) -> tuple[Ints, list[Series]]:
    models, model = _said(joined, lambda label: (label.model, label.model_version) if label.model else None)
    routes, route = _said(joined, lambda label: label.route or None)
    devices, device = _said(joined, lambda label: label.device or None)
    # Processes of one service count together.
    owners: dict[tuple[str, str, str], int] = {}
    owner = np.array(
        [
            owners.setdefault((source.service, source.version, source.environment), len(owners))
            for source in joined.gathered.sources
        ],
        np.int64,
    )[joined.gathered.source[joined.roots]]
    parts = (owner, model + 1, route + 1, device + 1, failed.astype(np.int64), cold.astype(np.int64))
    first, series = groups(*parts)
    of_owner = list(owners)
    kinds = [
        Series(
            service=service,
            version=version,
            environment=environment,
            model=["", *(name for name, _ in models)][of_model],
            model_version=["", *(version for _, version in models)][of_model],
            route=["", *routes][of_route],
            device=["", *devices][of_device],
            status=STATUS_ERROR if has_failed else STATUS_OK,
            cold=COLD if was_cold else WARM,
        )
        for number, of_model, of_route, of_device, has_failed, was_cold in np.stack(parts)[:, first].T.tolist()
        for service, version, environment in (of_owner[number],)
    ]
    return series, kinds


def _said(joined: Joined, what: Callable[[Label], T | None]) -> tuple[list[T], Ints]:
    """Return what labels say, and for each request which of it the topmost of its rows that say anything do: -1 if they differ."""
    values: dict[T, int] = {}
    numbers = [
        -1 if (value := what(label)) is None else values.setdefault(value, len(values))
        for label in joined.gathered.labels
    ]
    said = np.full(len(joined.roots), -1)
    if not values:
        return [], said
    number = np.array(numbers, np.int64)[joined.gathered.label]
    rows = np.flatnonzero((joined.request >= 0) & (number >= 0))
    request, depth = joined.request[rows], joined.depth[rows]
    top = np.full(len(said), np.iinfo(np.int64).max)
    np.minimum.at(top, request, depth)
    rows = rows[depth == top[request]]
    highest = np.full(len(said), -1)
    lowest = np.full(len(said), len(values))
    np.maximum.at(highest, joined.request[rows], number[rows])
    np.minimum.at(lowest, joined.request[rows], number[rows])
    return list(values), np.where(highest == lowest, highest, -1)


def _answers(joined: Joined) -> Answers:
    gathered, streams = joined.gathered, joined.gathered.streams
    rows = streams["row"].astype(np.int64)
    request, depth = joined.request[rows], joined.depth[rows]
    top = np.full(len(joined.roots), np.iinfo(np.int64).max)
    there = request >= 0
    np.minimum.at(top, request[there], depth[there])
    topmost = np.flatnonzero(there)
    topmost = topmost[depth[topmost] == top[request[topmost]]]
    answered, first, number = np.unique(request[topmost], return_index=True, return_inverse=True)

    tokens = np.zeros((len(answered), 2), np.int64)
    np.add.at(tokens, number, np.stack((streams["tokens_in"], streams["tokens_out"]), axis=1)[topmost])
    told, row = streams[topmost[first]], rows[topmost[first]]
    alone = np.bincount(number, minlength=len(answered)) == 1
    began = gathered.rows["start"][joined.roots[answered]]
    first_token = np.where(told["first_token_ns"] > 0, gathered.rows["start"][row] - began + told["first_token_ns"], 0)
    names = {label.definition or OTHER: 0 for label in gathered.labels}
    place = {name: place for place, name in enumerate(names)}
    of_label = np.array([place[label.definition or OTHER] for label in gathered.labels], np.int64)
    return Answers(
        request=answered,
        first_token=np.where(alone, first_token, 0),
        tokens_in=tokens[:, 0],
        tokens_out=tokens[:, 1],
        gap=np.where(alone, told["gap_ns"], 0),
        last=gathered.rows["end"][row] - began,
        definition=of_label[gathered.label[row]],
        definitions=list(names),
    )
