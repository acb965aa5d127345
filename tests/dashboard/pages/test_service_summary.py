"""The sentences at the start of the service page, with their links."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from stagelens.dashboard.pages.service_summary import Sentence, summarize
from stagelens.dashboard.source import Source
from stagelens.dashboard.ui.format import SPACE, THIN
from stagelens.dashboard.ui.page_export import text_of
from stagelens.store import Batch, Store
from tests.dashboard import slow_replica
from tests.dashboard.rendering import context_at, page_at
from tests.dashboard.rollout import NOW, WARM, batch

WINDOW = "from=now-15m&tz=UTC"
FAILED = replace(WARM, status="error", route="/b")


def plain(text: str) -> str:
    return text.replace(THIN, " ").replace(SPACE, " ")


def sentences(source: Source, query: str) -> list[Sentence]:
    found = summarize(context_at(source, f"/s/shop?{query}")).sentences
    return [each._replace(text=plain(each.text)) for each in found]


def page_text(source: Source, query: str) -> str:
    return plain(text_of(page_at(source, f"/s/shop?{query}").body))


def shown(store: Store) -> tuple[list[Sentence], str]:
    source = Source(store, None, NOW.timestamp)
    return sentences(source, WINDOW), page_text(source, WINDOW)


def steady(seconds: float, first: int, last: int, requests: int = 100) -> list[Batch]:
    return [batch(WARM, "forward", seconds, ago, requests) for ago in range(first, last, 20)]


def failed(ago: int, requests: int = 20) -> Batch:
    made = batch(FAILED, "queue", 0.5, ago, requests)
    attributes = {"error.type": "504", "server.address": "ranker"}
    call = {"name": "", "stage": "dependency", "start_ns": 0, "duration_ns": 1, "attributes": attributes}
    kept = replace(made.traces[0], attributes={"error.type": "ReadTimeout"}, spans=[call])
    return replace(made, traces=[kept])


def test_failures_are_stated_first_and_no_stage_is_blamed(store_of: Callable[[Iterable[Batch]], Store]) -> None:
    made = [
        *steady(0.01, 920, 1800),
        *steady(0.02, 20, 900),
        *(failed(ago) for ago in range(30, 900, 20)),
    ]
    found, text = shown(store_of(made))
    what, whom, latency = found

    assert what.text == "16.67 % of requests fail: 880 of 5.28k, 0.00 % in the previous 15 m."
    assert "err=1" in what.href
    assert (
        whom.text
        == "Error ReadTimeout (44 of 44 sampled), route /b (100 % of failures), failed calls of ranker (44 of 44 sampled)."
    )
    assert "r=/b" in whom.href
    assert latency.text.startswith("p99 rose ")
    assert all("grew" not in each.text for each in found)
    assert text.index("of requests fail") < text.index("Where the time goes")


def test_timeouts_that_make_a_service_slower_are_failures(store_of: Callable[[Iterable[Batch]], Store]) -> None:
    made = steady(0.01, 20, 1800, 4000)
    for ago in range(30, 890, 40):
        made += [failed(ago, 66), batch(WARM, "queue", 0.3, ago + 20, 36)]
        made += [batch(FAILED, "queue", 0.01, ago + 900, 66), batch(WARM, "queue", 0.05, ago + 920, 100)]
    (what, whom, latency), _ = shown(store_of(made))

    assert what.text.startswith("0.80 % of requests fail: ")
    assert whom.text.startswith("Error ReadTimeout (")
    assert latency.text.startswith("p99 rose ")


def test_a_slower_window_is_stated_with_its_basis_stage_and_links(store_of: Callable[[Iterable[Batch]], Store]) -> None:
    made = [*steady(0.01, 920, 1800), *(batch(WARM, "queue", 0.03, ago, 200) for ago in range(20, 900, 20))]
    (what, _, where), text = shown(store_of(made))

    assert what.text == "p99 rose 202 % against the previous 15 m: 10.0 ms → 30.3 ms. Traffic rose 96 %."
    assert "/compare?" in what.href
    assert "p=99" in what.href
    assert where.text == "Queue grew +30.3 ms at p99, 100 % of the growth."
    assert "/s/shop/advice" in where.href
    assert "p99 rose" in text


def test_nothing_stands_out_with_the_compared_numbers(store_of: Callable[[Iterable[Batch]], Store]) -> None:
    found, text = shown(store_of(steady(0.01, 20, 1800)))

    assert [each.text for each in found] == [
        "Nothing stands out: p99 is 10.0 ms, 10.0 ms in the previous 15 m (4.50k and 4.40k requests)."
    ]
    assert "Compare the windows" in text


def test_without_requests_to_compare_the_reason_is_stated(store_of: Callable[[Iterable[Batch]], Store]) -> None:
    store = store_of(steady(0.01, 20, 400))
    source = Source(store, None, NOW.timestamp)
    young, alone = (sentences(source, WINDOW + more) for more in ("", "&vs=off"))

    assert [each.text for each in (*young, *alone)] == [
        "Nothing stands out among 1.90k requests; the previous 15 m has no requests.",
        "Nothing stands out among 1.90k requests; no other window is compared.",
    ]


def test_a_stopped_service_has_no_data_since_its_last_request(store_of: Callable[[Iterable[Batch]], Store]) -> None:
    store = store_of(steady(0.01, 600, 1800))
    source = Source(store, None, NOW.timestamp)
    within, text = sentences(source, WINDOW), page_text(source, WINDOW)
    beyond = page_text(source, "from=now-5m&tz=UTC")

    assert within[0].text == "No data since 11:50, for 9 m 53 s."
    assert [each.then for each in within] == ["Go to last data", "Replicas"]
    assert "no request for" not in text
    assert "No data since 11:50" in beyond


def test_a_slow_replica_is_stated_once(tmp_path: Path) -> None:
    store = slow_replica.store_of(tmp_path, slow_replica.traffic())
    source = Source(store, None, slow_replica.NOW.timestamp)
    text = text_of(page_at(source, f"/s/{slow_replica.SERVICE}?from=now-45m", slow_replica.NOW).body)
    store.close()

    assert text.count("slower than the other 11") == 1
    assert text.index("slower than the other 11") < text.index("Where the time goes")
