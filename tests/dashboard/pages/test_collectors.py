"""The page of the collectors: the state of each, also after its last report, and the fixes."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from stagelens.core.hardware import hardware_key
from stagelens.core.histogram import Histogram
from stagelens.core.names import OPEN_TIME, PROBE_DURATION, REQUEST_DURATION
from stagelens.core.stages import UNTIMED
from stagelens.dashboard.pages.collectors import collector_status, service_quota_line
from stagelens.dashboard.source import Source
from stagelens.dashboard.ui.page_export import as_html
from stagelens.dashboard.view import parse
from stagelens.dashboard.web.routing import context_of, navigation_parts, page_state, render_page
from stagelens.store import Batch, Indicator, Point, Series, Store
from stagelens.store.collectors import Report, Vitals, lost_points, write_report
from stagelens.store.events import STOPPED, StoredLoad, write_stopped
from tests.dashboard.served_versions import NOW

AT = NOW.timestamp()
WELL = Report("a", "pod-a:4318", "1.2.3", AT - 3600, AT - 4, Vitals({"metrics": 48.0}, commit_p99_seconds=0.01))


def with_vitals(**changes: Any) -> Report:
    return replace(WELL, vitals=replace(WELL.vitals, **changes))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(f"sqlite:///{tmp_path}/stagelens.db", clock=NOW.timestamp)


def write(store: Store, *reports: Report) -> None:
    with store.transaction() as connection:
        for report in reports:
            write_report(connection, report)


def shown(store: Store, now: datetime = NOW) -> str:
    source = Source(store, None, now.timestamp)
    return as_html(render_page(context_of(parse("/collectors", "", now), source)).body)


def test_a_collector_that_works_is_ok() -> None:
    judged = collector_status(with_vitals(spans_waiting_seconds=3500.0, spans_waiting_bytes=217), NOW)

    assert (judged.state, judged.troubles) == ("ok", ())


@pytest.mark.parametrize(
    ("vitals", "words"),
    [
        ({"file_errors": ("collector.yaml:3: no",)}, ("collector.yaml:3: no", "stays in force")),
        (
            {"greedy": ("token team-a",)},
            ("token team-a named more services within a day than its share", "storage forget"),
        ),
        ({"refused_per_second": {"401": 0.4}}, ("0.4 requests/s", "401", "token")),
        ({"refused_per_second": {"429": 2.0}}, ("429", "raise the limit")),
        ({"refused_per_second": {"418": 2.0}}, ("418", "log")),
        ({"commit_p99_seconds": 2.5}, ("2.5 s", "disk")),
        ({"targets_down": {"http://llm:8000/metrics": "refused"}}, ("http://llm:8000/metrics", "refused")),
        ({"spans_waiting_seconds": 1200.0, "spans_waiting_bytes": 5e6}, ("20", "another collector")),
    ],
)
def test_a_collector_problem_is_shown_with_its_fix(vitals: dict[str, Any], words: tuple[str, ...]) -> None:
    judged = collector_status(with_vitals(**vitals), NOW)
    (trouble,) = judged.troubles

    assert judged.state == "look"
    for word in words:
        assert word in f"{trouble.text} {trouble.fix}"


def test_failures_come_first_with_their_start_time() -> None:
    judged = collector_status(with_vitals(failing=(("committing", "disk full", AT - 300),), file_errors=("x",)), NOW)

    assert judged.state == "failing"
    assert judged.troubles[0].text == "Committing fails: disk full"
    assert judged.troubles[0].since == NOW - timedelta(seconds=300)
    assert len(judged.troubles) == 2


def test_a_dead_collector_shows_only_its_silence() -> None:
    dead = replace(with_vitals(failing=(("committing", "disk full", AT - 300),)), seen=AT - 700)
    judged = collector_status(dead, NOW)
    (trouble,) = judged.troubles

    assert judged.state == "silent"
    assert trouble.since == NOW - timedelta(seconds=700)


def test_a_clock_that_is_ahead_is_reported() -> None:
    judged = collector_status(replace(WELL, seen=AT + 60), NOW)

    assert judged.state == "look"
    assert "NTP" in judged.troubles[0].fix


def test_an_empty_page_explains_how_to_report(store: Store) -> None:
    markup = shown(store)

    assert "No collector has reported" in markup
    assert "stagelens collector" in markup


def test_the_most_severe_row_is_first(store: Store) -> None:
    silent = replace(WELL, id="c", name="pod-c:4318", seen=AT - 100)
    failing = replace(with_vitals(failing=(("committing", "disk full", AT - 300),)), id="b", name="pod-b:4318")
    write(store, WELL, failing, silent)
    markup = shown(store)

    assert markup.index("pod-c:4318") < markup.index("pod-b:4318") < markup.index("pod-a:4318")
    for word in ("Silent", "Failing", "OK", "disk full", "v1.2.3", "Alert if", "3 collectors"):
        assert word in markup
    assert "could not be rendered" not in markup


def test_collector_messages_are_escaped(store: Store) -> None:
    write(store, with_vitals(targets_down={"http://x/<script>alert(1)</script>": "<b>no</b>"}))
    markup = shown(store)

    assert "<script>" not in markup
    assert "<b>no</b>" not in markup


def test_the_page_refreshes_without_new_data(store: Store) -> None:
    write(store, WELL)
    later = NOW + timedelta(minutes=1)
    stamps = [
        page_state(context_of(parse("/collectors", "", now), Source(store, None, now.timestamp)))["stale"]
        for now in (NOW, later)
    ]

    assert stamps[0] != stamps[1]
    assert "No report for" in shown(store, later)
    assert "No report for" not in shown(store)


def test_every_page_links_to_the_collectors(store: Store) -> None:
    context = context_of(parse("/", "", NOW), Source(store, None, NOW.timestamp))

    assert 'href="/collectors"' in as_html(navigation_parts(context, "/")["side"])


def test_losses_and_probes_of_a_service_are_on_its_page_and_on_this_one(store: Store) -> None:
    series, at = Series("shop", route="/healthz"), int(AT) - 60
    probes = Histogram()
    probes.record(0.0004, 3)
    store.write(
        [
            Batch(
                "probes",
                [
                    Point(series, PROBE_DURATION, UNTIMED, at, probes),
                    Point(replace(series, status="error"), PROBE_DURATION, UNTIMED, at, Histogram(zero=2)),
                    Point(Series("shop"), REQUEST_DURATION, "forward", at, Histogram(buckets={-80: 1}, sum=0.2)),
                ],
            ),
            Batch("losses", lost_points(Series("shop"), "too_large", 4, at)),
        ]
    )
    write(store, with_vitals(refused={"10.0.0.7: this token is not known to the collector": 12.0}))
    page = shown(store)
    source = Source(store, None, NOW.timestamp)
    service = as_html(render_page(context_of(parse("/s/shop", "", NOW), source)).body)
    of_route = replace(context_of(parse("/s/shop", "", NOW), source).selection, route="/healthz")

    for text in (page, service):
        assert "4 exports" in text
        assert "STAGELENS_MAX_BODY" in text
    assert "10.0.0.7: this token is not known to the collector (12 times)" in page
    assert "5 health probes" in service
    assert "2 failed" in service
    assert source.services(of_route.start, of_route.end)["requests"].to_list() == [1]
    # A selected route, such as that of an objective, counts the probes as requests.
    tally = source.read.tally(of_route, Indicator("latency", 0.1))
    assert (tally.total, tally.bad) == (source.read.latency(of_route).count, 2) == (5, 2)
    assert [each.count for each in source.read.latencies([of_route, replace(of_route, route=None)])] == [5, 1]


def test_services_without_a_counted_request_are_on_the_overview(store: Store) -> None:
    at = int(AT) - 60
    probes, waiting = Histogram(zero=3), Histogram(buckets={0: 1})
    store.write(
        [
            Batch("probes", [Point(Series("a/b%"), PROBE_DURATION, UNTIMED, at, probes)]),
            Batch("open", [Point(Series("hung"), OPEN_TIME, hardware_key("open", "web:7"), at, waiting)]),
            Batch("losses", lost_points(Series("refused"), "rejected", 3, at)),
        ]
    )
    source = Source(store, None, NOW.timestamp)
    page, service = (
        as_html(render_page(context_of(parse(path, "", NOW), source)).body) for path in ("/", "/s/refused")
    )

    assert source.all_services()["service"].to_list() == ["a/b%", "hung", "refused"]
    for text in ("3 services without a counted request", "/s/a~2Fb~25", "/s/hung", "/s/refused", "No request so far"):
        assert text in page
    assert "3 items rejected" in service
    assert "The last request" not in service


def test_the_overview_names_services_over_their_series_share(store: Store) -> None:
    context = context_of(parse("/", "", NOW), Source(store, None, NOW.timestamp))

    assert service_quota_line(context) is None

    write(store, WELL, replace(with_vitals(greedy=("token a", "address 10.0.0.7")), id="b", name="pod-b:4318"))
    line = service_quota_line(context)

    assert line is not None
    assert "address 10.0.0.7 and 1 more named more within a day than their share" in as_html(line)


def test_processes_that_stopped_with_open_requests_are_one_line(store: Store) -> None:
    write(store, WELL)
    store.write([Batch("a", [Point(Series("shop"), REQUEST_DURATION, "forward", int(AT) - 60, Histogram(zero=2))])])
    stopped = [
        StoredLoad("shop", "1", "", place, place, STOPPED, "/pay", "", int(AT - 95) * 10**9, int(at) * 10**9, requests)
        for place, at, requests in (("web-1:7", AT - 90, 3), ("web-2:7", AT - 70, 1))
    ]

    def texts() -> tuple[str, ...]:
        source = Source(store, None, NOW.timestamp)
        return shown(store), as_html(render_page(context_of(parse("/s/shop", "", NOW), source)).body)

    expected = (
        ("Process web-1:7 of shop stopped sending", "Process web-1:7 stopped sending", " at 11:58: 3 requests open"),
        ("2 processes stopped sending", ", the last one (web-2:7 of shop) at 11:58: 4 requests open", "(/pay) for 25"),
    )
    assert "stopped sending" not in "".join(texts())
    for process, wanted in zip(stopped, expected, strict=True):
        with store.transaction() as connection:
            write_stopped(connection, [process])
        assert [text for text in wanted if text not in "".join(texts())] == []
    assert store.read.loads("shop").empty
