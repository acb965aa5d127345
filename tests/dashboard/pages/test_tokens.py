"""The page about tokens: findings, selected definition, and notices for missing data."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelens.core import names
from stagelens.core.histogram import TOKEN_COUNTS, Histogram, value_at
from stagelens.core.request_histograms import RequestHistograms
from stagelens.dashboard.pages.service_summary import summarize
from stagelens.dashboard.pages.tokens_charts import (
    first_token_frame,
    measures_of_window,
    requests_by_length,
    tail_words,
    token_measures,
)
from stagelens.dashboard.source import Source
from stagelens.dashboard.ui.components import Chart
from stagelens.dashboard.ui.format import duration
from stagelens.dashboard.ui.page_export import PageData, page_data
from stagelens.dashboard.view import parse
from stagelens.dashboard.web.routing import context_of, page_of
from stagelens.store import Batch, Point, Series, Store
from tests.dashboard.rendering import page_at, shown
from tests.dashboard.served_versions import NOW

MS = 1_000_000
PAGE = "/s/chat-llm/tokens"


@dataclass(frozen=True)
class StreamedRequest:
    """Streamed request.

    Args:
        first_ms: When its first token came. [milliseconds after its start]
        taken_in: Tokens of its prompt, 0 if nobody knows.
        put_out: Tokens of its answer, 0 if nobody knows.
        definition: How the first token was found.
        route: Where it was asked.
        ago: How long before now. [seconds]
    """

    first_ms: int = 100
    taken_in: int = 500
    put_out: int = 11
    definition: str = names.BY_GENERATE
    route: str = "/chat"
    ago: int = 600


_numbers = itertools.count()


def written(store: Store, requests: Iterable[StreamedRequest]) -> Source:
    """Write *requests* as counted by an agent: prefill until the first token, then 20 ms of decode per token."""
    points: list[Point] = []
    for request in requests:
        counts, first = RequestHistograms(), request.first_ms * MS
        decode = 20 * MS * max(request.put_out - 1, 10)
        counts.add({"prefill": first, "decode": decode}, first + decode)
        counts.add_first_token({"prefill": first}, first, request.definition)
        counts.add_stream(names.STREAM_GAP, request.definition, 0.05)
        if request.taken_in:
            counts.add_stream(names.FIRST_TOKEN_BY_INPUT, TOKEN_COUNTS.bucket_of(request.taken_in), first / 1e9)
            counts.add_stream(names.TOKENS, names.TOKENS_IN, request.taken_in)
        if request.put_out:
            counts.add_stream(names.OUTPUT_TOKEN, request.definition, 0.02)
            counts.add_stream(names.OUTPUT_TOKEN_BY_OUTPUT, TOKEN_COUNTS.bucket_of(request.put_out), 0.02)
            counts.add_stream(names.TOKENS, names.TOKENS_OUT, request.put_out)
        at = int(NOW.timestamp()) - request.ago
        series = Series("chat-llm", "1", route=request.route)
        points += [Point(series, metric, key, at, histogram) for metric, key, histogram in counts.histograms()]

    assert store.write([Batch(f"tokens-{next(_numbers)}", points)]) == [True]

    return Source(store, None, NOW.timestamp)


def outlined(source: Source, address: str = PAGE) -> PageData:
    page = page_at(source, address)
    return page_data(page.body)


def waited(source: Source, address: str) -> str:
    path, _, search = address.partition("?")
    measures = measures_of_window(context_of(parse(path, search, NOW), source))
    return duration(value_at(measures.first, 0.5)).replace("\u202f", " ")


def test_the_page_starts_with_the_stage_behind_the_first_token_tail(source: Source) -> None:
    text = shown(source, PAGE)

    assert "TTFT p99 is" in text
    assert "Queue explains" in text
    assert "of the difference" in text
    assert "Timed until generate had the first new token" in text
    assert "the main cause of the tail is longer responses" in text


def test_tile_and_chart_show_the_same_first_token(source: Source) -> None:
    context = context_of(parse(PAGE, "", NOW), source)
    measures = measures_of_window(context)
    frame = first_token_frame(context, measures)
    p99 = float(frame[frame["percentile"] == 0.99]["value_seconds"].iloc[0])

    assert value_at(measures.first, 0.99) == p99
    assert duration(p99).replace("\u202f", " ") in shown(source, PAGE)


def test_every_chart_has_numbers_with_units(source: Source) -> None:
    charts = outlined(source).charts
    speed, prompt = charts["token-speed"].frame, charts["first-token-by-input"].frame

    assert {"first-token", "token-speed", "percentile", "over", "output-token-by-output"} <= set(charts)
    assert speed is not None
    assert speed["requests decoding together"].is_monotonic_increasing
    assert prompt is not None
    assert list(prompt.columns) == ["prompt tokens", "requests", "p50 (s)", "p99 (s)"]
    assert prompt["p99 (s)"].isna().tolist() == [n < 1000 for n in prompt["requests"]]


def test_output_lengths_count_all_completions(source: Source) -> None:
    rows = next(each.rows for each in outlined(source).tables if each.name == "Responses by number of tokens")
    n = measures_of_window(context_of(parse(PAGE, "", NOW), source)).put_out.count

    assert len(rows) >= 5
    assert n > 5000


def test_a_service_without_streaming_explains_the_page(source: Source) -> None:
    text = shown(source, "/s/vision-api/tokens")

    assert "No streamed request in this window" in text
    assert "agents detect streamed HTTP responses" in text
    assert "Time to first token, by percentile" not in text


def test_one_request_shows_what_every_card_needs(store: Store) -> None:
    text = shown(written(store, [StreamedRequest()]), PAGE)

    assert "1 first token: too few to evaluate" in text
    assert "1 so far in this window; p50 needs 20" in text
    assert "1 request so far; a bucket needs 20" in text
    assert "1 of 1,000 needed" in text
    assert "1 request in 1 step; the chart needs 120 requests in 8 steps" in text
    assert "could not be rendered" not in text


def test_first_token_definitions_never_mix(store: Store) -> None:
    generated = [StreamedRequest(ago=600 + step) for step in range(60)]
    chunked = [StreamedRequest(900, 0, 0, names.BY_FIRST_CHUNK, "/proxy", 600 + step) for step in range(40)]
    source = written(store, [*generated, *chunked])
    usual, other = shown(source, PAGE), shown(source, f"{PAGE}?by=first_chunk")
    wrong = shown(source, f"{PAGE}?by=<b>")

    assert "Timed until generate had the first new token: 60 of 100 requests." in usual
    assert "Not shown, because times of different definitions are not comparable: 40." in usual
    assert f"TTFT p50 is {waited(source, PAGE)}; p99 needs" in usual
    assert f"TTFT p50 is {waited(source, f'{PAGE}?by=first_chunk')}; p99 needs" in other
    assert waited(source, PAGE) != waited(source, f"{PAGE}?by=first_chunk")
    assert "Timed until the first part of the response was passed to the server: 40 of 100 requests." in other
    assert wrong == usual


def test_a_mixed_definition_has_no_stages(store: Store) -> None:
    both = [
        StreamedRequest(definition=each, ago=600 + step) for step in range(30) for each in list(names.DEFINITIONS)[:2]
    ]
    text = shown(written(store, both), PAGE)

    assert "The stages cannot be separated" in text
    assert "Use a separate route for each kind of response" in text
    assert "No length for these requests" in text


def test_without_token_counts_the_page_explains_their_source(store: Store) -> None:
    chunked = [StreamedRequest(100, 0, 0, names.BY_FIRST_CHUNK, ago=600 + step) for step in range(60)]
    text = shown(written(store, chunked), PAGE)

    assert "TTFT p50 is" in text
    assert text.count("No token counts") == 3
    assert "no token counts" in text
    assert "Agents read token counts from generate of transformers" in text


def test_requests_without_a_first_token_are_counted(store: Store) -> None:
    source = written(store, [StreamedRequest(ago=600 + step) for step in range(30)])
    counts = RequestHistograms()
    counts.add({"forward": 5 * MS}, 5 * MS)
    points = [
        Point(Series("chat-llm", "1"), *each[:2], int(NOW.timestamp()) - 600, each[2]) for each in counts.histograms()
    ]

    assert store.write([Batch("plain", points)]) == [True]
    assert "30 of 31 requests. Without a first token: 1." in shown(source, PAGE)


def test_vs_off_shows_request_counts(source: Source) -> None:
    text = shown(source, f"{PAGE}?from=now-15m&vs=off")

    assert "vs prev." not in text
    assert token_measures(source, None, None).timed == 0


@given(st.lists(st.integers(1, 200_000), min_size=1, max_size=60))
def test_a_length_is_in_the_bucket_named_by_its_bounds(sizes: list[int]) -> None:
    counted = Histogram()
    for each in sizes:
        counted.record(each)
    expected: dict[str, int] = {}
    for name in requests_by_length(counted):
        low, _, high = name.partition("\N{EN DASH}")
        expected[name] = sum(int(low) <= each <= int(high or low) for each in sizes)

    assert requests_by_length(counted) == expected
    assert sum(expected.values()) == len(sizes)


@pytest.mark.parametrize(
    ("longest", "slowest", "cause"), [(3000, 0.021, "longer responses"), (105, 0.4, "slower tokens")]
)
def test_the_tail_is_attributed_to_longer_outputs_or_slower_tokens(
    store: Store, longest: int, slowest: float, cause: str
) -> None:
    usual = measures_of_window(context_of(parse(PAGE, "", NOW), written(store, [StreamedRequest()])))
    length, pace = Histogram(), Histogram()
    for share in np.linspace(0, 1, 2000):
        length.record(100 if share < 0.98 else longest)
        pace.record(0.02 if share < 0.98 else slowest)
    known = type(usual)("", {}, Histogram(), pace, Histogram(), Histogram(), length)

    assert tail_words(usual) is None
    assert (tail_words(known) or "").endswith(f"the main cause of the tail is {cause}.")


def test_hovering_shows_value_error_bounds_and_stages(source: Source) -> None:
    page = page_of(context_of(parse(PAGE, "", NOW), source))
    assert page is not None
    drawn = next(each for each in _charts(page.body) if "Stages before the first token" in str(each.to_plotly_json()))
    trace = drawn.figure["data"][-1]
    text = trace["text"][-1].replace("\u202f", " ")

    assert text.startswith("<b>p99.")
    assert "Queue" in text
    assert trace["hovertemplate"] == "%{text}<extra></extra>"


def _charts(node: Any) -> Iterator[Chart]:
    for each in node if isinstance(node, list | tuple) else [node]:
        if isinstance(each, Chart):
            yield each
        if hasattr(each, "children"):
            yield from _charts(each.children)


def test_a_slower_first_token_is_stated_first_on_the_service_page(store: Store) -> None:
    before = [StreamedRequest(first_ms=100, ago=1000 + each % 600) for each in range(1100)]
    now = [
        StreamedRequest(500 if each % 5 == 0 else 100, 4000 if each % 5 == 0 else 500, ago=100 + each % 600)
        for each in range(1100)
    ]
    source = written(store, [*before, *now])
    context = context_of(parse("/s/chat-llm", "from=now-15m", NOW), source)
    what, whom, where = summarize(context).sentences
    text = shown(source, "/s/chat-llm?from=now-15m")

    assert what.text.startswith("TTFT p99 rose 397")
    assert what.href.startswith("/s/chat-llm/tokens?")
    assert "99.6\u202fms with 256-511 prompt tokens and 495\u202fms with 2048-4095" in whom.text
    assert where.text.startswith("Prefill before the first token grew")
    assert "TTFT p99" in text
    assert "TTFT p99 rose" in text
