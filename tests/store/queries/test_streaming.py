"""Streaming requests: breakdown of the first token, time series, size buckets, and token latency under load."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagelens.core.histogram import MAX_RELATIVE_ERROR, Histogram, rank_of
from stagelens.core.histogram import TOKEN_COUNTS as BANDS
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
from tests.support.raw_requests import NOON, NS, OpenSite, Series, Site, window_shares

CHAT, CODE, BOTH = (Series("llm", "1", route=route) for route in ("/chat", "/code", "/both"))
MINUTE = timedelta(minutes=1)
STAGES = ("prefill", "tokenize", "queue", "overhead")
HEAD = 5


@dataclass(frozen=True)
class StreamedRequest:
    until_ns: dict[str, int] = field(default_factory=lambda: {"prefill": 50_000_000})  # By stage up to the first token.
    gap_ns: int = 10_000_000  # Time between tokens.
    taken_in: int = 100  # Tokens of the prompt.
    put_out: int = 11  # Tokens of the output, at least two.
    at: int = NOON - 600
    series: Series = CHAT
    definition: str = BY_GENERATE

    @property
    def first_ns(self) -> int:
        return sum(self.until_ns.values())


_numbers = itertools.count()


def write(one: Site, requests: Iterable[StreamedRequest]) -> None:
    found: defaultdict[tuple[Series, int], RequestHistograms] = defaultdict(RequestHistograms)
    for request in requests:
        counts = found[request.series, request.at - request.at % 10]
        decode = request.gap_ns * (request.put_out - 1)
        counts.add({**request.until_ns, "decode": decode}, request.first_ns + decode)
        counts.add_first_token(request.until_ns, request.first_ns, request.definition)
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
        until_ns=st.dictionaries(st.sampled_from(STAGES), st.integers(10**6, 10**10), min_size=1),
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
def test_steps_and_size_buckets_add_up_to_the_window(open_sqlite: OpenSite, requests: list[StreamedRequest]) -> None:
    one = open_sqlite()
    write(one, [*requests, *(replace(each, definition=BY_GENERATE, series=CODE) for each in requests)])
    read, around = one.store.read, one.around()

    for metric in (FIRST_TOKEN, OUTPUT_TOKEN, TOKENS):
        for key, whole in read.streams(around, metric).items():
            series = read.streams_over_time(around, metric, key, (0.5, 0.99), MINUTE)
            single = read.streams_over_time(around, metric, key, (0.5, 0.99), timedelta(days=2)).iloc[0]

            assert series["n"].sum() == single["n"] == whole.count
            assert series["total"].sum() == pytest.approx(whole.sum)
            assert [single["p50"], single["p99"]] == [whole.quantile(number).value for number in (0.5, 0.99)]  # type: ignore[union-attr] - there are requests
    # Size buckets have no definition, so they are read of series with one.
    code = one.around(route="/code")
    for metric, whole in ((FIRST_TOKEN_BY_INPUT, FIRST_TOKEN), (OUTPUT_TOKEN_BY_OUTPUT, OUTPUT_TOKEN)):
        merged = Histogram()
        for histogram in read.by_band(code, metric, BY_GENERATE).values():
            merged.merge(histogram)
        expected = read.streams(code, whole)[BY_GENERATE]

        assert (merged.buckets, merged.zero) == (expected.buckets, expected.zero)
        assert merged.sum == pytest.approx(expected.sum)


def test_size_buckets_are_sorted_and_survive_the_rollup(sqlite: Site) -> None:
    write(sqlite, [StreamedRequest(taken_in=taken) for taken in (5000, 9, 70, 1, 200_000)])
    before = sqlite.store.read.by_band(sqlite.around(), FIRST_TOKEN_BY_INPUT, BY_GENERATE)
    sqlite.store.maintain()

    assert list(before) == ["1", "8-15", "64-127", "4096-8191", "131072+"]
    assert sqlite.store.read.by_band(sqlite.around(), FIRST_TOKEN_BY_INPUT, BY_GENERATE) == before


def test_size_buckets_of_definitions_never_mix(sqlite: Site) -> None:
    write(sqlite, [StreamedRequest(taken_in=10), StreamedRequest(taken_in=1000, series=CODE)])
    write(sqlite, [StreamedRequest(taken_in=2000, series=CODE, definition=BY_FIRST_CHUNK)])
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


@settings(max_examples=6, deadline=None)
@given(requests=REQUESTS, quantile=st.floats(0, 1))
def test_the_stages_before_the_first_token_add_up_to_its_time(
    open_sqlite: OpenSite, requests: list[StreamedRequest], quantile: float
) -> None:
    one = open_sqlite()
    requests = [replace(each, definition=BY_GENERATE) for each in requests]
    write(one, requests)
    row = one.store.read.first_token_breakdown(one.around(), [quantile]).iloc[0]
    exact = sorted(request.first_ns for request in requests)[rank_of(quantile, len(requests)) - 1] / NS
    n, expected = window_shares(
        [request.until_ns for request in requests], [request.first_ns / NS for request in requests], quantile
    )
    shares = row.iloc[HEAD:] / row["value_seconds"]

    assert abs(row["value_seconds"] - exact) <= MAX_RELATIVE_ERROR * exact * (1 + 1e-9)
    assert row["n"] == n
    assert shares.sum() == pytest.approx(1)
    assert shares.to_dict() == pytest.approx({stage: expected.get(stage, 0.0) for stage in shares.index}, abs=0.02)
    assert "decode" not in shares


def test_first_token_definitions_never_mix(sqlite: Site) -> None:
    write(sqlite, [StreamedRequest({"prefill": 10_000_000})] * 30)
    write(sqlite, [StreamedRequest({"queue": 900_000_000}, series=CODE, definition=BY_FIRST_CHUNK)] * 20)
    write(
        sqlite,
        [
            StreamedRequest({"tokenize": 900_000_000}, series=BOTH, definition=definition)
            for definition in (BY_GENERATE, BY_FIRST_CHUNK)
        ]
        * 6,
    )
    read = sqlite.store.read
    commonest = read.first_token_breakdown(sqlite.around(), [0.99])
    asked = read.first_token_breakdown(sqlite.around(), [0.99], BY_FIRST_CHUNK)
    both = read.first_token_breakdown(sqlite.around(route="/both"), [0.99], BY_GENERATE)
    definitions = {BY_GENERATE: 36, BY_FIRST_CHUNK: 26}

    assert commonest.columns[HEAD:].tolist() == ["prefill"]
    assert commonest.attrs == {"definition": BY_GENERATE, "definitions": definitions, "requests": 30, "left_out": 6}
    assert asked.columns[HEAD:].tolist() == ["queue"]
    assert asked.attrs == {"definition": BY_FIRST_CHUNK, "definitions": definitions, "requests": 20, "left_out": 6}
    assert (len(both), both.attrs["requests"], both.attrs["left_out"]) == (0, 0, 6)


def test_without_first_tokens_there_is_nothing_to_break_down(sqlite: Site) -> None:
    empty = sqlite.store.read.first_token_breakdown(sqlite.around(), [0.5])
    write(sqlite, [StreamedRequest({"prefill": 1_000_000})])
    unknown = sqlite.store.read.first_token_breakdown(sqlite.around(), [0.5], "telepathy")

    assert (len(empty), empty.columns[1], empty.attrs["definition"]) == (0, "n", "")
    assert (len(unknown), unknown.attrs["definitions"], unknown.attrs["left_out"]) == (0, {BY_GENERATE: 1}, 0)
