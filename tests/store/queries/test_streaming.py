"""Streaming requests: time series, size buckets, and token latency under load."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagelens.core.histogram import TOKEN_COUNTS as BANDS
from stagelens.core.histogram import Histogram
from stagelens.core.names import (
    BY_FIRST_CHUNK,
    BY_GENERATE,
    FIRST_TOKEN,
    FIRST_TOKEN_BY_INPUT,
    OUTPUT_TOKEN,
    OUTPUT_TOKEN_BY_OUTPUT,
    TOKENS,
    TOKENS_IN,
    TOKENS_OUT,
)
from stagelens.core.request_histograms import RequestHistograms
from stagelens.store import Batch, Point, SeriesCaps
from tests.support.raw_requests import NOON, NS, OpenSite, Series, Site

CHAT, OTHER_CHAT = Series("llm", "1", route="/chat"), Series("llm", "1", route="/other")
MINUTE = timedelta(minutes=1)


@dataclass(frozen=True)
class StreamedRequest:
    """Streaming request.

    Args:
        first_ns: Time to the first token. [nanoseconds]
        gap_ns: Time between tokens. [nanoseconds]
        taken_in: Tokens of the prompt.
        put_out: Tokens of the output, at least two.
        at: Time of the request. [Unix seconds]
        series: Series of the request.
        definition: Definition of the first token.
    """

    first_ns: int = 50_000_000
    gap_ns: int = 10_000_000
    taken_in: int = 100
    put_out: int = 11
    at: int = NOON - 600
    series: Series = CHAT
    definition: str = BY_GENERATE


_numbers = itertools.count()


def write(one: Site, requests: Iterable[StreamedRequest]) -> None:
    found: defaultdict[tuple[Series, int], RequestHistograms] = defaultdict(RequestHistograms)
    for request in requests:
        counts = found[request.series, request.at - request.at % 10]
        decode = request.gap_ns * (request.put_out - 1)
        counts.add({"prefill": request.first_ns, "decode": decode}, request.first_ns + decode)
        counts.add_first_token({"prefill": request.first_ns}, request.first_ns, request.definition)
        counts.add_stream(FIRST_TOKEN_BY_INPUT, BANDS.bucket_of(request.taken_in), request.first_ns / NS)
        counts.add_stream(OUTPUT_TOKEN, request.definition, request.gap_ns / NS)
        counts.add_stream(OUTPUT_TOKEN_BY_OUTPUT, BANDS.bucket_of(request.put_out), request.gap_ns / NS)
        counts.add_stream(TOKENS, TOKENS_IN, request.taken_in)
        counts.add_stream(TOKENS, TOKENS_OUT, request.put_out)
    points = [
        Point(series, metric, key, at, histogram)
        for (series, at), counts in found.items()
        for metric, key, histogram in counts.histograms()
    ]

    assert one.store.write([Batch(f"batch-{next(_numbers)}", points)]) == [True]


REQUESTS = st.lists(
    st.builds(
        StreamedRequest,
        first_ns=st.integers(1000, 10**11),
        gap_ns=st.integers(1000, 10**9),
        taken_in=st.integers(1, 300_000),
        put_out=st.integers(2, 5000),
        at=st.integers(NOON - 1200, NOON - 10),
        definition=st.sampled_from((BY_GENERATE, BY_FIRST_CHUNK)),
    ),
    min_size=1,
    max_size=40,
)


@settings(max_examples=3, deadline=None)
@given(requests=REQUESTS)
def test_the_steps_of_a_time_series_add_up_to_the_window(
    open_sqlite: OpenSite, requests: list[StreamedRequest]
) -> None:
    one = open_sqlite()
    write(one, requests)
    read, around = one.store.read, one.around()

    for metric in (FIRST_TOKEN, OUTPUT_TOKEN, TOKENS):
        for key, whole in read.streams(around, metric).items():
            series = read.streams_over_time(around, metric, key, (0.5, 0.99), MINUTE)
            single = read.streams_over_time(around, metric, key, (0.5, 0.99), timedelta(days=2)).iloc[0]

            assert series["n"].sum() == single["n"] == whole.count
            assert series["total"].sum() == pytest.approx(whole.sum)
            assert [single["p50"], single["p99"]] == [whole.quantile(each).value for each in (0.5, 0.99)]  # type: ignore[union-attr] - there are requests


@settings(max_examples=3, deadline=None)
@given(requests=REQUESTS)
def test_prompt_size_buckets_add_up_to_all_first_tokens(open_sqlite: OpenSite, requests: list[StreamedRequest]) -> None:
    one = open_sqlite()
    write(one, [StreamedRequest(each.first_ns, each.gap_ns, each.taken_in, each.put_out) for each in requests])
    read, around = one.store.read, one.around()

    for metric, whole in ((FIRST_TOKEN_BY_INPUT, FIRST_TOKEN), (OUTPUT_TOKEN_BY_OUTPUT, OUTPUT_TOKEN)):
        merged = Histogram()
        for histogram in read.by_band(around, metric, BY_GENERATE).values():
            merged.merge(histogram)
        expected = read.streams(around, whole)[BY_GENERATE]

        assert (merged.buckets, merged.zero) == (expected.buckets, expected.zero)
        assert merged.sum == pytest.approx(expected.sum)


def test_size_buckets_are_sorted_and_survive_the_rollup(sqlite: Site) -> None:
    write(sqlite, [StreamedRequest(taken_in=taken) for taken in (5000, 9, 70, 1, 200_000)])
    before = sqlite.store.read.by_band(sqlite.around(), FIRST_TOKEN_BY_INPUT, BY_GENERATE)
    sqlite.store.maintain()

    assert list(before) == ["1", "8-15", "64-127", "4096-8191", "131072+"]
    assert sqlite.store.read.by_band(sqlite.around(), FIRST_TOKEN_BY_INPUT, BY_GENERATE) == before


def test_size_buckets_of_definitions_never_mix(sqlite: Site) -> None:
    write(sqlite, [StreamedRequest(taken_in=10), StreamedRequest(taken_in=1000, series=OTHER_CHAT)])
    write(sqlite, [StreamedRequest(taken_in=2000, series=OTHER_CHAT, definition=BY_FIRST_CHUNK)])
    read, around = sqlite.store.read, sqlite.around()

    assert list(read.by_band(around, FIRST_TOKEN_BY_INPUT, BY_GENERATE)) == ["8-15"]
    assert read.by_band(around, FIRST_TOKEN_BY_INPUT, BY_FIRST_CHUNK) == {}


def test_definitions_and_size_buckets_do_not_count_as_custom_stages(open_sqlite: OpenSite) -> None:
    one = open_sqlite(series_caps=SeriesCaps(custom_stages=0))
    write(one, [StreamedRequest(taken_in=2**power, definition=BY_FIRST_CHUNK) for power in range(len(BANDS.names))])
    read, around = one.store.read, one.around()

    assert list(read.streams(around, FIRST_TOKEN)) == [BY_FIRST_CHUNK]
    assert set(read.streams(around, TOKENS)) == {TOKENS_IN, TOKENS_OUT}
    assert tuple(read.by_band(around, FIRST_TOKEN_BY_INPUT, BY_FIRST_CHUNK)) == BANDS.names


def test_decode_speed_is_grouped_by_concurrency(sqlite: Site) -> None:
    quiet = [
        StreamedRequest(at=NOON - 60 * minute, gap_ns=20_000_000, put_out=31) for minute in (9, 8) for _ in range(100)
    ]
    busy = [
        StreamedRequest(at=NOON - 60 * minute, gap_ns=40_000_000, put_out=31) for minute in (7, 6) for _ in range(100)
    ]
    write(sqlite, quiet + busy)
    found = sqlite.store.read.speed_by_load(sqlite.between(NOON - 600, NOON), BY_GENERATE, MINUTE, 2)

    # 100 requests of 30 gaps of 20 ms are 60 s of decode in a minute, which is a load of one.
    assert found["load"].tolist() == pytest.approx([1, 2])
    assert found["n"].tolist() == [200, 200]
    assert found["steps"].tolist() == [2, 2]
    assert found["p50_seconds"].tolist() == pytest.approx([0.02, 0.04], rel=0.011)
    assert found["output_per_second"].tolist() == pytest.approx([100 * 31 / 60] * 2)
    assert found.attrs == {"step_seconds": 60, "steps": 4, "newest_load": pytest.approx(2)}


def test_a_partial_step_has_no_load(sqlite: Site) -> None:
    write(sqlite, [StreamedRequest(at=NOON - 600), StreamedRequest(at=NOON - 540)])
    read = sqlite.store.read
    cut = read.speed_by_load(sqlite.between(NOON - 630, NOON - 510), BY_GENERATE, MINUTE, 4)
    single = read.speed_by_load(sqlite.between(NOON - 600, NOON), BY_GENERATE, timedelta(hours=1), 4)
    nothing = read.speed_by_load(sqlite.around(), BY_FIRST_CHUNK, MINUTE, 4)

    assert cut.attrs["steps"] == 1
    assert [len(single), len(nothing)] == [0, 0]
    assert nothing.attrs["newest_load"] is None
    assert list(nothing.columns) == list(cut.columns)
