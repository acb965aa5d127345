"""Complete requests in columns: series, outcome, intervals, time in each stage, and streamed responses.

Intervals are rows with a stage, the time before the first child of a row with a head stage, and remote work of a call. A call to a
process whose spans are known is divided by durations alone, because clocks may differ: the busy time of the other process belongs to
the stage of the call, the remaining time to the network, half before and half after.

`split_by_stage` assigns each instant to one stage. Most intervals are nested or sequential; the own time of each is then its duration
minus that of its children. Overlapping intervals are divided by `core.partition`, with the same result for the simple case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ...core.columns import Bools, Columnar, Ints
from ...core.names import STATUS_ERROR, STATUS_OK
from ...core.partition import Interval, partition
from ...core.stages import OTHER, OVERHEAD, position
from ...store import Series
from ...store.series import COLD, WARM
from .assembly import AssembledSpans, group_rows
from .columns import Flag, Label

# Start offsets of up to 18 minutes fit into one integer with the index of the enclosing interval. [bits]
_START_BITS = 40
T = TypeVar("T")
# Stage for the part of a call in which the called process was not busy.
NETWORK_STAGE = "network"
NO_CHILD = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Intervals(Columnar):
    """Intervals of requests; the columns have shape (n,). The first intervals are the requests, in order."""

    request: Ints  # index of the request
    start: Ints  # start time [Unix nanoseconds]
    end: Ints  # end time [Unix nanoseconds]
    stage: Ints  # index of the stage in the list of stages, whose last element is `overhead`
    within: Ints  # index of the enclosing interval; for a request, its own index

    def of(self, chosen: Ints, end: Ints) -> Intervals:
        """Return the intervals of the requests *chosen*, in order; *end* replaces the ends of the requests, in Unix nanoseconds."""
        number = np.full(int(self.request.max(initial=-1)) + 1, -1)
        number[chosen] = np.arange(len(chosen))
        stays = np.flatnonzero(number[self.request] >= 0)
        new_index = np.full(len(self.request), -1)
        new_index[stays] = np.arange(len(stays))
        selected = self.take(stays)
        ends = np.concatenate((end, selected.end[len(chosen) :]))
        return replace(selected, request=number[selected.request], end=ends, within=new_index[selected.within])


@dataclass(frozen=True, slots=True)
class RequestStageTimes:
    own: Ints  # time in each stage; the sum over the stages is the duration of the request [nanoseconds]
    present: Bools  # whether the request had the stage; always true for `overhead`

    @property
    def main(self) -> Ints:
        """Index of the dominant stage of each request; of equal stages the first, and `overhead` last."""
        return np.where(self.present, self.own, -1).argmax(axis=1)


def split_by_stage(intervals: Intervals, stages: Sequence[str], requests: int) -> RequestStageTimes:
    """Assign each instant of each request to one of its stages, with the result of `core.partition.partition`."""
    t0, t1 = intervals.start[:requests][intervals.request], intervals.end[:requests][intervals.request]
    is_request = np.arange(len(intervals.request)) < requests
    inside = (intervals.start <= intervals.end) & (intervals.start <= t1) & (intervals.end >= t0)
    start, end = np.clip(intervals.start, t0, t1), np.clip(intervals.end, t0, t1)
    simple = np.ones(requests, np.bool_)
    simple[intervals.request[_overlapping(intervals, start, end, t0, inside, is_request, len(stages) - 1)]] = False

    counts = inside & simple[intervals.request]
    # Exact: a float represents the nanoseconds of a hundred days.
    nested_ns = np.bincount(
        intervals.within[counts & ~is_request], (end - start)[counts & ~is_request], minlength=len(start)
    ).astype(np.int64)
    self_ns = np.zeros((requests, len(stages)), np.int64)
    present = np.zeros((requests, len(stages)), np.bool_)
    np.add.at(self_ns, (intervals.request[counts], intervals.stage[counts]), (end - start - nested_ns)[counts])
    present[intervals.request[counts], intervals.stage[counts]] = True
    present[:, -1] = True
    for request, spent_by_stage in _partition_overlapping(intervals, np.flatnonzero(~simple), stages, is_request):
        self_ns[request] = 0
        for stage, spent in spent_by_stage.items():
            column = len(stages) - 1 if stage == OVERHEAD else stages.index(stage)
            self_ns[request, column], present[request, column] = spent, True
    return RequestStageTimes(self_ns, present)


def _overlapping(  # noqa: PLR0917 - columns
    intervals: Intervals, start: Ints, end: Ints, t0: Ints, inside: Bools, is_request: Bools, overhead: int
) -> Bools:
    within = intervals.within
    bare = is_request[within] & (intervals.stage[within] == overhead)
    # `partition` has its own order for intervals with equal times.
    same = (start == start[within]) & (end == end[within]) & ~bare
    sticks_out = (start < start[within]) | (end > end[within]) | ~inside[within]
    odd = inside & ~is_request & (same | sticks_out | ((start - t0) >> _START_BITS != 0))
    chosen = np.flatnonzero(inside & ~is_request)
    since = np.minimum(start - t0, (1 << _START_BITS) - 1)
    order = chosen[np.argsort((within[chosen] << _START_BITS) + since[chosen])]
    follows = within[order[1:]] == within[order[:-1]]
    odd[order[1:][follows & (start[order[1:]] < end[order[:-1]])]] = True
    return odd


def _partition_overlapping(
    intervals: Intervals, requests: Ints, stages: Sequence[str], is_request: Bools
) -> Iterator[tuple[int, dict[str, int]]]:
    wanted = np.zeros(int(intervals.request.max(initial=-1)) + 1, np.bool_)
    wanted[requests] = True
    # A request with a stage of its own counts as an interval.
    chosen = np.flatnonzero(wanted[intervals.request] & ~(is_request & (intervals.stage == len(stages) - 1)))
    chosen = chosen[np.argsort(intervals.request[chosen], kind="stable")]
    bounds: NDArray[np.int64] = np.searchsorted(intervals.request[chosen], np.array([requests, requests + 1]))
    start, end = intervals.start[chosen].tolist(), intervals.end[chosen].tolist()
    of_stage = intervals.stage[chosen].tolist()
    times: list[Interval] = [(stages[int(stage)], t0, t1) for stage, t0, t1 in zip(of_stage, start, end, strict=True)]
    for request, first, last in zip(requests.tolist(), *bounds.tolist(), strict=True):
        yield request, partition(times[first:last], int(intervals.start[request]), int(intervals.end[request]))


@dataclass(frozen=True, slots=True)
class StreamedResponses:
    """Streamed responses of requests; the columns have shape (a,), 0 means unknown.

    The topmost row with a stream describes the response; of several topmost rows only the token counts are used.
    """

    request: Ints  # index of the request, ascending
    first_token: Ints  # time from the start of the request to the first token [nanoseconds]
    tokens_in: Ints
    tokens_out: Ints
    gap: Ints  # longest pause between two parts of the response [nanoseconds]
    last: Ints  # time from the start of the request to the end of the row with the stream [nanoseconds]
    definition: Ints  # index of the definition of the first token in *definitions*
    definitions: Sequence[str]  # distinct definitions


@dataclass(frozen=True, slots=True)
class Requests:
    assembled: AssembledSpans
    stages: Sequence[str]  # all stages in the order of charts, `overhead` last
    intervals: Intervals
    split: RequestStageTimes
    start: Ints  # start time [Unix nanoseconds]
    duration: Ints  # duration [nanoseconds]
    by_agent: Bools  # whether a Stagelens agent has counted the request
    probe: Bools  # whether the request is a health probe
    failed: Bools  # whether the request ended in an error
    series: Ints  # index of the series in *kinds*
    kinds: Sequence[Series]  # distinct series
    responses: StreamedResponses

    @property
    def counted(self) -> Ints:
        return np.flatnonzero(~self.by_agent & ~self.probe)


def requests_of(assembled: AssembledSpans) -> Requests:
    rows = assembled.batch.rows
    start = rows["start"][assembled.roots]
    stages = stages_of(assembled)
    intervals = intervals_of(assembled, stages)
    by_agent = np.zeros(len(assembled.roots), np.bool_)
    by_agent[assembled.request[assembled.batch.flag(Flag.COUNTED) & (assembled.request >= 0)]] = True
    failed = assembled.batch.flag(Flag.ERROR)[assembled.roots]
    times = split_by_stage(intervals, stages, len(assembled.roots))
    cold = times.present[:, stages.index("load")] if "load" in stages else np.zeros_like(by_agent)
    series, kinds = _series(assembled, failed, cold)
    return Requests(
        assembled=assembled,
        stages=stages,
        intervals=intervals,
        split=times,
        start=start,
        duration=rows["end"][assembled.roots] - start,
        by_agent=by_agent,
        probe=assembled.batch.flag(Flag.PROBE)[assembled.roots],
        failed=failed,
        series=series,
        kinds=kinds,
        responses=_streamed_responses(assembled),
    )


def _series(assembled: AssembledSpans, failed: Bools, cold: Bools) -> tuple[Ints, list[Series]]:
    models, model = _label_values(assembled, lambda label: (label.model, label.model_version) if label.model else None)
    routes, route = _label_values(assembled, lambda label: label.route or None)
    devices, device = _label_values(assembled, lambda label: label.device or None)
    # The processes of one service share a series.
    owners: dict[tuple[str, str, str], int] = {}
    owner = np.array(
        [
            owners.setdefault((source.service, source.version, source.environment), len(owners))
            for source in assembled.batch.sources
        ],
        np.int64,
    )[assembled.batch.source[assembled.roots]]
    parts = (owner, model + 1, route + 1, device + 1, failed.astype(np.int64), cold.astype(np.int64))
    first, series = group_rows(*parts)
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


def _label_values(assembled: AssembledSpans, what: Callable[[Label], T | None]) -> tuple[list[T], Ints]:
    """Return the distinct values of a label property, and for each request the index of its topmost value, -1 if ambiguous."""
    values: dict[T, int] = {}
    numbers = [
        -1 if (value := what(label)) is None else values.setdefault(value, len(values))
        for label in assembled.batch.labels
    ]
    values_of_roots = np.full(len(assembled.roots), -1)
    if not values:
        return [], values_of_roots
    number = np.array(numbers, np.int64)[assembled.batch.label]
    rows = np.flatnonzero((assembled.request >= 0) & (number >= 0))
    request, depth = assembled.request[rows], assembled.depth[rows]
    top = np.full(len(values_of_roots), np.iinfo(np.int64).max)
    np.minimum.at(top, request, depth)
    rows = rows[depth == top[request]]
    highest = np.full(len(values_of_roots), -1)
    lowest = np.full(len(values_of_roots), len(values))
    np.maximum.at(highest, assembled.request[rows], number[rows])
    np.minimum.at(lowest, assembled.request[rows], number[rows])
    return list(values), np.where(highest == lowest, highest, -1)


def _streamed_responses(assembled: AssembledSpans) -> StreamedResponses:
    batch, streams = assembled.batch, assembled.batch.streams
    rows = streams["row"].astype(np.int64)
    request, depth = assembled.request[rows], assembled.depth[rows]
    top = np.full(len(assembled.roots), np.iinfo(np.int64).max)
    there = request >= 0
    np.minimum.at(top, request[there], depth[there])
    topmost = np.flatnonzero(there)
    topmost = topmost[depth[topmost] == top[request[topmost]]]
    streamed, first, number = np.unique(request[topmost], return_index=True, return_inverse=True)

    tokens = np.zeros((len(streamed), 2), np.int64)
    np.add.at(tokens, number, np.stack((streams["tokens_in"], streams["tokens_out"]), axis=1)[topmost])
    first_stream, row = streams[topmost[first]], rows[topmost[first]]
    alone = np.bincount(number, minlength=len(streamed)) == 1
    began = batch.rows["start"][assembled.roots[streamed]]
    first_token = np.where(
        first_stream["first_token_ns"] > 0, batch.rows["start"][row] - began + first_stream["first_token_ns"], 0
    )
    names = {label.definition or OTHER: 0 for label in batch.labels}
    number = {name: index for index, name in enumerate(names)}
    of_label = np.array([number[label.definition or OTHER] for label in batch.labels], np.int64)
    return StreamedResponses(
        request=streamed,
        first_token=np.where(alone, first_token, 0),
        tokens_in=tokens[:, 0],
        tokens_out=tokens[:, 1],
        gap=np.where(alone, first_stream["gap_ns"], 0),
        last=batch.rows["end"][row] - began,
        definition=of_label[batch.label[row]],
        definitions=list(names),
    )


def stages_of(assembled: AssembledSpans) -> list[str]:
    """Return the stages of all labels in the order of charts, `overhead` last."""
    labels = assembled.batch.labels
    stage_keys = {NETWORK_STAGE} | {stage for label in labels for stage in (label.stage, label.head) if stage}
    return [*sorted(stage_keys - {OVERHEAD}, key=position), OVERHEAD]


def intervals_of(assembled: AssembledSpans, stages: Sequence[str]) -> Intervals:
    batch, requests = assembled.batch, len(assembled.roots)
    rows = batch.rows
    number = {stage: index for index, stage in enumerate(stages)}
    stage = np.array([number.get(label.stage, -1) for label in batch.labels], np.int64)[batch.label]
    head = np.array([number.get(label.head, -1) for label in batch.labels], np.int64)[batch.label]
    is_root = np.zeros(len(rows), np.bool_)
    is_root[assembled.roots] = True
    of_request = assembled.request >= 0

    staged = np.flatnonzero(of_request & ~is_root & (stage >= 0))
    interval_of_row = np.full(len(rows), -1)
    interval_of_row[assembled.roots], interval_of_row[staged] = np.arange(requests), requests + np.arange(len(staged))
    around = _nearest_interval(assembled, interval_of_row >= 0)
    start, end = rows["start"], rows["end"].copy()
    # A span that has not ended ends with its request.
    endless = np.flatnonzero(of_request & (end == 0))
    end[endless] = end[assembled.roots][assembled.request[endless]]

    first = first_child_start(assembled)
    parents = np.flatnonzero(of_request & (head >= 0) & (first < NO_CHILD))
    calls, busy = _calls(assembled, staged, end)
    inner = np.maximum(end[calls] - start[calls] - busy, 0) // 2
    stage_of_root, stage_of_row = stage[assembled.roots], stage[staged]
    stage_of_root[stage_of_root < 0] = len(stages) - 1
    stage_of_row[interval_of_row[calls] - requests] = number[NETWORK_STAGE]
    return Intervals(
        request=np.concatenate((np.arange(requests), *(assembled.request[spans] for spans in (staged, parents, calls)))),
        start=np.concatenate((start[assembled.roots], start[staged], start[parents], start[calls] + inner)),
        end=np.concatenate((
            end[assembled.roots],
            end[staged],
            np.clip(first[parents], start[parents], np.maximum(end[parents], start[parents])),
            np.minimum(start[calls] + inner + busy, end[calls]),
        )),
        stage=np.concatenate((stage_of_root, stage_of_row, head[parents], stage[calls])),
        within=np.concatenate((
            np.arange(requests),
            interval_of_row[around[assembled.up[staged]]],
            interval_of_row[around[parents]],
            interval_of_row[calls],
        )),
    )  # fmt: skip


def _nearest_interval(assembled: AssembledSpans, is_interval: Bools) -> Ints:
    nearest = np.arange(len(is_interval))
    passed = (assembled.request >= 0) & ~is_interval
    nearest[passed] = assembled.up[passed]
    while True:
        further = nearest[nearest]
        if np.array_equal(further, nearest):
            return nearest
        nearest = further


def first_child_start(assembled: AssembledSpans) -> Ints:
    """Return the start of the first child of each row within its request, `NO_CHILD` for none."""
    below = np.flatnonzero((assembled.request >= 0) & (assembled.up >= 0))
    first = np.full(len(assembled.up), NO_CHILD)
    np.minimum.at(first, assembled.up[below], assembled.batch.rows["start"][below])
    return first


def _calls(assembled: AssembledSpans, staged: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Return the *staged* rows that called another process, and the busy time of that process, in nanoseconds."""
    rows = assembled.batch.rows
    busy = np.zeros(len(rows), np.int64)
    spent = np.maximum(rows["end"] - rows["start"], 0)
    np.add.at(
        busy,
        assembled.callers,
        np.minimum(spent[assembled.called], end[assembled.callers] - rows["start"][assembled.callers]),
    )
    calls = np.intersect1d(staged, assembled.callers)
    is_client = assembled.batch.of_labels(lambda label: label.kind == "client")
    calls = calls[is_client[calls]]
    took = np.maximum(end[calls] - rows["start"][calls], 0)
    return calls, np.clip(busy[calls], 0, took)
