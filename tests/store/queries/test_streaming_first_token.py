"""Breakdown of the time to the first token, compared with the raw requests."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagelens.core.histogram import MAX_RELATIVE_ERROR, rank_of
from stagelens.core.names import FIRST_TOKEN
from stagelens.core.request_histograms import RequestHistograms
from stagelens.store import Batch, Point
from tests.support.raw_requests import NOON, NS, OpenSite, Series, Site, window_shares

HEAD = 5
STAGES = ("prefill", "tokenize", "queue", "overhead")
CHAT, CODE, BOTH = (Series("llm", "1", route=route) for route in ("/chat", "/code", "/both"))


@dataclass(frozen=True)
class StreamedRequest:
    """Streaming request.

    Args:
        until_ns: Time by stage up to the first token. [nanoseconds]
        series: Series of the request.
        definition: Definition of the first token.
    """

    until_ns: dict[str, int]
    series: Series = CHAT
    definition: str = "generate"

    @property
    def seconds(self) -> float:
        return sum(self.until_ns.values()) / NS


_numbers = itertools.count()


def write(one: Site, requests: Iterable[StreamedRequest]) -> None:
    by_series: defaultdict[Series, RequestHistograms] = defaultdict(RequestHistograms)
    for request in requests:
        until = sum(request.until_ns.values())
        by_series[request.series].add({**request.until_ns, "decode": until}, 2 * until)
        by_series[request.series].add_first_token(request.until_ns, until, request.definition)
    points = [
        Point(series, metric, key, NOON - 600, histogram)
        for series, counts in by_series.items()
        for metric, key, histogram in counts.histograms()
    ]

    assert one.store.write([Batch(f"batch-{next(_numbers)}", points)]) == [True]


REQUESTS = st.lists(
    st.builds(StreamedRequest, st.dictionaries(st.sampled_from(STAGES), st.integers(10**6, 10**10), min_size=1)),
    min_size=1,
    max_size=40,
)


@settings(max_examples=6, deadline=None)
@given(requests=REQUESTS, quantile=st.floats(0, 1))
def test_the_stages_before_the_first_token_add_up_to_its_time(
    open_sqlite: OpenSite, requests: list[StreamedRequest], quantile: float
) -> None:
    one = open_sqlite()
    write(one, requests)
    row = one.store.read.first_token_breakdown(one.around(), [quantile]).iloc[0]
    exact = sorted(request.seconds for request in requests)[rank_of(quantile, len(requests)) - 1]
    until, seconds = [request.until_ns for request in requests], [request.seconds for request in requests]
    n, expected = window_shares(until, seconds, quantile)
    shares = row.iloc[HEAD:] / row["value_seconds"]

    assert abs(row["value_seconds"] - exact) <= MAX_RELATIVE_ERROR * exact * (1 + 1e-9)
    assert row["n"] == n
    assert shares.sum() == pytest.approx(1)
    assert shares.to_dict() == pytest.approx({stage: expected.get(stage, 0.0) for stage in shares.index}, abs=0.02)
    assert "decode" not in shares


def test_tile_and_chart_show_the_same_time(sqlite: Site) -> None:
    write(sqlite, [StreamedRequest({"prefill": 1_000_000 * (step + 1), "queue": 500_000}) for step in range(100)])
    sqlite.store.maintain()
    read = sqlite.store.read
    frame = read.first_token_breakdown(sqlite.around(), [0.5, 0.99])
    first = read.streams(sqlite.around(), FIRST_TOKEN)["generate"]

    assert frame["value_seconds"].tolist() == [first.quantile(0.5).value, first.quantile(0.99).value]  # type: ignore[union-attr] - there are requests
    assert frame.columns.tolist() == [
        "percentile",
        "n",
        "value_seconds",
        "low_seconds",
        "high_seconds",
        "prefill",
        "queue",
    ]
    assert frame.attrs == {"requests": 100, "definition": "generate", "definitions": {"generate": 100}, "left_out": 0}


def test_first_token_definitions_never_mix(sqlite: Site) -> None:
    write(sqlite, [StreamedRequest({"prefill": 10_000_000})] * 30)
    write(sqlite, [StreamedRequest({"queue": 900_000_000}, CODE, "first_chunk")] * 20)
    write(
        sqlite,
        [StreamedRequest({"tokenize": 900_000_000}, BOTH, definition) for definition in ("generate", "first_chunk")]
        * 6,
    )
    read = sqlite.store.read
    commonest = read.first_token_breakdown(sqlite.around(), [0.99])
    asked = read.first_token_breakdown(sqlite.around(), [0.99], "first_chunk")
    both = read.first_token_breakdown(sqlite.around(route="/both"), [0.99], "generate")
    definitions = {"generate": 36, "first_chunk": 26}

    assert commonest.columns[HEAD:].tolist() == ["prefill"]
    assert commonest.attrs == {"definition": "generate", "definitions": definitions, "requests": 30, "left_out": 6}
    assert asked.columns[HEAD:].tolist() == ["queue"]
    assert asked.attrs == {"definition": "first_chunk", "definitions": definitions, "requests": 20, "left_out": 6}
    assert (len(both), both.attrs["requests"], both.attrs["left_out"]) == (0, 0, 6)


def test_without_first_tokens_there_is_nothing_to_break_down(sqlite: Site) -> None:
    empty = sqlite.store.read.first_token_breakdown(sqlite.around(), [0.5])
    write(sqlite, [StreamedRequest({"prefill": 1_000_000})])
    unknown = sqlite.store.read.first_token_breakdown(sqlite.around(), [0.5], "telepathy")

    assert (len(empty), empty.columns[1], empty.attrs["definition"]) == (0, "n", "")
    assert (len(unknown), unknown.attrs["definitions"], unknown.attrs["left_out"]) == (0, {"generate": 1}, 0)
