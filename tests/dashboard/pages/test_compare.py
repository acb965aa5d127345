"""Two versions or two windows beside each other: what is compared, what came of it, and that nothing breaks it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import ModuleType

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plotly.utils import PlotlyJSONEncoder

from stagelens.core.names import TOKENS
from stagelens.dashboard.pages.compare import report
from stagelens.dashboard.pages.compare_cards import Signal, blame_card, signals
from stagelens.dashboard.pages.comparison import Pair, asked_pair, compared, default_pair, window_name, window_of
from stagelens.dashboard.pages.comparison_text import interval_words, verdict_sentence
from stagelens.dashboard.pages.measures import breakdown, urgent_first
from stagelens.dashboard.pages.page import Context
from stagelens.dashboard.pages.service import inspector
from stagelens.dashboard.source import Source
from stagelens.dashboard.ui.format import THIN, duration
from stagelens.dashboard.ui.page_export import text_of
from stagelens.dashboard.web.shell import compared_time
from stagelens.store import Batch, Point, Series, Store
from tests.dashboard.rendering import check_views, context_at, data_at, observed, page_at, shown
from tests.dashboard.served_versions import FAST, NOW, SLOW, Served, write

Stored = Callable[..., Source]
MINUTE = timedelta(minutes=1)


@pytest.fixture
def stored(store: Store, traffic: ModuleType) -> Stored:
    return lambda *all_served: write(store, traffic, *all_served)


def pair_of(context: Context, choose: Callable[[Context], Pair | None] = asked_pair) -> Pair:
    pair = choose(context)
    assert pair is not None
    return pair


@given(
    st.datetimes(datetime(2000, 1, 1), datetime(2026, 11, 20), timezones=st.just(UTC)),  # noqa: DTZ001 - `datetimes` adds the zone
    st.integers(1, 400 * 86_400),
)
def test_a_window_round_trips_through_its_name(start: datetime, seconds: int) -> None:
    start = start.replace(microsecond=0)
    window = (start, start + timedelta(seconds=seconds))

    assert window_of(window_name(*window), NOW) == window


@given(st.text(max_size=40))
def test_an_invalid_window_name_is_none(text: str) -> None:
    found = window_of(text, NOW)

    assert found is None or found[0] < found[1]


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("2026-11-20T10:00/30m", datetime(2026, 11, 20, 10, tzinfo=UTC)),
        ("2026-11-20T12:00+02:00/30m", datetime(2026, 11, 20, 10, tzinfo=UTC)),
        ("2026-11-20T12:00 02:00/30m", datetime(2026, 11, 20, 10, tzinfo=UTC)),
        ("2026-11-20T13:00/30m", None),
        ("2026-11-20T10:00/500d", None),
        ("2026-11-20T10:00/0s", None),
        ("2026-11-20T10:00", None),
        ("0001-01-01T00:00/1h", None),
        ("9999-12-31T23:59/400d", None),
    ],
)
def test_a_window_is_spelled_with_start_and_length(name: str, start: datetime | None) -> None:
    found = window_of(name, NOW)

    assert found == (None if start is None else (start, start + 30 * MINUTE))


def test_the_newest_version_is_compared_with_the_previous(source: Source) -> None:
    pair = pair_of(context_at(source, "/compare?svc=vision-api&from=now-15m"), default_pair)

    assert (pair.a_name, pair.b_name, pair.together) == ("1.0.0", "2.0.0", False)
    assert pair.a.end == pair.b.start
    assert pair.b.end <= NOW + 10 * MINUTE


MONTH = 30 * 24 * 60


@pytest.mark.parametrize(
    ("name", "served", "query"),
    [
        ("skipped", (Served("shop", "1", 40, 25), Served("shop", "2", 25, 24.8, SLOW, 1), Served("shop", "3", 24, 0, SLOW)), ""),
        ("windows", (Served("shop", "1", 35, 1), Served("shop", "2", 1, 0, SLOW, 2)), "&from=now-15m"),
        ("overlap", (Served("shop", "1", 20), Served("shop", "2", 10, 0, SLOW)), ""),
        ("canary", (Served("shop", "1", MONTH, MONTH - 1), Served("shop", "1", 40), Served("shop", "2", 20, 0, SLOW)), ""),
        ("periods", (Served("shop", "1", 60, 28), Served("shop", "2", 30, 0, SLOW)), "&from=now-6h"),
        ("back", (Served("shop", "1", 60, 30), Served("shop", "2", 30, 15, SLOW), Served("shop", "1", 15)), ""),
        ("future", (Served("shop", "1", 10, 5), Served("shop", "2", 5, -4, SLOW)), ""),
        ("few", (Served("shop", "1", 10, 5), Served("shop", "2", 1, 0, SLOW, 1)), "&a=1&b=2&p=99"),
    ],
)  # fmt: skip
def test_the_newest_versions_are_compared_over_the_time_they_share(
    stored: Stored, name: str, served: tuple[Served, ...], query: str
) -> None:
    source = stored(*served)
    pair = pair_of(context_at(source, f"/compare?svc=shop{query}"), asked_pair)

    check_views(f"compare_{name}", source, f"/compare?svc=shop{query} # head")
    assert pair.together == (name in {"overlap", "canary"})
    assert (pair.a.start == pair.b.start) == pair.together


def test_the_time_menu_has_the_compared_time(stored: Stored) -> None:
    source = stored(Served("shop", "1", 60, 28), Served("shop", "2", 30, 0, SLOW))
    queries = ("&from=now-6h", "&a=2026-11-20T11:30/15m&b=2026-11-20T11:45/15m&from=now-15m")
    times = [compared_time(context_at(source, f"/compare?svc=shop{query}")) for query in queries]

    assert times == ["20 Nov 11:30 – 12:00", ""]  # noqa: RUF001 - as shown


def test_a_missing_side_of_the_address_is_filled_in(source: Source) -> None:
    addresses = ("a=1.0.0", "b=2.0.0", "b=1.0.0&from=now-15m", "a=2.0.0&from=now-15m")
    pairs = [asked_pair(context_at(source, f"/compare?svc=vision-api&{each}")) for each in addresses]
    names = [(each.a_name, each.b_name) for each in pairs if each]

    assert names[:2] == [("1.0.0", "2.0.0")] * 2
    assert names[2][1] == "1.0.0"
    assert names[3] == ("2.0.0", "2026-11-20T11:45/15m")


def test_a_comparison_has_a_verdict_its_evidence_and_what_was_asked(source: Source) -> None:
    check_views("compare", source)


def test_the_interval_describes_the_ratio_of_the_headline(source: Source) -> None:
    for address in ("/compare?svc=vision-api&a=1.0.0&b=2.0.0", "/compare?svc=vision-api&a=2.0.0&b=1.0.0"):
        context = context_at(source, address)
        found = compared(context, pair_of(context))
        factor = float(verdict_sentence(found).split("×")[0].split()[-1])  # noqa: RUF001 - as written
        low, high = (float(word.strip("×")) for word in interval_words(found).split(" interval ")[1].split(" to "))  # noqa: RUF001 - as written

        assert low <= factor <= high
        assert low > 1


def test_chart_table_and_verdict_agree(source: Source) -> None:
    context = context_at(source, "/compare?svc=vision-api&p=99")
    pair = pair_of(context)
    found = compared(context, pair, 0.99).verdict
    chart = data_at(source, "/compare?svc=vision-api&p=99").charts["delta"].frame
    assert chart is not None
    row = chart[np.isclose(chart["percentile"], 99)].iloc[0]
    totals = {"percentile", "A (ms)", "B (ms)", "change (ms)"}
    stages = [float(row[column]) for column in chart.columns if column not in totals]

    assert row["A (ms)"] == pytest.approx((found.a_value or 0) * 1000)
    assert row["B (ms)"] == pytest.approx((found.b_value or 0) * 1000)
    assert sum(stages) == pytest.approx(row["change (ms)"])
    total = f"End to end {duration(found.a_value)} {duration(found.b_value)}".replace(THIN, " ")
    assert total in shown(source, "/compare?svc=vision-api&p=99")


def test_charts_have_tables_with_numbers(source: Source) -> None:
    charts = data_at(source, "/compare?svc=vision-api").charts

    assert sorted(charts) == ["both", "delta"]
    for drawn in charts.values():
        assert isinstance(drawn.frame, pd.DataFrame)
        assert not drawn.frame.isna().to_numpy().any()


def test_a_changed_traffic_mix_qualifies_the_verdict(stored: Stored, store: Store) -> None:
    before = Served("shop", "1", 10, 5, routes=("/small", "/large"))
    stored(before, Served("shop", "2", 5, 0, SLOW, routes=("/large",)))
    source = stored(Served("chat", "1", 10, 5), Served("chat", "2", 5, 0, SLOW))
    prompts(store, "1", 8 * MINUTE, 100)
    prompts(store, "2", 3 * MINUTE, 400)

    check_views("compare_mix", source)


def prompts(store: Store, version: str, ago: timedelta, tokens: int) -> None:
    counted = observed(tokens, 500)
    at = int((NOW - ago).timestamp()) // 10 * 10
    series = Series("chat", version, "demo", "m", "1", "/", "cuda:0", "ok")
    store.write([Batch(f"tokens {version}", [Point(series, TOKENS, "input", at, counted)])])


def rows_of(source: Source) -> dict[str, Signal]:
    context = context_at(source, "/compare?svc=shop")
    return {signal.name: signal for signal in signals(context, pair_of(context))}


def test_error_rates_within_chance_are_equal(stored: Stored) -> None:
    few = (Served("shop", "1", 10, 5), Served("shop", "2", 5, 0))
    failed = (Served("shop", "1", 8, 7, rate=2, status="error"), Served("shop", "2", 3, 1.7, rate=2, status="error"))
    same = rows_of(stored(*few, *failed))["Errors"]
    moved = rows_of(stored(Served("shop", "2", 4, 2, rate=20, status="error")))["Errors"]

    assert (same.change, same.moved) == ("same", False)
    assert moved.moved


def test_requests_in_flight_follow_littles_law(stored: Stored) -> None:
    source = stored(Served("shop", "1", 10, 5), Served("shop", "2", 5, 0))
    rows = rows_of(source)
    counted = source.read.latency(pair_of(context_at(source, "/compare?svc=shop")).a)
    mean = counted.sum / counted.count

    assert float(rows["In flight, mean"].a) == pytest.approx(20 * mean, rel=0.01)
    assert rows["In flight, mean"].change == "same"
    assert rows["Requests / s"].a == "20"


def test_the_report_equals_the_page(source: Source) -> None:
    context = context_at(source, "/compare?svc=vision-api")
    pair = pair_of(context)
    written = report(context, compared(context, pair))
    link = written[written.index("](") + 2 : written.rindex(")")]

    assert written.startswith("**vision-api: B is")
    assert "| Preprocess |" in written
    assert "UTC" in written
    assert link == "/compare?svc=vision-api&a=1.0.0&b=2.0.0&p=99"
    assert asked_pair(context_at(source, link)) == pair
    assert "B is" in shown(source, link)


def test_names_cannot_write_markdown(stored: Stored) -> None:
    evil = "1|[x](http://x)"
    source = stored(Served("shop", evil, 10, 5), Served("shop", "2", 5, 0, SLOW))
    context = context_at(source, "/compare?svc=shop")
    written = report(context, compared(context, pair_of(context)))

    assert "[x](http://x)" not in written
    assert r"1\|\[x\]" in written


def test_no_address_breaks_the_page(source: Source) -> None:
    for query in (
        "svc=nobody",
        "svc=vision-api&a=&b=",
        "svc=vision-api&a=1.0.0&b=1.0.0",
        "svc=vision-api&a=2025-01-01T00:00/30d&b=2.0.0",
        "svc=vision-api&a=2026-11-20T11:59/400d&b=2026-11-20T11:59/1s",
        "svc=vision-api&a=2026-11-20T11:00/%00&b=<script>",
        "svc=vision-api&p=99.99&a=1.0.0&b=2.0.0",
        "svc=vision-api&p=abc",
        "svc=vision-api&env=nowhere",
        "svc=vision-api&from=now-300d",
        "svc=vision-api&from=2030-01-01T00:00",
        "svc=chat-llm&from=now-15m",
        "svc=%3Cb%3E",
        "",
    ):
        text = shown(source, f"/compare?{query}")
        assert text, query
        assert "could not be rendered" not in text, query


def test_past_versions_are_queried_once(stored: Stored) -> None:
    source = stored(Served("shop", "1", 60, 30), Served("shop", "2", 30, 10, SLOW))
    context = context_at(source, "/compare?svc=shop")
    pair = pair_of(context)
    first = compared(context, pair)
    stored(Served("shop", "2", 10, 9, FAST))

    assert compared(context, pair).stages is first.stages
    assert compared(context, replace(pair, b=replace(pair.b, end=NOW))).stages is not first.stages


def test_noise_of_two_equal_versions_has_no_verdict_bar_or_colour(stored: Stored) -> None:
    source = stored(Served("shop", "1", 40, 20, rate=1), Served("shop", "2", 20, 0, rate=1))
    context = context_at(source, "/compare?svc=shop")
    pair = pair_of(context)
    comparison = compared(context, pair)
    drawn = json.dumps(blame_card(context, comparison), cls=PlotlyJSONEncoder)

    assert comparison.verdict.difference
    assert "within the error" in report(context, comparison)
    assert "· " not in report(context, comparison).partition("| Stage")[2]
    assert '"width"' not in drawn
    assert '"bad"' not in drawn
    assert '"good"' not in drawn


def test_a_tail_that_adds_nothing_names_no_stage(stored: Stored) -> None:
    source = stored(Served("shop", "1", 40, 0, {"forward": 10}))
    frame = breakdown(source, context_at(source, "/s/shop?from=now-30m").selection)
    frame[["value_seconds", "forward"]] = 0.01
    frame.loc[frame["percentile"] >= 0.9, ["value_seconds", "forward"]] += 1e-18
    text, drawn = (write(inspector(frame, 0.99, errors=[0.0003] * len(frame))) for write in (text_of, str))

    assert "The tail adds no time" in text
    assert "explains" not in text
    assert "+0" not in text
    assert "'bad'" not in drawn
    assert "hidden=True" in drawn


def test_a_change_within_the_error_of_the_windows_has_no_colour(stored: Stored) -> None:
    source = stored(Served("shop", "1", 40, 0, rate=1))
    rows = [row for row in urgent_first(context_at(source, "/?from=now-20m")) if row.p99_compared is not None]

    assert rows
    assert not any(row.p99_compared.has_changed for row in rows if row.p99_compared)
    for path in ("/", "/s/shop"):
        drawn = json.dumps(page_at(source, f"{path}?from=now-20m").body, cls=PlotlyJSONEncoder)
        assert "delta flat" in drawn
        assert "delta up" not in drawn
        assert "delta down" not in drawn
