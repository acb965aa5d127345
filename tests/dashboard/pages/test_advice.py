"""Advice page: facts read from the store, texts of findings, reachable latency, and marks of users."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from types import ModuleType
from typing import Any

import pytest

from stagelens.analysis.advice import MIN_GAIN, Facts, Mark, StageFinding, families, family_of
from stagelens.analysis.breakdown import Measures
from stagelens.core.code_stack import CodeFrame, stack_key
from stagelens.core.names import FAILED_CALL, TOKENS, TOKENS_OUT
from stagelens.core.request_histograms import RequestHistograms
from stagelens.dashboard.pages.advice import (
    MOST,
    advice_count,
    advice_for_fleet,
    advice_for_service,
    before_and_after,
    facts_of,
    finding_text,
    marks,
    scope_notes,
)
from stagelens.dashboard.pages.page import Context
from stagelens.dashboard.source import Source
from stagelens.dashboard.ui.format import MINUS
from stagelens.dashboard.view import parse
from stagelens.store import Batch, Point, Reader, Series, Store
from stagelens.store.events import Event
from tests.dashboard.rendering import check_text, check_views, shown, source_of
from tests.dashboard.served_versions import NOW, Served, write

BURSTY = {"forward": 10, "queue": 1, "preprocess": 3, "overhead": 0.2}
GAPPY = {"forward": 10, "overhead": 8}
MS = 1_000_000


def near(value: float) -> Any:
    return pytest.approx(value, rel=0.03)


def served(store: Store, traffic: ModuleType) -> Source:
    return write(
        store,
        traffic,
        Served("shop", "1.0", 20, 8, BURSTY),
        Served("shop", "2.0", 8, 0, BURSTY | {"preprocess": 40}),
        Served("gap", "1.0", 12, 0, GAPPY),
    )


@pytest.fixture(scope="module")
def source(traffic: ModuleType, open_module_store: Callable[[], Store]) -> Source:
    """Two services that have advice, for tests that only read."""
    return served(open_module_store(), traffic)


@pytest.fixture
def writable_source(store: Store, traffic: ModuleType) -> Source:
    return served(store, traffic)


def points_of(series: Series, *counts: RequestHistograms) -> list[Point]:
    at = int(NOW.timestamp()) - 600
    return [Point(series, metric, key, at, each) for one in counts for metric, key, each in one.histograms()]


def context(source: Source, service: str | None = "shop", query: str = "") -> Context:
    path = f"/s/{service}/advice" if service else "/advice"
    return Context(parse(path, query, NOW + timedelta(seconds=5)), source, service)


def counted(store: Store) -> Source:
    """Write 4,000 requests of a service: version 2 queues for 300 ms instead of 10 ms, route /long decodes 250 ms instead of 100 ms."""
    points: list[Point] = []
    for version, queue, requests in (
        ("1", 10, {"/short": 2250, "/long": 750}),
        ("2", 300, {"/short": 750, "/long": 250}),
    ):
        for route, number in requests.items():
            histograms, decode = RequestHistograms(), 250 if route == "/long" else 100
            for _ in range(number):
                histograms.add({"queue": queue * MS, "decode": decode * MS}, (queue + decode) * MS)
            histograms.add_equal(TOKENS, TOKENS_OUT, decode, number)
            histograms.add_equal(FAILED_CALL, "timeout", 0.1, 3)
            points += points_of(Series("chat", version, route=route), histograms)
    store.write([Batch("counted", points)])
    return source_of(store)


def coded(store: Store, **shares: float) -> Source:
    """Write 2,000 requests of which one in 50 takes 200 ms in the endpoint, divided among functions by *shares*."""
    counts = RequestHistograms()
    for number in range(2000):
        spent = 200 * MS if number % 50 == 0 else 40 * MS
        stages = {"handler": spent, "framework": 12 * MS, "forward": 10 * MS}
        counts.add(stages, sum(stages.values()))
        if number % 25 == 0:
            stacks = {stack_key("handler", [CodeFrame("serve", share, "serve.py", 41)]): share for share in shares}
            counts.add_profile({key: round(spent * shares[name]) for key, name in stacks.items()}, sum(stages.values()))
    store.write([Batch("coded", points_of(Series("shop", "1"), counts))])
    return source_of(store)


def test_large_handler_time_names_its_function_and_option(store: Store) -> None:
    check_views("advice_handler", coded(store, resize=0.9, decode=0.1), "/s/shop/advice")


def test_no_function_is_named_without_most_of_the_stage(store: Store) -> None:
    words = shown(coded(store, resize=0.45, decode=0.45, load=0.1), "/s/shop/advice")

    assert "Handler is 90 % of p99" in words
    assert "has 4" not in words
    assert "--stage resize=" not in words


def test_facts_are_what_was_measured(store: Store) -> None:
    counted_source = counted(store)
    found = facts_of(context(counted_source, "chat"))

    assert found.service == "chat"
    assert (found.measures.requests, found.failed_calls) == (4000, 12)
    assert (found.measures.p50, found.measures.p99) == (near(0.110), near(0.550))
    assert found.measures.median_stages == {"queue": near(0.010), "decode": near(0.100)}
    assert found.measures.tail_stages == {"queue": near(0.300), "decode": near(0.250)}
    assert found.means == {"queue": near(0.0825), "decode": near(0.1375)}
    assert found.response_tokens == (near(100), near(250))
    of_version = facts_of(context(counted_source, "chat", "v=2"))
    assert (of_version.measures.requests, of_version.failed_calls) == (1000, 6)
    assert of_version.measures.p50 == near(0.400)


def test_facts_without_calls_and_tokens(source: Source) -> None:
    known, unknown = facts_of(context(source)), facts_of(context(source, "nothing"))

    assert (known.failed_calls, known.response_tokens) == (0, None)
    assert (unknown.measures.requests, unknown.means) == (0, {})


def test_advice_has_the_reachable_latency_and_the_scope_of_its_stage(store: Store) -> None:
    check_views("advice_counted", counted(store))


SLOW = BURSTY | {"queue": 100}


@pytest.mark.parametrize(
    ("fleet", "expected"),
    [
        # A version with few requests has no p99, and one without requests in the window is not compared.
        (
            (Served("shop", "0", 30, 20, SLOW), Served("shop", "1", 20, 0, BURSTY), Served("shop", "2", 0.5, 0, SLOW)),
            ["Only in version 0"],
        ),
        (
            (Served("shop", "1", 40, 6, SLOW), Served("shop", "2", 39, 6, BURSTY), Served("shop", "3", 5, 0, BURSTY)),
            ["Only in version 1"],
        ),
        # The three most frequent routes are compared.
        (
            (
                Served("shop", "1", 20, 0, BURSTY, rate=30, routes=("/a", "/b", "/c")),
                Served("shop", "1", 20, 0, SLOW, rate=2, routes=("/d",)),
            ),
            [],
        ),
    ],
)
def test_what_has_too_few_requests_is_not_compared(
    store: Store, traffic: ModuleType, fleet: tuple[Served, ...], expected: list[str]
) -> None:
    source = write(store, traffic, *fleet)

    assert scope_notes(context(source), "queue") == []
    past = scope_notes(context(source, "shop", "from=now-30m&to=now-6m"), "queue")
    assert [each.partition(":")[0] for each in past] == expected


# Stages with their time at p50 and at p99 [milliseconds], and what else is known.
CAUSES: list[tuple[str, float, float, dict[str, Any]]] = [
    *(
        ("queue", 1, 119, {}),
        ("queue", 30, 119, {}),
        ("load", 0, 300, {}),
        ("load", 50, 50, {}),
        ("tokenize", 10, 39, {}),
    ),
    *(("lookup", 0, 140, {}), ("lookup", 50, 50, {}), ("decode", 50, 50, {}), ("overhead", 50, 50, {})),
    *(("decode", 50, 200, {"response_tokens": (100, 400)}), ("decode", 50, 200, {"response_tokens": (100, 120)})),
    *(("dependency", 6, 50, {}), ("dependency", 50, 50, {"failed_calls": 12}), ("untimed", 50, 50, {})),
    *(("forward", 10, 100, {}), ("h2d", 10, 10, {})),
]


def test_title_and_reason_state_the_cause_with_its_numbers() -> None:
    texts: list[str] = []
    for stage, median, tail, more in CAUSES:
        p50, p99 = {"other": 0.04, stage: median / 1e3}, {"other": 0.045, stage: tail / 1e3}
        facts = Facts("shop", Measures(5000, 0, sum(p50.values()), sum(p99.values()), p50, p99), **more)
        family = family_of(stage)
        assert family
        texts.append(
            f"{stage} {median} → {tail} ms {more}\n"
            + "\n".join(f"  {fact}" for fact in finding_text(StageFinding(facts, stage, family)))
        )

    check_text("advice_texts", "\n".join(texts) + "\n")


def test_every_model_stage_has_a_title() -> None:
    facts = Facts("shop", Measures(5000, 0, 0.1, 0.1, {}, {}))

    assert all(finding_text(StageFinding(facts, key, family))[0] for family in families() for key in family.stages)


@pytest.mark.parametrize("rank", ["p99", "p50"])
def test_the_reachable_latency_is_the_what_if_of_the_store(source: Source, rank: str) -> None:
    found = advice_for_service(context(source), rank)
    top = found[0].reach
    assert top is not None
    expected = source.read.whatif(context(source).selection, found[0].finding.stage, (0.99 if rank == "p99" else 0.5,))

    measures = found[0].finding.facts.measures
    assert top.before == (measures.p99 if rank == "p99" else measures.p50)
    assert top.without >= expected["ceiling_seconds"].iloc[0]
    assert top.before >= top.usual >= top.without
    assert min(each.ceiling(rank) for each in found) >= MIN_GAIN


def test_stages_of_the_tail_rank_before_stages_of_all_requests(store: Store, traffic: ModuleType) -> None:
    calm, burst = {"decode": 200, "queue": 1, "overhead": 1}, {"decode": 200, "queue": 150, "overhead": 1}
    source = write(store, traffic, Served("chat", "1", 20, 0, calm), Served("chat", "1", 20, 0, burst, rate=1))
    found = advice_for_service(context(source, "chat"), "p99")
    text = shown(source, "/s/chat/advice")

    assert [each.finding.stage for each in found] == ["queue", "decode"]
    assert found[0].ceiling("p99") < found[1].ceiling("p99")
    assert "Queue first: p99 falls by" in text
    assert "if no request exceeded the median" in text
    assert "if Decode took no time" in text
    assert [each.finding.stage for each in advice_for_service(context(source, "chat"), "p99", 1)] == ["queue"]


def test_the_pages_have_the_findings_of_a_service_and_the_largest_of_each(source: Source) -> None:
    found, candidates = advice_for_fleet(context(source, None), "p50")

    check_views("advice", source)
    assert {each.finding.facts.service for each in found} == {"shop", "gap"}
    assert candidates == 2


def test_every_address_renders_a_page(source: Source) -> None:
    for path in ("/advice?", "/s/shop/advice?", "/s/gap/advice?", "/advice?svc=shop&"):
        for query in ("rank=cost", "rank=p50", "rank=nonsense", "kind=all", "v=1.0", "env=nowhere"):
            text = shown(source, path + query)
            assert text, path + query
            assert "could not be rendered" not in text, path + query


def test_too_few_requests_are_reported(store: Store, traffic: ModuleType) -> None:
    few = write(store, traffic, Served("young", "1.0", 0.5, 0, BURSTY))

    check_views("advice_few", few)
    assert advice_count(context(few, None)) == 0


@pytest.mark.parametrize(
    ("text", "hides"), [("dismissed", True), ("done", True), ("open", False), ("snoozed until soon", False)]
)
def test_the_newest_advice_action_applies(store: Store, writable_source: Source, text: str, hides: bool) -> None:
    top = advice_for_service(context(writable_source), "p99")[0].finding
    for action, ago in (("dismissed", 60), (text, 10)):
        store.add_event(Event(NOW - timedelta(seconds=ago), "shop", "advice", top.key, action))
    found = marks(context(writable_source))["shop", top.key]

    assert found.hides(NOW) is hides
    assert ("dismissed, snoozed or done" in shown(writable_source, "/s/shop/advice")) is hides


def test_snoozed_advice_comes_back(store: Store, writable_source: Source) -> None:
    until = (NOW + timedelta(days=7)).isoformat()
    top = advice_for_service(context(writable_source), "p99")[0].finding
    store.add_event(Event(NOW, "shop", "advice", top.key, f"snoozed until {until}"))
    found = marks(context(writable_source))["shop", top.key]

    assert found.hides(NOW + timedelta(days=6))
    assert not found.hides(NOW + timedelta(days=8))


def test_done_advice_is_compared_before_and_after(store: Store, writable_source: Source) -> None:
    top = advice_for_service(context(writable_source), "p99")[0].finding
    store.add_event(Event(NOW - timedelta(minutes=8), "shop", "advice", top.key, "done"))

    check_views("advice_done", writable_source, "/s/shop/advice?kind=all")


@pytest.mark.parametrize(
    ("key", "ago", "resolved"), [("cpu:resize", 8, True), ("cpu:preprocess", 8, False), ("cpu:resize", 7 * 60, False)]
)
def test_advice_that_is_done_and_no_longer_found_is_resolved(
    store: Store, writable_source: Source, key: str, ago: int, resolved: bool
) -> None:
    store.add_event(Event(NOW - timedelta(minutes=ago), "shop", "advice", key, "done"))

    assert ("Done and resolved: resize of shop." in shown(writable_source, "/s/shop/advice")) is resolved
    assert "Done and resolved: preprocess" not in shown(writable_source, "/s/shop/advice")


def test_a_mark_of_an_earlier_day_counts(store: Store, writable_source: Source) -> None:
    for days, key in ((399, "cpu:preprocess"), (402, "batching:queue")):
        store.add_event(Event(NOW - timedelta(days=days), "shop", "advice", key, "dismissed"))

    assert list(marks(context(writable_source))) == [("shop", "cpu:preprocess")]


@pytest.mark.parametrize(
    ("ago", "before", "after", "length"),
    [(3, "20T11:47:03", "20T11:57:03", "10m"), (30, "20T11:00:03", "20T11:30:03", "30m"), (600, "19T20:00:03", "20T02:00:03", "6h")],
)  # fmt: skip
def test_equal_times_before_and_after_a_mark_are_compared(ago: int, before: str, after: str, length: str) -> None:
    link = before_and_after(parse("/s/shop/advice", "", NOW), "shop", Mark("done", NOW - timedelta(minutes=ago)))

    assert link == f"/compare?svc=shop&a=2026-11-{before}/{length}&b=2026-11-{after}/{length}"


def test_the_side_bar_counts_open_advice(store: Store, writable_source: Source) -> None:
    before = advice_count(context(writable_source, None))
    for each in advice_for_fleet(context(writable_source, None), "p99")[0]:
        store.add_event(Event(NOW, each.finding.facts.service, "advice", each.finding.key, "dismissed"))

    assert before > 0
    assert advice_count(context(writable_source, None)) == 0


def test_many_services_need_few_what_if_queries(
    store: Store, traffic: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = [Served(f"svc-{number:02}", "1.0", 2, 0, GAPPY) for number in range(MOST + 10)]
    source = write(store, traffic, *many)
    asked: list[str] = []
    real = Reader.whatif

    def counted(self: Reader, *args: object, **more: object) -> object:
        asked.append("whatif")
        return real(self, *args, **more)  # type: ignore[arg-type]

    counted.__qualname__ = real.__qualname__
    monkeypatch.setattr(Reader, "whatif", counted)
    found, candidates = advice_for_fleet(context(source, None), "p50")

    assert candidates == MOST + 10
    assert len(found) == len(asked) == MOST


def test_a_finding_has_one_title_on_every_page(store: Store) -> None:
    points: list[Point] = []
    for tokens, number in ((100, 2900), (400, 100)):
        counts = RequestHistograms()
        for _ in range(number):
            counts.add({"prefill": 20 * MS, "decode": 10 * tokens * MS}, (20 + 10 * tokens) * MS)
        counts.add_equal(TOKENS, TOKENS_OUT, tokens, number)
        points += points_of(Series("chat", "1"), counts)
    store.write([Batch("chat", points)])
    source, title = source_of(store), "Limit response length, or decode faster"
    pages = [shown(source, path) for path in ("/advice", "/s/chat", "/s/chat/advice")]

    assert [title in page for page in pages] == [True] * 3
    assert ["Decode faster" in page for page in pages] == [False] * 3
    assert [each.finding.title for each in advice_for_fleet(context(source, None), "p99")[0]] == [title]


def test_services_with_equal_advice_share_a_card(store: Store, traffic: ModuleType) -> None:
    uneven = GAPPY | {"overhead": 60}
    services = [
        each
        for name in ("a", "b", "c")
        for each in (Served(name, "1", 20, 0, GAPPY), Served(name, "1", 20, 0, uneven, rate=1))
    ]
    check_views("advice_equal", write(store, traffic, *services), "/advice")


def test_a_stage_of_all_requests_is_not_predicted_to_take_no_time(store: Store) -> None:
    counts = RequestHistograms()
    for _ in range(2000):
        counts.add({"forward": 10 * MS}, 10 * MS)
    store.write([Batch("even", points_of(Series("shop", "1"), counts))])

    for path in ("/s/shop", "/s/shop/advice"):
        assert "→ 0 ms" not in shown(source_of(store), path)
        assert f"at most {MINUS}10.0" in shown(source_of(store), path)


def test_token_times_have_advice_with_evidence(filled: Store) -> None:
    check_views("advice_tokens", source_of(filled))
