"""Advice: which stages it speaks of, why, how far it says one could get, and what people did with it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelens.core.stages import STAGES
from stagelens.dashboard.pages.advice import top_advice
from stagelens.dashboard.pages.advice_facts import MOST, advice_count, advice_for_fleet, advice_for_service, marks
from stagelens.dashboard.pages.advice_rules import MIN_GAIN, RANKS, Facts, families, family_of, findings
from stagelens.dashboard.pages.measures import Measures
from stagelens.dashboard.pages.page import Context
from stagelens.dashboard.source import Source
from stagelens.dashboard.view import parse
from stagelens.store import Reader, Store
from stagelens.store.events import Event
from tests.dashboard.served_versions import NOW, Served, shown, write

BURSTY = {"forward": 10, "queue": 1, "preprocess": 3, "overhead": 0.2}
GAPPY = {"forward": 10, "overhead": 8}


def facts(median: dict[str, float], tail: dict[str, float], **more: object) -> Facts:
    """Return facts with these stages at p50 and at p99. [milliseconds]"""  # noqa: D415 - the unit ends it
    p50, p99 = ({stage: each / 1e3 for stage, each in some.items()} for some in (median, tail))
    return Facts("shop", Measures(5000, 0, sum(p50.values()), sum(p99.values()), p50, p99), **more)  # type: ignore[arg-type]


def said(found: Facts, stage: str) -> tuple[str, str]:
    """Return title and reason of the finding about *stage*."""
    return next(each.words for each in findings(found, "p99") if each.stage == stage)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store nothing was written to."""
    opened = Store.open(f"sqlite:///{tmp_path / 'advice.db'}", clock=NOW.timestamp)
    yield opened
    opened.close()


def served(store: Store, traffic: ModuleType) -> Source:
    """Write a service whose second version preprocesses slowly, and one with a gap between its stages."""
    slow = BURSTY | {"preprocess": 40}
    return write(
        store,
        traffic,
        Served("shop", "1.0", 20, 8, BURSTY),
        Served("shop", "2.0", 8, 0, slow),
        Served("gap", "1.0", 12, 0, GAPPY),
    )


@pytest.fixture(scope="module")
def source(traffic: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Source]:
    """Two services that have advice, for tests that only read."""
    path = tmp_path_factory.mktemp("advice") / "advice.db"
    opened = Store.open(f"sqlite:///{path}", clock=NOW.timestamp)
    yield served(opened, traffic)
    opened.close()


@pytest.fixture
def own_source(store: Store, traffic: ModuleType) -> Source:
    """The same two, for a test that does something with their advice."""
    return served(store, traffic)


def context(source: Source, service: str | None = "shop", query: str = "") -> Context:
    """Return the context of a page, five seconds after what was told."""
    path = f"/s/{service}/advice" if service else "/advice"
    return Context(parse(path, query, NOW + timedelta(seconds=5)), source, service)


def test_every_stage_has_a_family_and_every_option_says_everything() -> None:
    """The matrix leaves no stage and no field out, and no key stands in it twice."""
    assert all(family_of(stage.key) is not None for stage in STAGES)
    assert len({each.key for each in families()}) == len(families())
    for option in (option for family in families() for option in family.options):
        assert all(str(getattr(option, name)).strip() for name in option.__slots__)
        assert option.complexity in ("low", "medium", "high")


def test_work_that_few_requests_need_is_not_said_to_be_that_of_all() -> None:
    """A stage of the user's own that is absent at p50 is no stage that takes about as long for every request."""
    title, why = said(facts({"forward": 20}, {"forward": 20, "lookup": 140}), "lookup")

    assert title == "Speed up lookup, or need it less often"
    assert why.endswith("some requests need it, most do not.")


def test_a_queue_only_the_tail_meets_is_bursts_and_one_everybody_meets_is_load() -> None:
    """The same stage has another fix when the median waits, too."""
    _, bursts = said(facts({"forward": 40, "queue": 1}, {"forward": 45, "queue": 119}), "queue")
    title, load = said(facts({"forward": 40, "queue": 30}, {"forward": 45, "queue": 119}), "queue")

    assert "73\u202f% of p99 (119\u202fms) and 2\u202f% of p50" in bursts
    assert "bursts" in bursts
    assert "even the median waits" in title
    assert "most requests wait" in load


def test_long_answers_are_told_from_slow_tokens() -> None:
    """Decode that grows with the length of the answer is not slower."""
    longer = facts({"decode": 500}, {"decode": 2000}, answer_tokens=(100.0, 400.0))
    slower = facts({"decode": 500}, {"decode": 2000}, answer_tokens=(100.0, 120.0))

    assert "longer responses, not slower tokens" in said(longer, "decode")[1]
    assert "tokens are slower" in said(slower, "decode")[1]


def test_overhead_is_a_finding_only_when_it_is_a_gap() -> None:
    """Up to 15 % of unclaimed time is usual; above it a stage is missing."""
    usual = findings(facts({"forward": 90, "overhead": 10}, {"forward": 90, "overhead": 12}), "p99")

    assert [each.stage for each in usual] == ["forward"]
    assert said(facts({"forward": 80, "overhead": 20}, {"forward": 80, "overhead": 20}), "overhead")[0].startswith(
        "Add stages"
    )


def test_calls_that_fail_and_a_start_in_the_tail_are_said() -> None:
    """What was counted beside the times stands in the reason."""
    found = facts({"forward": 5, "dependency": 6}, {"forward": 5, "dependency": 50, "load": 300}, failed_calls=12)

    assert "12 calls failed" in said(found, "dependency")[1]
    assert said(found, "load")[0] == "Keep the model warm"


@given(
    st.dictionaries(st.sampled_from([stage.key for stage in STAGES] + ["own"]), st.floats(0, 1e3), min_size=1),
    st.dictionaries(st.sampled_from([stage.key for stage in STAGES] + ["own"]), st.floats(0, 1e3), min_size=1),
    st.sampled_from(RANKS),
)
def test_what_takes_next_to_nothing_is_no_advice(median: dict[str, float], tail: dict[str, float], rank: str) -> None:
    """Whatever the stages, each finding is worth something of what it is ranked by, the most first, and has words."""
    found = findings(facts(median, tail), rank)

    assert all(each.weight(rank) >= MIN_GAIN for each in found)
    assert [each.expected(rank) for each in found] == sorted((each.expected(rank) for each in found), reverse=True)
    assert all(all(each.words) for each in found)


def test_waiting_costs_nothing() -> None:
    """Ranked by cost, a stage that keeps no machine busy is not there."""
    found = findings(facts({"forward": 40, "queue": 80}, {"forward": 40, "queue": 300}), "cost")

    assert [each.stage for each in found] == ["forward"]


@pytest.mark.parametrize("rank", ["p99", "p50"])
def test_what_could_be_reached_is_the_what_if_of_the_store(source: Source, rank: str) -> None:
    """The numbers on a card are re-sorted ones, best first, and none has less than 3 % to give."""
    found = advice_for_service(context(source), rank)
    orders = [each.order(rank) for each in found]
    top = found[0].reach
    assert top is not None
    expected = source.read.whatif(context(source).selection, found[0].finding.stage, (0.99 if rank == "p99" else 0.5,))

    assert top.without == expected["ceiling_seconds"].iloc[0]
    assert top.before >= top.usual >= top.without
    assert orders == sorted(orders)
    assert min(each.ceiling(rank) for each in found) >= MIN_GAIN


def test_what_some_requests_wait_for_comes_before_what_all_need(store: Store, traffic: ModuleType) -> None:
    """Decode is most of p99 and as long for everybody: nobody can take no time in it. The queue is what p99 has and p50 has not."""
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


def test_the_page_says_why_here_and_of_which_version_alone(source: Source) -> None:
    """A stage that one version alone is slow in names it, with both numbers."""
    text = shown(source, "/s/shop/advice")

    assert "Preprocess first: p99 falls by" in text
    assert "Only version 2.0: p99 of Preprocess itself is" in text
    assert "p99 could reach" in text
    assert "More worker processes" in text
    assert "Accuracy" in text


def test_the_page_of_all_services_has_the_largest_finding_of_each(source: Source) -> None:
    """One card a service, and the side bar counts what is shown."""
    found, candidates = advice_for_fleet(context(source, None), "p50")
    text = shown(source, "/advice?rank=p50")

    assert {each.finding.facts.service for each in found} == {"shop", "gap"}
    assert candidates == 2
    assert "Add stages for the time between stages" in text or "Make the model itself faster" in text


@pytest.mark.parametrize("query", ["?rank=cost", "?rank=p50", "?rank=nonsense", "?kind=all", "?v=1.0", "?env=nowhere"])
@pytest.mark.parametrize("path", ["/advice", "/s/shop/advice", "/s/gap/advice", "/advice?svc=shop"])
def test_every_address_is_answered(source: Source, path: str, query: str) -> None:
    """Garbage falls back to the default and an empty window says so."""
    text = shown(source, path.replace("?", query + "&") if "?" in path else path + query)

    assert text
    assert "could not be rendered" not in text


def test_too_few_requests_are_said(store: Store, traffic: ModuleType) -> None:
    """A service with a few requests gets no advice on its p99, and a way to its p50."""
    few = write(store, traffic, Served("young", "1.0", 0.5, 0, BURSTY))
    text = shown(few, "/s/young/advice")

    assert "Too few requests to advise on p99" in text
    assert "p99 needs 1 000" in text
    assert "Rank by p50" in text
    assert "1 of 1 have too few requests in this window" in shown(few, "/advice")
    assert advice_count(context(few, None)) == 0


@pytest.mark.parametrize(
    ("text", "hides"), [("dismissed", True), ("done", True), ("open", False), ("snoozed until soon", False)]
)
def test_the_newest_mark_counts(store: Store, own_source: Source, text: str, hides: bool) -> None:
    """What was done last with a piece of advice hides it, or brings it back; what nobody can read leaves it open."""
    top = advice_for_service(context(own_source), "p99")[0].finding
    for told, ago in (("dismissed", 60), (text, 10)):
        store.add_event(Event(NOW - timedelta(seconds=ago), "shop", "advice", top.key, told))
    found = marks(context(own_source))["shop", top.key]

    assert found.hides(NOW) is hides
    assert ("dismissed, snoozed or done" in shown(own_source, "/s/shop/advice")) is hides


def test_what_is_put_off_comes_back(store: Store, own_source: Source) -> None:
    """A snooze ends by itself."""
    until = (NOW + timedelta(days=7)).isoformat()
    top = advice_for_service(context(own_source), "p99")[0].finding
    store.add_event(Event(NOW, "shop", "advice", top.key, f"snoozed until {until}"))
    found = marks(context(own_source))["shop", top.key]

    assert found.hides(NOW + timedelta(days=6))
    assert not found.hides(NOW + timedelta(days=8))


def test_what_was_done_is_compared_before_and_after(store: Store, own_source: Source) -> None:
    """Done advice leads to the windows around the mark."""
    top = advice_for_service(context(own_source), "p99")[0].finding
    store.add_event(Event(NOW - timedelta(minutes=8), "shop", "advice", top.key, "done"))
    text = shown(own_source, "/s/shop/advice?kind=all")

    assert "Compare before and after" in text
    assert "Show again" in text


def test_the_side_bar_counts_what_nobody_dealt_with(store: Store, own_source: Source) -> None:
    """Dismissing the finding of a service takes it out of the count."""
    before = advice_count(context(own_source, None))
    for each in advice_for_fleet(context(own_source, None), "p99")[0]:
        store.add_event(Event(NOW, each.finding.facts.service, "advice", each.finding.key, "dismissed"))

    assert before > 0
    assert advice_count(context(own_source, None)) == 0


def test_the_service_page_gets_the_first_few(source: Source) -> None:
    """The best advice fits into one card; a service without advice has none."""
    card = top_advice(context(source), 2)

    assert card is not None
    assert top_advice(context(source, "nobody"), 2) is None


def test_many_services_ask_few_what_ifs(store: Store, traffic: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many services there are, only the largest findings are asked what-if about."""
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
