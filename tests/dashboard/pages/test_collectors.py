"""The page of the collectors: the state of each, also after its last report, and the fixes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

from stagelens.core.hardware import hardware_key
from stagelens.core.histogram import Histogram
from stagelens.core.names import OPEN_TIME, PROBE_DURATION, REQUEST_DURATION
from stagelens.core.stages import UNTIMED
from stagelens.dashboard.web.routing import page_state
from stagelens.store import Batch, Indicator, Point, Series, Store
from stagelens.store.collectors import Report, Vitals, lost_points, write_report
from stagelens.store.events import STOPPED, StoredLoad, write_stopped
from tests.dashboard.rendering import check_views, context_at, html_at, observed, shown, source_of
from tests.dashboard.served_versions import NOW

AT = NOW.timestamp()
WELL = Report("a", "pod-a:4318", "1.2.3", AT - 3600, AT - 4, Vitals({"metrics": 48.0}, commit_p99_seconds=0.01))
DISK_FULL = {"failing": (("committing", "disk full", AT - 300),)}
VITALS: dict[str, dict[str, Any]] = {
    "ok": {"spans_waiting_seconds": 3500.0, "spans_waiting_bytes": 217},
    "file": {"file_errors": ("collector.yaml:3: no",)},
    "greedy": {"greedy": ("token team-a",)},
    **{f"refused-{status}": {"refused_per_second": {status: 2.0}} for status in ("401", "429", "418")},
    "refused": {"refused": {"10.0.0.7: this token is not known to the collector": 12.0}},
    "slow": {"commit_p99_seconds": 2.5},
    "target": {"targets_down": {"http://llm:8000/metrics": "refused"}},
    "waiting": {"spans_waiting_seconds": 1200.0, "spans_waiting_bytes": 5e6},
    "failing": {**DISK_FULL, "file_errors": ("x",)},
}


def with_vitals(**changes: Any) -> Report:
    return replace(WELL, vitals=replace(WELL.vitals, **changes))


def reports() -> Iterator[Report]:
    """Yield a collector with each problem, one that is silent although it failed before, and one with a fast clock."""
    for name, vitals in VITALS.items():
        yield replace(with_vitals(**vitals), id=name, name=name)
    yield replace(with_vitals(**DISK_FULL), id="silent", name="silent", seen=AT - 700)
    yield replace(WELL, id="ahead", name="ahead", seen=AT + 60)


def write(store: Store, *written: Report) -> None:
    with store.transaction() as connection:
        for report in written:
            write_report(connection, report)


def test_each_collector_has_its_state_and_fix_the_most_severe_first(store: Store) -> None:
    check_views("collectors_none", source_of(store), "/collectors")
    write(store, *reports())
    check_views("collectors", source_of(store), "/collectors")


def test_collector_messages_are_escaped(store: Store) -> None:
    write(store, with_vitals(targets_down={"http://x/<script>alert(1)</script>": "<b>no</b>"}))
    markup = html_at(source_of(store), "/collectors")

    assert "<script>" not in markup
    assert "<b>no</b>" not in markup


def test_the_page_refreshes_without_new_data(store: Store) -> None:
    write(store, WELL)
    later = NOW + timedelta(minutes=1)
    stamps = [page_state(context_at(source_of(store, now=now), "/collectors", now))["stale"] for now in (NOW, later)]
    pages = [shown(source_of(store, now=now), "/collectors", now) for now in (NOW, later)]

    assert stamps[0] != stamps[1]
    assert ["No report for" in page for page in pages] == [False, True]


def test_losses_and_probes_of_a_service_are_on_its_page_and_on_this_one(store: Store) -> None:
    series, at = Series("shop", route="/healthz"), int(AT) - 60
    probes = [
        Point(series, PROBE_DURATION, UNTIMED, at, observed(0.0004, 3)),
        Point(replace(series, status="error"), PROBE_DURATION, UNTIMED, at, Histogram(zero=2)),
        Point(Series("shop"), REQUEST_DURATION, "forward", at, Histogram(buckets={-80: 1}, sum=0.2)),
    ]
    store.write([Batch("probes", probes), Batch("losses", lost_points(Series("shop"), "too_large", 4, at))])
    source = source_of(store)
    of_route = replace(context_at(source, "/s/shop").selection, route="/healthz")

    check_views("collectors_losses", source, "/collectors", "/s/shop # head")
    assert source.services(of_route.start, of_route.end)["requests"].to_list() == [1]
    # A selected route, such as that of an objective, counts the probes as requests.
    tally = source.read.tally(of_route, Indicator("latency", 0.1))
    assert (tally.total, tally.bad) == (source.read.latency(of_route).count, 2) == (5, 2)
    assert [latency.count for latency in source.read.latencies([of_route, replace(of_route, route=None)])] == [5, 1]


def test_the_overview_names_services_without_a_counted_request_and_over_their_series_share(store: Store) -> None:
    at = int(AT) - 60
    probes, waiting = Histogram(zero=3), Histogram(buckets={0: 1})
    store.write(
        [
            Batch("probes", [Point(Series("a/b%"), PROBE_DURATION, UNTIMED, at, probes)]),
            Batch("open", [Point(Series("hung"), OPEN_TIME, hardware_key("open", "web:7"), at, waiting)]),
            Batch("losses", lost_points(Series("refused"), "rejected", 3, at)),
        ]
    )
    check_views("uncounted", source_of(store), "/", "/s/refused # head")
    write(store, WELL, replace(with_vitals(greedy=("token a", "address 10.0.0.7")), id="b", name="pod-b:4318"))
    check_views("over_quota", source_of(store), "/ # head")


def test_processes_that_stopped_with_open_requests_are_one_line(store: Store) -> None:
    write(store, WELL)
    store.write([Batch("a", [Point(Series("shop"), REQUEST_DURATION, "forward", int(AT) - 60, Histogram(zero=2))])])
    stopped = [
        StoredLoad("shop", "1", "", place, place, STOPPED, "/pay", "", int(AT - 95) * 10**9, int(at) * 10**9, requests)
        for place, at, requests in (("web-1:7", AT - 90, 3), ("web-2:7", AT - 70, 1))
    ]
    for number, process in enumerate(stopped, 1):
        with store.transaction() as connection:
            write_stopped(connection, [process])
        check_views(f"stopped_{number}", source_of(store), "/collectors # Collectors", "/s/shop # head")
    assert store.read.loads("shop").empty
