"""Self time of many requests computed together equals `partition` of each."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from stagelens.collector.traces.requests import Intervals, split_by_stage
from stagelens.core.partition import partition
from stagelens.core.request_histograms import dominant_stage

STAGES = ["forward", "queue", "mine", "overhead"]
# Request, parent among the previous rows, stage, start, length: small numbers, so that bounds coincide.
interval = st.tuples(st.integers(0, 2), st.integers(0, 20), st.integers(0, 2), st.integers(-2, 12), st.integers(0, 8))


@settings(max_examples=100, deadline=None)
@given(
    found=st.lists(interval, max_size=14),
    own=st.lists(st.sampled_from((0, 3)), min_size=3, max_size=3),
    far=st.sampled_from((1, 2**41)),
)
def test_each_request_is_split_as_partition_does(found: list[tuple[int, ...]], own: list[int], far: int) -> None:
    t0, t1 = 5 * far, 15 * far
    rows = [(request, t0, t1, stage, request) for request, stage in enumerate(own)]
    for request, parent, stage, start, length in found:
        within = [place for place, row in enumerate(rows) if row[0] == request]
        rows.append((request, start * far, (start + length) * far, stage, within[parent % len(within)]))
    request, start, end, stage, within = np.array(rows, np.int64).T
    result = split_by_stage(Intervals(request, start, end, stage, within), STAGES, 3)
    for number in range(3):
        expected = partition(
            [(STAGES[row[3]], row[1], row[2]) for row in rows if row[0] == number and STAGES[row[3]] != "overhead"],
            t0,
            t1,
        )

        assert {STAGES[at]: int(result.own[number, at]) for at in np.flatnonzero(result.present[number])} == expected
        assert STAGES[result.main[number]] == dominant_stage(expected)
        assert sum(expected.values()) == t1 - t0
