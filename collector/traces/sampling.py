"""Sampling of retained traces, and encoding of their spans for the store.

For each series and run, failed requests, the slowest requests and a uniform share are retained. The share is selected by trace id as
in `instrumentors.agent.sample`, so every collector and every agent selects the same traces. Encoded spans show only the attributes that rules name; the JSON of a label is built
once, and each span adds its start and duration.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from ...core import names
from ...store import RetainedTrace, records
from ...store.records import encode_json
from .assembly import CALLS, AssembledSpans, Bools, Ints, SpanBatch
from .columns import Flag, Label
from .requests import NETWORK_STAGE, NO_CHILD, Requests, first_child_start

# Number of spans shown for a request; the longest ones are shown.
MAX_SPANS_SHOWN = 1000
# Attribute: time by which remote work was moved into its call, because the clocks differ. [nanoseconds]
CLOCK_SHIFTED = "stagelens.clock.shifted"
# Requests whose spans are encoded at once, a few megabytes.
_REQUESTS_AT_ONCE = 1000
RetainReason = Literal["forced", "error", "slow", "uniform"]


def encode_spans(requests: Requests, chosen: Ints) -> Iterator[str]:
    """Yield the spans of each request in *chosen* (ascending indexes) as comma-separated JSON objects."""
    for first in range(0, len(chosen), _REQUESTS_AT_ONCE):
        yield from _encode_chunk(requests, chosen[first : first + _REQUESTS_AT_ONCE])


def _encode_chunk(requests: Requests, chosen: Ints) -> Iterator[str]:
    assembled, batch = requests.assembled, requests.assembled.batch
    rows, request, is_root = _in_order(assembled, chosen)
    began = requests.start[chosen][request]
    start, end = batch.rows["start"][rows], batch.rows["end"][rows]
    # A span that has not ended ends with its request.
    end = np.where(end > 0, end, began + requests.duration[chosen][request])
    failed = (batch.rows["flags"][rows] & Flag.ERROR.value) != 0
    is_call = np.isin(rows, assembled.callers) & batch.of_labels(_can_call)[rows]

    pieces = _SpanTemplates(batch)
    kinds = zip(batch.label[rows].tolist(), failed.tolist(), is_call.tolist(), strict=True)
    times = zip((start - began).tolist(), np.maximum(end - start, 0).tolist(), strict=True)
    # Calls have their ids: the requests that they called name them as their parents.
    calling = batch.of_labels(lambda label: label.kind in CALLS)[rows]
    ids = np.where(calling, batch.rows["span"][rows], 0).tolist()
    shown = [pieces[kind].between(*time, span_id) for kind, time, span_id in zip(kinds, times, ids, strict=True)]
    number = (~is_root).astype(np.int64)
    for position in np.flatnonzero(is_root).tolist():
        shown[position] = ""
    for position, besides in _extra_spans(assembled, rows, start - began, end - start).items():
        shown[position] = ",".join([*filter(None, (shown[position],)), *besides])
        number[position] += len(besides)
    bounds = [*np.flatnonzero(is_root).tolist(), len(rows)]
    so_far = np.append(0, np.cumsum(number))[bounds].tolist()
    for (first, last), (before, after) in zip(pairwise(bounds), pairwise(so_far), strict=True):
        written = ",".join(shown[first if shown[first] else first + 1 : last])
        yield written if after - before <= MAX_SPANS_SHOWN else _longest(written)


def _in_order(assembled: AssembledSpans, chosen: Ints) -> tuple[Ints, Ints, Bools]:
    number = np.full(len(assembled.roots), -1)
    number[chosen] = np.arange(len(chosen))
    rows = np.flatnonzero(assembled.request >= 0)
    rows = rows[number[assembled.request[rows]] >= 0]
    request, is_root = number[assembled.request[rows]], assembled.up[rows] < 0
    order = np.lexsort((assembled.batch.rows["start"][rows], ~is_root, request))
    return rows[order], request[order], is_root[order]


def _longest(written: str) -> str:
    spans = json.loads(f"[{written}]")
    longest = sorted(spans, key=lambda span: span["duration_ns"], reverse=True)[:MAX_SPANS_SHOWN]
    return encode_json(sorted(longest, key=lambda span: span["start_ns"]))[1:-1]


def _can_call(label: Label) -> bool:
    return label.kind == "client" and bool(label.stage)


class _SpanTemplate:
    __slots__ = ("_after", "_before")

    def __init__(self, name: str, stage: str, attributes: dict[str, Any]) -> None:
        self._before = f'{{"name":{encode_json(name)},"stage":{encode_json(stage)},"start_ns":'
        self._after = f',"attributes":{encode_json(attributes)}}}'

    def between(self, start: int, took: int, span_id: int = 0) -> str:
        """Return the JSON of a span with start *start* and duration *took*, in nanoseconds, and with its id unless 0."""
        named = f',"id":"{span_id:016x}"' if span_id else ""
        return f'{self._before}{start},"duration_ns":{took}{named}{self._after}'


class _SpanTemplates(dict[tuple[int, bool, bool], _SpanTemplate]):
    def __init__(self, batch: SpanBatch) -> None:
        super().__init__()
        self._labels = batch.labels

    def __missing__(self, kind: tuple[int, bool, bool]) -> _SpanTemplate:
        number, failed, is_call = kind
        label = self._labels[number]
        attributes: dict[str, Any] = dict(label.attributes)
        if failed:
            attributes[names.STATUS] = names.STATUS_ERROR
        template = self[kind] = _SpanTemplate(label.name, NETWORK_STAGE if is_call else label.stage, attributes)
        return template


def _extra_spans(assembled: AssembledSpans, rows: Ints, since: Ints, took: Ints) -> dict[int, list[str]]:
    """Return additional spans of *rows* by position: head stages before the first child, and remote work; times in nanoseconds."""
    labels, label = assembled.batch.labels, assembled.batch.label[rows]
    started = assembled.batch.rows["start"]
    extra: defaultdict[int, list[str]] = defaultdict(list)
    first = first_child_start(assembled)
    has_head = assembled.batch.of_labels(lambda span_label: bool(span_label.head))[rows]
    for position in np.flatnonzero(has_head & (first[rows] < NO_CHILD)).tolist():
        head = labels[label[position]].head
        length = min(max(int(first[rows[position]] - started[rows[position]]), 0), int(took[position]))
        extra[position].append(_SpanTemplate(head, head, {}).between(int(since[position]), max(length, 0)))
    callers = np.flatnonzero(np.isin(rows, assembled.callers))
    place_of = dict(zip(rows[callers].tolist(), callers.tolist(), strict=True))
    for caller, server in zip(assembled.callers.tolist(), assembled.called.tolist(), strict=True):
        position = place_of.get(caller)
        if position is not None:
            extra[position].append(_remote_span(assembled, caller, server, int(started[caller] - since[position])))
    return extra


def _remote_span(assembled: AssembledSpans, caller: int, server: int, began: int) -> str:
    """Return the encoded span of the remote work for *caller*, moved into the time of the call because clocks differ."""
    batch = assembled.batch
    call, there = batch.rows[caller], batch.rows[server]
    low, start, end = int(call["start"]), int(there["start"]), int(there["end"])
    calling, called = batch.labels[batch.label[caller]], batch.labels[batch.label[server]]
    attributes: dict[str, Any] = dict(called.attributes)
    source = batch.sources[int(batch.source[server])]
    # Readers of other environments get only the times of the span, see `records.visible_trace`.
    attributes |= {names.SERVICE_NAME: source.service, names.ENVIRONMENT: source.environment}
    took, high, moved = end - start, int(call["end"]) or end, 0
    if start < low or end > high:
        moved = low + (high - low - took) // 2 - start
        attributes[CLOCK_SHIFTED] = moved
    stage = calling.stage if calling.kind == "client" else ""
    return _SpanTemplate(called.name, stage, attributes).between(start + moved - began, max(took, 0))


@dataclass(frozen=True, slots=True)
class SamplingPolicy:
    errors: int = 4
    slow: int = 2
    uniform: int = 1
    everything: bool = False


def traces_of(requests: Requests, policy: SamplingPolicy) -> list[RetainedTrace]:
    chosen = _chosen(requests, policy)
    numbers = np.array(sorted(chosen), np.int64)
    if not len(numbers):
        return []
    batch, labels, pack = requests.assembled.batch, requests.assembled.batch.labels, records.trace_packer()
    roots = requests.assembled.roots[numbers]
    ids = batch.rows[roots]
    columns = (
        numbers,
        ids["trace_high"],
        ids["trace_low"],
        ids["span"],
        ids["parent"],
        requests.series[numbers],
        requests.start[numbers],
        requests.duration[numbers],
        requests.split.main[numbers],
        batch.label[roots],
        requests.split.own[numbers],
        requests.split.present[numbers],
    )
    return [
        RetainedTrace(
            trace_id=f"{high:016x}{low:016x}",
            span_id=f"{span:016x}",
            series=requests.kinds[series],
            started_ns=start,
            duration_ns=duration,
            because=chosen[number],
            dominant=requests.stages[int(main)],
            stages_ns={
                stage: spent for stage, spent, there in zip(requests.stages, self_ns, present, strict=True) if there
            },
            document=pack(
                f'{{"spans":[{spans}],"attributes":{records.encode_json(dict(labels[label].attributes))}'
                f',"parent":"{(f"{parent:016x}" if parent else "")}"}}'
            ),
        )
        for (number, high, low, span, parent, series, start, duration, main, label, self_ns, present), spans in zip(
            zip(*(column.tolist() for column in columns), strict=True), encode_spans(requests, numbers), strict=True
        )
    ]


def _chosen(requests: Requests, policy: SamplingPolicy) -> dict[int, RetainReason]:
    counted = requests.counted
    if policy.everything:
        return dict.fromkeys(counted.tolist(), "forced")
    # Those with the largest second half of the trace id come first.
    draw = ~requests.assembled.batch.rows["trace_low"][requests.assembled.roots[counted]]
    failed = np.flatnonzero(requests.failed[counted])
    reasons: list[tuple[RetainReason, Ints]] = [
        ("error", failed[_first(requests.series[counted[failed]], draw[failed], policy.errors)]),
        ("slow", _first(requests.series[counted], -requests.duration[counted], policy.slow)),
        ("uniform", _first(requests.series[counted], draw, policy.uniform)),
    ]
    chosen: dict[int, RetainReason] = {}
    for because, selected in reasons:
        for number in counted[selected].tolist():
            chosen.setdefault(number, because)
    return chosen


def _first(series: Ints, value: np.ndarray[Any, Any], count: int) -> Ints:
    order = np.lexsort((value, series))
    begins = np.flatnonzero(np.diff(series[order], prepend=-1) != 0)
    rank = np.arange(len(order)) - np.repeat(begins, np.diff(begins, append=len(order)))
    return order[rank < count]
