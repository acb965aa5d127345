"""What is known of whole requests besides their time: whose they are, how they ended, and what their answer was like."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from ...core.names import STATUS_ERROR, STATUS_OK
from ...core.stages import OTHER
from ..store import Series
from .columns import Flag, Label, Stream
from .gathering import Bools, Ints, groups
from .intervals import intervals_of, stages_of
from .joining import Joined
from .splitting import Intervals, Split, split

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a request that came token by token.

    Args:
        stream: What the row says that knows of it; times count from the start of the request.
        definition: How its first token was found.
        last_ns: From the start of the request to the end of that row. [nanoseconds]
    """

    stream: Stream
    definition: str
    last_ns: int


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
        answers: By the number of the request, of those that came token by token.
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
    answers: dict[int, Answer]


def requests_of(joined: Joined) -> Requests:
    """Return the whole requests of *joined*."""
    rows = joined.gathered.rows
    start = rows["start"][joined.roots]
    stages = stages_of(joined)
    intervals = intervals_of(joined, stages)
    known = np.zeros(len(joined.roots), np.bool_)
    known[joined.request[joined.gathered.flag(Flag.COUNTED) & (joined.request >= 0)]] = True
    failed = joined.gathered.flag(Flag.ERROR)[joined.roots]
    series, kinds = _series(joined, failed)
    return Requests(
        joined=joined,
        stages=stages,
        intervals=intervals,
        split=split(intervals, stages, len(joined.roots)),
        start=start,
        duration=rows["end"][joined.roots] - start,
        known=known,
        failed=failed,
        series=series,
        kinds=kinds,
        answers=_answers(joined),
    )


def _series(joined: Joined, failed: Bools) -> tuple[Ints, list[Series]]:
    models, model = _said(joined, lambda label: (label.model, label.model_version) if label.model else None)
    routes, route = _said(joined, lambda label: label.route or None)
    devices, device = _said(joined, lambda label: label.device or None)
    parts = (joined.gathered.source[joined.roots], model + 1, route + 1, device + 1, failed.astype(np.int64))
    first, series = groups(*parts)
    kinds = [
        Series(
            service=source.service,
            version=source.version,
            environment=source.environment,
            model=["", *(name for name, _ in models)][of_model],
            model_version=["", *(version for _, version in models)][of_model],
            route=["", *routes][of_route],
            device=["", *devices][of_device],
            status=STATUS_ERROR if has_failed else STATUS_OK,
        )
        for number, of_model, of_route, of_device, has_failed in np.stack(parts)[:, first].T.tolist()
        for source in (joined.gathered.sources[number],)
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


def _answers(joined: Joined) -> dict[int, Answer]:
    by_request: defaultdict[int, list[int]] = defaultdict(list)
    rows = list(joined.gathered.streams)
    for row, request in zip(rows, joined.request[rows].tolist(), strict=True):
        if request >= 0:
            by_request[request].append(row)
    return {request: _answer(joined, request, found) for request, found in by_request.items()}


def _answer(joined: Joined, request: int, found: list[int]) -> Answer:
    """Return the answer that the topmost of the rows *found* tell of; of several only how many tokens there were."""
    gathered, start = joined.gathered, int(joined.gathered.rows["start"][joined.roots[request]])
    top = min(int(joined.depth[row]) for row in found)
    topmost = [row for row in found if joined.depth[row] == top]
    row = topmost[0]
    definition = gathered.labels[gathered.label[row]].definition or OTHER
    last_ns = int(gathered.rows["end"][row]) - start
    streams = [gathered.streams[each] for each in topmost]
    if len(streams) > 1:
        tokens_in, tokens_out = sum(each.tokens_in for each in streams), sum(each.tokens_out for each in streams)
        return Answer(Stream(tokens_in=tokens_in, tokens_out=tokens_out), definition, last_ns)
    (stream,) = streams
    if stream.first_token_ns:
        since = int(gathered.rows["start"][row]) - start
        stream = replace(stream, first_token_ns=since + stream.first_token_ns)
    return Answer(stream, definition, last_ns)
