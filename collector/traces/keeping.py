"""Which requests are kept as traces, and their pictures.

For each series and fold: failed ones, the slowest, and a share to compare them with, which their ids decide, so that it is the
same whoever folds. A picture shows the attributes that the rules named, nothing else of a span.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from ...core import names
from ...core.counts import dominant
from ..store import KeptTrace
from .columns import Flag, Label
from .gathering import Ints
from .intervals import ON_THE_WAY
from .joining import trace_keys
from .requests import Requests

# The longest of a request.
MAX_SPANS_SHOWN = 1000
# Nanoseconds by which what another process did was moved to lie within the call to it: their clocks differ.
SHIFTED = "stagelens.clock.shifted"
Because = Literal["forced", "error", "slow", "uniform"]


@dataclass(frozen=True, slots=True)
class Keep:
    """How many requests of a series and fold are kept.

    Args:
        errors: Failed ones.
        slow: The slowest.
        uniform: Any.
        everything: All of them, whatever else is said.
    """

    errors: int = 4
    slow: int = 2
    uniform: int = 1
    everything: bool = False


def traces_of(requests: Requests, keep: Keep) -> list[KeptTrace]:
    """Return those of *requests* that are kept."""
    chosen = _chosen(requests, keep)
    numbers = sorted(chosen)
    roots = _rows(requests, requests.joined.roots[numbers])
    below = _below(requests, numbers)
    called = _called(requests, chosen.keys())
    return [
        _trace(requests, number, chosen[number], root, below[number], called)
        for number, root in zip(numbers, roots, strict=True)
    ]


def _chosen(requests: Requests, keep: Keep) -> dict[int, Because]:
    counted = np.flatnonzero(~requests.known)
    if keep.everything:
        return dict.fromkeys(counted.tolist(), "forced")
    draw = trace_keys(requests.joined.gathered.rows[requests.joined.roots[counted]])
    failed = np.flatnonzero(requests.failed[counted])
    reasons: list[tuple[Because, Ints]] = [
        ("error", failed[_first(requests.series[counted[failed]], draw[failed], keep.errors)]),
        ("slow", _first(requests.series[counted], -requests.duration[counted], keep.slow)),
        ("uniform", _first(requests.series[counted], draw, keep.uniform)),
    ]
    chosen: dict[int, Because] = {}
    for because, found in reasons:
        for number in counted[found].tolist():
            chosen.setdefault(number, because)
    return chosen


def _first(series: Ints, value: np.ndarray[Any, Any], count: int) -> Ints:
    """Return the *count* rows of each series with the smallest *value*."""
    order = np.lexsort((value, series))
    begins = np.flatnonzero(np.diff(series[order], prepend=-1) != 0)
    rank = np.arange(len(order)) - np.repeat(begins, np.diff(begins, append=len(order)))
    return order[rank < count]


class _Row(NamedTuple):
    """What is shown of a row; times in Unix nanoseconds."""

    place: int
    up: int
    start: int
    end: int
    label: Label
    failed: bool


def _below(requests: Requests, chosen: Sequence[int]) -> dict[int, list[_Row]]:
    """Return the rows of the requests *chosen* but for their roots, by request and start."""
    joined = requests.joined
    wanted = np.zeros(len(joined.roots), np.bool_)
    wanted[list(chosen)] = True
    rows = np.flatnonzero((joined.request >= 0) & (joined.up >= 0))
    rows = rows[wanted[joined.request[rows]]]
    rows = rows[np.lexsort((joined.gathered.rows["start"][rows], joined.request[rows]))]
    shown = _rows(requests, rows)
    bounds = np.searchsorted(joined.request[rows], np.array([chosen, np.array(chosen, np.int64) + 1], np.int64))
    return {number: shown[first:last] for number, first, last in zip(chosen, *bounds.tolist(), strict=True)}


def _rows(requests: Requests, places: Ints) -> list[_Row]:
    gathered, labels = requests.joined.gathered, requests.joined.gathered.labels
    found = gathered.rows[places]
    columns = (found["start"], found["end"], gathered.label[places], found["flags"] & Flag.ERROR.value)
    return [
        _Row(place, up, start, end, labels[label], failed=bool(error))
        for place, up, start, end, label, error in zip(
            places.tolist(), requests.joined.up[places].tolist(), *(each.tolist() for each in columns), strict=True
        )
    ]


def _trace(  # noqa: PLR0917 - one of the requests, and what was found of it
    requests: Requests, number: int, because: Because, root: _Row, below: list[_Row], called: dict[int, list[int]]
) -> KeptTrace:
    ids = requests.joined.gathered.rows[root.place]
    own = requests.split.of(number, requests.stages)
    spans = list(_spans(requests, root, below, called))
    if len(spans) > MAX_SPANS_SHOWN:
        longest = sorted(spans, key=lambda span: span["duration_ns"], reverse=True)[:MAX_SPANS_SHOWN]
        spans = sorted(longest, key=lambda span: span["start_ns"])
    return KeptTrace(
        trace_id=f"{int(ids['trace_high']):016x}{int(ids['trace_low']):016x}",
        span_id=f"{int(ids['span']):016x}",
        series=requests.kinds[int(requests.series[number])],
        started_ns=root.start,
        duration_ns=root.end - root.start,
        because=because,
        dominant=dominant(own),
        stages_ns=own,
        spans=spans,
        attributes=dict(root.label.attributes),
    )


def _spans(requests: Requests, root: _Row, below: list[_Row], called: dict[int, list[int]]) -> Iterator[dict[str, Any]]:
    # They are in the order of their starts: of those below one, the first is seen first.
    first_below: dict[int, int] = {}
    for row in below:
        first_below.setdefault(row.up, row.start)
    for row in (root, *below):
        label, end = row.label, row.end or root.end
        servers = called.get(row.place, ())
        if row is not root:
            is_call = bool(servers) and label.kind == "client" and bool(label.stage)
            attributes: dict[str, Any] = dict(label.attributes)
            if row.failed:
                attributes[names.STATUS] = names.STATUS_ERROR
            stage = ON_THE_WAY if is_call else label.stage
            yield _span(label.name, stage, row.start - root.start, end - row.start, attributes)
        if label.head and row.place in first_below:
            until = min(max(first_below[row.place], row.start), end)
            yield _span(label.head, label.head, row.start - root.start, until - row.start, {})
        for server in servers:
            yield _elsewhere(requests, row, server, root.start)


def _span(name: str, stage: str, start_ns: int, duration_ns: int, attributes: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "stage": stage,
        "start_ns": start_ns,
        "duration_ns": max(duration_ns, 0),
        "attributes": attributes,
    }


def _called(requests: Requests, chosen: Any) -> dict[int, list[int]]:
    """Return what each row of the requests *chosen* called elsewhere."""
    joined = requests.joined
    found: defaultdict[int, list[int]] = defaultdict(list)
    for caller, server in zip(joined.callers.tolist(), joined.called.tolist(), strict=True):
        if int(joined.request[caller]) in chosen:
            found[caller].append(server)
    return found


def _elsewhere(requests: Requests, caller: _Row, place: int, began: int) -> dict[str, Any]:
    """Return the picture of what another process did for *caller*: of another clock, so it is moved to where it must have been."""
    (server,) = _rows(requests, np.array([place]))
    gathered = requests.joined.gathered
    attributes: dict[str, Any] = dict(server.label.attributes)
    attributes[names.SERVICE_NAME] = gathered.sources[int(gathered.source[place])].service
    took, high, moved = server.end - server.start, caller.end or server.end, 0
    if server.start < caller.start or server.end > high:
        moved = caller.start + (high - caller.start - took) // 2 - server.start
        attributes[SHIFTED] = moved
    stage = caller.label.stage if caller.label.kind == "client" else ""
    return _span(server.label.name, stage, server.start + moved - began, took, attributes)
