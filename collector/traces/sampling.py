"""Which requests are kept as traces.

For each series and fold: failed ones, the slowest, and a share to compare them with, which their ids decide, so that it is the
same whoever folds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ...store import KeptTrace, documents
from .assembly import trace_keys
from .batching import Ints
from .requests import Requests
from .span_encoding import pictures

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
    numbers = np.array(sorted(chosen), np.int64)
    if not len(numbers):
        return []
    gathered, labels, pack = requests.joined.gathered, requests.joined.gathered.labels, documents.packer()
    roots = requests.joined.roots[numbers]
    ids = gathered.rows[roots]
    columns = (
        numbers,
        ids["trace_high"],
        ids["trace_low"],
        ids["span"],
        requests.series[numbers],
        requests.start[numbers],
        requests.duration[numbers],
        requests.split.main[numbers],
        gathered.label[roots],
        requests.split.own[numbers],
        requests.split.present[numbers],
    )
    return [
        KeptTrace(
            trace_id=f"{high:016x}{low:016x}",
            span_id=f"{span:016x}",
            series=requests.kinds[series],
            started_ns=start,
            duration_ns=duration,
            because=chosen[number],
            dominant=requests.stages[int(main)],
            stages_ns={
                stage: spent for stage, spent, there in zip(requests.stages, own, present, strict=True) if there
            },
            document=pack(f'{{"spans":[{spans}],"attributes":{documents.written(dict(labels[label].attributes))}}}'),
        )
        for (number, high, low, span, series, start, duration, main, label, own, present), spans in zip(
            zip(*(column.tolist() for column in columns), strict=True), pictures(requests, numbers), strict=True
        )
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
