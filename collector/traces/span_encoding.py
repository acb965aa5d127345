"""The pictures of requests that are kept: their spans, written as the store keeps them.

What spans of a label have in common is written once; the rest of a span is two numbers. A picture shows the attributes that the
rules named, nothing else of a span.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from ...core import names
from ...store.documents import written as to_json
from .assembly import Joined
from .batching import Bools, Gathered, Ints
from .columns import Flag, Label
from .intervals import ON_THE_WAY
from .requests import Requests

# The longest of a request.
MAX_SPANS_SHOWN = 1000
# Nanoseconds by which what another process did was moved to lie within the call to it: their clocks differ.
SHIFTED = "stagelens.clock.shifted"
# Requests whose spans are written at once: a few megabytes.
_AT_ONCE = 1000


def pictures(requests: Requests, chosen: Ints) -> Iterator[str]:
    """Yield the spans of each of the requests *chosen*, ascending: objects of JSON, with commas between them."""
    for first in range(0, len(chosen), _AT_ONCE):
        yield from _pictures(requests, chosen[first : first + _AT_ONCE])


def _pictures(requests: Requests, chosen: Ints) -> Iterator[str]:
    joined, gathered = requests.joined, requests.joined.gathered
    rows, request, is_root = _in_order(joined, chosen)
    began = requests.start[chosen][request]
    start, end = gathered.rows["start"][rows], gathered.rows["end"][rows]
    # What has not ended does so with its request.
    end = np.where(end > 0, end, began + requests.duration[chosen][request])
    failed = (gathered.rows["flags"][rows] & Flag.ERROR.value) != 0
    is_call = np.isin(rows, joined.callers) & gathered.of_labels(_can_call, np.bool_)[rows].astype(bool)

    pieces = _Pieces(gathered)
    kinds = zip(gathered.label[rows].tolist(), failed.tolist(), is_call.tolist(), strict=True)
    times = zip((start - began).tolist(), np.maximum(end - start, 0).tolist(), strict=True)
    shown = [pieces[kind].between(at, took) for kind, (at, took) in zip(kinds, times, strict=True)]
    number = (~is_root).astype(np.int64)
    for place in np.flatnonzero(is_root).tolist():
        shown[place] = ""
    for place, besides in _besides(joined, rows, start - began, end - start).items():
        shown[place] = ",".join([*filter(None, (shown[place],)), *besides])
        number[place] += len(besides)
    bounds = [*np.flatnonzero(is_root).tolist(), len(rows)]
    so_far = np.append(0, np.cumsum(number))[bounds].tolist()
    for (first, last), (before, after) in zip(pairwise(bounds), pairwise(so_far), strict=True):
        written = ",".join(shown[first if shown[first] else first + 1 : last])
        yield written if after - before <= MAX_SPANS_SHOWN else _longest(written)


def _in_order(joined: Joined, chosen: Ints) -> tuple[Ints, Ints, Bools]:
    """Return the rows of the requests *chosen*, each root and then what is below it by its start; whose they are; the roots."""
    number = np.full(len(joined.roots), -1)
    number[chosen] = np.arange(len(chosen))
    rows = np.flatnonzero(joined.request >= 0)
    rows = rows[number[joined.request[rows]] >= 0]
    request, is_root = number[joined.request[rows]], joined.up[rows] < 0
    order = np.lexsort((joined.gathered.rows["start"][rows], ~is_root, request))
    return rows[order], request[order], is_root[order]


def _longest(written: str) -> str:
    spans = json.loads(f"[{written}]")
    longest = sorted(spans, key=lambda span: span["duration_ns"], reverse=True)[:MAX_SPANS_SHOWN]
    return to_json(sorted(longest, key=lambda span: span["start_ns"]))[1:-1]


def _can_call(label: Label) -> bool:
    return label.kind == "client" and bool(label.stage)


class _Piece:
    """What stands before and behind the times of a span."""

    __slots__ = ("_after", "_before")

    def __init__(self, name: str, stage: str, attributes: dict[str, Any]) -> None:
        self._before = f'{{"name":{to_json(name)},"stage":{to_json(stage)},"start_ns":'
        self._after = f',"attributes":{to_json(attributes)}}}'

    def between(self, start: int, took: int) -> str:
        """Return the span that begins at *start* and takes *took*, in nanoseconds."""
        return f'{self._before}{start},"duration_ns":{took}{self._after}'


class _Pieces(dict[tuple[int, bool, bool], _Piece]):
    """By the number of a label, whether the span failed, and whether it called another process."""

    def __init__(self, gathered: Gathered) -> None:
        super().__init__()
        self._labels = gathered.labels

    def __missing__(self, kind: tuple[int, bool, bool]) -> _Piece:
        number, failed, is_call = kind
        label = self._labels[number]
        attributes: dict[str, Any] = dict(label.attributes)
        if failed:
            attributes[names.STATUS] = names.STATUS_ERROR
        found = self[kind] = _Piece(label.name, ON_THE_WAY if is_call else label.stage, attributes)
        return found


def _besides(joined: Joined, rows: Ints, since: Ints, took: Ints) -> dict[int, list[str]]:
    """Return what else is shown of *rows*, by their place: their time before what is below them, and what they called elsewhere.

    Args:
        joined: All rows.
        rows: Those of some requests.
        since: When each of them began, after its request. [nanoseconds]
        took: How long each took. [nanoseconds]
    """
    labels, label = joined.gathered.labels, joined.gathered.label[rows]
    started = joined.gathered.rows["start"]
    found: defaultdict[int, list[str]] = defaultdict(list)
    below = rows[joined.up[rows] >= 0]
    first = np.full(len(started), np.iinfo(np.int64).max)
    np.minimum.at(first, joined.up[below], started[below])
    has_head = joined.gathered.of_labels(lambda each: bool(each.head), np.bool_)[rows].astype(bool)
    for place in np.flatnonzero(has_head & (first[rows] < np.iinfo(np.int64).max)).tolist():
        head = labels[label[place]].head
        length = min(max(int(first[rows[place]] - started[rows[place]]), 0), int(took[place]))
        found[place].append(_Piece(head, head, {}).between(int(since[place]), max(length, 0)))
    callers = np.flatnonzero(np.isin(rows, joined.callers))
    place_of = dict(zip(rows[callers].tolist(), callers.tolist(), strict=True))
    for caller, server in zip(joined.callers.tolist(), joined.called.tolist(), strict=True):
        place = place_of.get(caller)
        if place is not None:
            found[place].append(_elsewhere(joined, caller, server, int(started[caller] - since[place])))
    return found


def _elsewhere(joined: Joined, caller: int, server: int, began: int) -> str:
    """Return the picture of what another process did for *caller*: of another clock, so it is moved to where it must have been."""
    gathered = joined.gathered
    call, there = gathered.rows[caller], gathered.rows[server]
    low, start, end = int(call["start"]), int(there["start"]), int(there["end"])
    calling, called = gathered.labels[gathered.label[caller]], gathered.labels[gathered.label[server]]
    attributes: dict[str, Any] = dict(called.attributes)
    attributes[names.SERVICE_NAME] = gathered.sources[int(gathered.source[server])].service
    took, high, moved = end - start, int(call["end"]) or end, 0
    if start < low or end > high:
        moved = low + (high - low - took) // 2 - start
        attributes[SHIFTED] = moved
    stage = calling.stage if calling.kind == "client" else ""
    return _Piece(called.name, stage, attributes).between(start + moved - began, max(took, 0))
