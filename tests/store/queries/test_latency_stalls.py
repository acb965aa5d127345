"""Stalls of requests at a percentile, compared with the raw requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagelens.core.request_histograms import RequestHistograms
from stagelens.core.stages import STALL_CAUSES, split_stall_key, stall_key
from stagelens.store import Batch, Point, SeriesCaps
from tests.support.raw_requests import NOON, NS, SHOP, OpenSite, Series, Site, window_shares

HEAD = 5
MICROSECOND_NS = 1000
STAGES: tuple[str, ...] = ("forward", "queue", "rerank", "overhead")


@dataclass(frozen=True)
class HeldUp:
    stages: Mapping[str, int]
    stalls: Mapping[str, int]

    @property
    def duration(self) -> int:
        return sum(self.stages.values())


@st.composite
def held_up(draw: st.DrawFn) -> HeldUp:
    stages: dict[str, int] = draw(st.dictionaries(st.sampled_from(STAGES), st.integers(10**6, 10**10), min_size=1))
    stalls: dict[str, int] = {}
    for stage, spent in stages.items():
        causes = draw(st.lists(st.sampled_from([*STALL_CAUSES]), unique=True))
        stalls |= {stall_key(cause, stage): draw(st.integers(0, spent // len(causes))) for cause in causes}
    # Stalls shorter than a microsecond are rounded to zero or one.
    return HeldUp(stages, {name: spent for name, spent in stalls.items() if spent >= MICROSECOND_NS})


REQUESTS = st.lists(held_up(), min_size=1, max_size=30)


def batch(name: str, requests: Sequence[HeldUp], series: Series = SHOP) -> Batch:
    counts = RequestHistograms()
    for request in requests:
        counts.add(request.stages, request.duration)
        if request.stalls:
            counts.add_stalls(request.stalls, request.duration)
    return Batch(name, [Point(series, metric, key, NOON - 600, value) for metric, key, value in counts.histograms()])


def assert_stalls(one: Site, requests: Sequence[HeldUp], quantile: float) -> None:
    _, expected = window_shares(
        [request.stalls for request in requests], [request.duration / NS for request in requests], quantile
    )
    # Rounding adds or drops a microsecond, and the middle of a bucket is not its mean.
    slack = 0.02
    stages = one.store.read.breakdown(one.around(), [quantile])
    found = one.store.read.stalls(one.around(), [quantile])
    whole = float(stages["value_seconds"].iloc[0])

    assert list(found.columns[:HEAD]) == list(stages.columns[:HEAD])
    assert found.empty != any(request.stalls for request in requests)
    for name in {*expected, *found.columns[HEAD:]} if len(found) else ():
        seconds = float(found[name].iloc[0]) if name in found else 0.0
        assert seconds / whole == pytest.approx(expected.get(name, 0.0), abs=slack)
        assert seconds <= float(stages[split_stall_key(name)[1]].iloc[0]) + slack * whole


@settings(max_examples=8, deadline=None)
@given(requests=REQUESTS, quantile=st.floats(0, 1))
def test_stalls_are_parts_of_their_stages(open_sqlite: OpenSite, requests: list[HeldUp], quantile: float) -> None:
    one = open_sqlite()
    half = len(requests) // 2
    one.store.write(
        [batch("a", requests[:half], Series("shop", "1")), batch("b", requests[half:], Series("shop", "2"))]
    )

    assert_stalls(one, requests, quantile)
    one.store.maintain()
    assert_stalls(one, requests, quantile)


def test_without_stalls_there_are_no_rows(sqlite: Site) -> None:
    sqlite.store.write([batch("a", [HeldUp({"forward": 10**7}, {})])])

    assert sqlite.store.read.stalls(sqlite.around(), [0.5]).empty
    assert sqlite.store.read.stalls(sqlite.around(service="bank"), [0.5]).empty


def test_stalls_do_not_count_as_custom_stages(open_sqlite: OpenSite) -> None:
    one = open_sqlite(series_caps=SeriesCaps(custom_stages=1))
    stages = {"forward": 10**7, "rerank": 10**7, "resize": 10**7}
    one.store.write([batch("a", [HeldUp(stages, {stall_key("gc", stage): 10**6 for stage in stages})] * 9)])
    read = one.store.read

    assert set(read.breakdown(one.around(), [0.5]).columns[HEAD:]) == {"forward", "rerank", "__other__"}
    assert set(read.stalls(one.around(), [0.5]).columns[HEAD:]) == {"gc:forward", "gc:rerank", "gc:__other__"}
