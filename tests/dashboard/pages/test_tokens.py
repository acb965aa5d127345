"""The page about tokens: findings, selected definition, and notices for missing data."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelens.core import names
from stagelens.core.histogram import TOKEN_COUNTS, Histogram, value_at
from stagelens.core.request_histograms import RequestHistograms
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
from stagelens.store import Batch, Point, Series, Store
from tests.dashboard.rendering import all_of, check_views, context_at, data_at, page_at, plain, shown, source_of
from tests.dashboard.served_versions import NOW

MS = 1_000_000
PAGE = "/s/chat-llm/tokens"


@dataclass(frozen=True)
class StreamedRequest:
    """Streamed request: time to its first token, tokens of prompt and response (0 if unknown), and seconds before now."""

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

    return source_of(store)


def waited(source: Source, address: str) -> str:
    measures = measures_of_window(context_at(source, address))
    return plain(duration(value_at(measures.first, 0.5)))


def test_the_page_shows_the_time_to_first_token_its_stages_and_lengths(source: Source) -> None:
    check_views("tokens", source, PAGE, f"{PAGE}?from=now-15m&vs=off # head", "/s/vision-api/tokens")


def test_tile_and_chart_show_the_same_first_token(source: Source) -> None:
    context = context_at(source, PAGE)
    measures = measures_of_window(context)
    frame = first_token_frame(context, measures)
    p99 = float(frame[frame["percentile"] == 0.99]["value_seconds"].iloc[0])

    assert value_at(measures.first, 0.99) == p99
    assert plain(duration(p99)) in shown(source, PAGE)


def test_every_chart_has_numbers_with_units(source: Source) -> None:
    charts = data_at(source, PAGE).charts
    speed, prompt = charts["token-speed"].frame, charts["first-token-by-input"].frame

    assert {"first-token", "token-speed", "percentile", "over", "output-token-by-output"} <= set(charts)
    assert speed is not None
    assert speed["requests decoding together"].is_monotonic_increasing
    assert prompt is not None
    assert list(prompt.columns) == ["prompt tokens", "requests", "p50 (s)", "p99 (s)"]
    assert prompt["p99 (s)"].isna().tolist() == [n < 1000 for n in prompt["requests"]]


def test_pages_of_few_mixed_or_uncounted_requests_say_what_is_missing(open_store: Callable[..., Store]) -> None:
    mixed = [
        StreamedRequest(definition=each, ago=600 + step) for step in range(30) for each in list(names.DEFINITIONS)[:2]
    ]
    uncounted = [StreamedRequest(100, 0, 0, names.BY_FIRST_CHUNK, ago=600 + step) for step in range(60)]
    for name, requests in (("one", [StreamedRequest()]), ("mixed", mixed), ("uncounted", uncounted)):
        store = open_store(f"{name}.db", clock=NOW.timestamp)
        check_views(f"tokens_{name}", written(store, requests), PAGE)


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


def test_requests_without_a_first_token_are_counted(store: Store) -> None:
    source = written(store, [StreamedRequest(ago=600 + step) for step in range(30)])
    counts = RequestHistograms()
    counts.add({"forward": 5 * MS}, 5 * MS)
    points = [
        Point(Series("chat-llm", "1"), *each[:2], int(NOW.timestamp()) - 600, each[2]) for each in counts.histograms()
    ]

    assert store.write([Batch("plain", points)]) == [True]
    assert "30 of 31 requests. Without a first token: 1." in shown(source, PAGE)


def test_without_a_window_to_compare_nothing_was_timed(source: Source) -> None:
    assert token_measures(source, None, None).timed == 0


@given(st.lists(st.integers(1, 200_000), min_size=1, max_size=60))
def test_a_length_is_in_the_bucket_named_by_its_bounds(sizes: list[int]) -> None:
    counted = Histogram()
    for size in sizes:
        counted.record(size)
    expected: dict[str, int] = {}
    for name in requests_by_length(counted):
        low, _, high = name.partition("\N{EN DASH}")
        expected[name] = sum(int(low) <= size <= int(high or low) for size in sizes)

    assert requests_by_length(counted) == expected
    assert sum(expected.values()) == len(sizes)


@pytest.mark.parametrize(
    ("longest", "slowest", "cause"), [(3000, 0.021, "longer responses"), (105, 0.4, "slower tokens")]
)
def test_the_tail_is_attributed_to_longer_outputs_or_slower_tokens(
    store: Store, longest: int, slowest: float, cause: str
) -> None:
    usual = measures_of_window(context_at(written(store, [StreamedRequest()]), PAGE))
    length, pace = Histogram(), Histogram()
    for share in np.linspace(0, 1, 2000):
        length.record(100 if share < 0.98 else longest)
        pace.record(0.02 if share < 0.98 else slowest)
    known = type(usual)("", {}, Histogram(), pace, Histogram(), Histogram(), length)

    assert tail_words(usual) is None
    assert (tail_words(known) or "").endswith(f"the main cause of the tail is {cause}.")


def test_hovering_shows_value_error_bounds_and_stages(source: Source) -> None:
    charts = all_of(page_at(source, PAGE).body, Chart)
    drawn = next(chart for chart in charts if "Stages before the first token" in str(chart.to_plotly_json()))
    trace = drawn.figure["data"][-1]

    assert trace["text"][-1].startswith("<b>p99.")
    assert "Queue" in trace["text"][-1]
    assert trace["hovertemplate"] == "%{text}<extra></extra>"


def test_a_slower_first_token_is_stated_first_on_the_service_page(store: Store) -> None:
    before = [StreamedRequest(first_ms=100, ago=1000 + index % 600) for index in range(1100)]
    now = [
        StreamedRequest(500 if index % 5 == 0 else 100, 4000 if index % 5 == 0 else 500, ago=100 + index % 600)
        for index in range(1100)
    ]
    source = written(store, [*before, *now])

    check_views("tokens_slower", source, "/s/chat-llm?from=now-15m # head")
