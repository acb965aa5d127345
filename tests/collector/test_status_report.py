"""Status of a collector in the store: content, limits, and removal at shutdown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from stagelens.collector.config import LiveConfig
from stagelens.collector.open_processes import STOPPED_AFTER, OpenProcesses
from stagelens.collector.scrape.target_states import TargetState
from stagelens.collector.self_metrics import SelfMetrics
from stagelens.collector.status_report import StatusReporter
from stagelens.core.hardware import hardware_key
from stagelens.core.histogram import Histogram
from stagelens.core.names import OPEN_TIME, REQUEST_DURATION
from stagelens.store import Batch, Point, Selection, Series, Store
from stagelens.store.collectors import FORGOTTEN_AFTER, SILENT_AFTER, Report, Vitals, write_report
from stagelens.store.events import MAX_STOPPED

START = 1_790_000_000.0


class StatusProbe:
    """Status reporter with a clock set by the test, and its reports."""

    def __init__(self, store: Store) -> None:
        self.now = START
        self.store = store
        self.metrics = SelfMetrics()
        self.targets: list[TargetState] = []
        self.file = LiveConfig(None, {})
        self.reporter = StatusReporter(
            store,
            metrics=self.metrics,
            file=self.file,
            targets=lambda: self.targets,
            clock=lambda: self.now,
        )

    def __call__(self, after: float = 0.0) -> Report:
        self.now += after
        self.reporter.report()
        (report,) = self.store.read.collectors()
        return report


@pytest.fixture
def status_probe(store: Store) -> StatusProbe:
    return StatusProbe(store)


def test_rates_cover_the_last_minute(status_probe: StatusProbe) -> None:
    status_probe()
    for _ in range(30):
        status_probe.metrics.request("metrics", 200)
    status_probe.metrics.request("traces", 429)
    first = status_probe(10).vitals
    for _ in range(5):
        status_probe(10)
    last = status_probe(10).vitals

    assert first.exports_per_second == {"metrics": 3.0}
    assert first.refused_per_second == {"429": 0.1}
    assert last.exports_per_second == last.refused_per_second == {}


def test_commit_time_is_its_99th_percentile(status_probe: StatusProbe) -> None:
    quiet = status_probe().vitals
    for seconds in [0.002] * 98 + [0.3] * 2:
        status_probe.metrics.committed([Batch("b")], [False], seconds)
    busy = status_probe(10).vitals
    for _ in range(10):
        status_probe.metrics.committed([Batch("b")], [False], 99.0)
    beyond_all_buckets = status_probe(10).vitals

    assert (quiet.commit_p99_seconds, busy.commit_p99_seconds) == (None, 0.5)
    assert beyond_all_buckets.commit_p99_seconds == 10.0


def test_failures_are_reported_with_their_start(status_probe: StatusProbe) -> None:
    status_probe.metrics.health.failed("committing", "disk full")
    status_probe()
    status_probe.metrics.health.failed("committing", "disk still full")
    failing = status_probe(30).vitals.failing
    status_probe.metrics.health.succeeded("committing")

    assert failing == (("committing", "disk still full", START),)
    assert status_probe(10).vitals.failing == ()


def test_reported_targets_are_bounded(status_probe: StatusProbe) -> None:
    status_probe.targets = [TargetState(f"http://{n}/", "s", state="down", error="x" * 5000) for n in range(1000)]
    status_probe.targets += [
        TargetState("http://up/", "s", state="up"),
        TargetState("http://theirs/", "s", state="elsewhere"),
    ]
    vitals = status_probe().vitals

    assert vitals.targets_up == 1
    assert len(vitals.targets_down) == 20
    assert max(map(len, vitals.targets_down.values())) == 300


def test_rows_of_old_processes_are_replaced_or_deleted(store: Store) -> None:
    def report(name: str, seen: float, place: str = "pod:4318") -> Report:
        return Report(name, place, "1", START, seen)

    def write(*reports: Report) -> list[str]:
        with store.transaction() as connection:
            for each in reports:
                write_report(connection, each)
        return [collector.id for collector in store.read.collectors()]

    alive = report("alive", START + SILENT_AFTER)

    assert write(report("dead", START), alive, report("new", START + SILENT_AFTER + 1)) == ["alive", "new"]
    assert write(report("much later", START + SILENT_AFTER + FORGOTTEN_AFTER + 2, "other:1")) == ["much later"]


def test_status_reports_round_trip_across_versions(store: Store) -> None:
    vitals = Vitals({"metrics": 1.5}, {"429": 0.1}, {"metrics x": 2}, failing=(("a", "b", 1.0),), file_errors=("e",))
    with store.transaction() as connection:
        write_report(connection, Report("a", "a:1", "1", START, START, vitals))
        written = connection.exec_driver_sql("SELECT vitals FROM collectors").scalar_one()
        connection.exec_driver_sql("UPDATE collectors SET vitals = ?", (written.replace("{", '{"newer": [1], ', 1),))

    assert store.read.collectors()[0].vitals == vitals


def test_a_running_collector_has_a_row_until_it_stops(
    serve: Callable[..., Any], store: Store, until: Callable[[Callable[[], object]], None]
) -> None:
    served = serve()
    until(store.read.collectors)
    (report,) = store.read.collectors()
    served.collector.stop()

    assert report.name.endswith(f":{served.collector.address[1]}")
    assert store.read.collectors() == []


SHOP = Series("shop", "1", "prod", route="/predict")


class Senders:
    """Processes that send reports to two collectors with one store."""

    def __init__(self, open_store: Callable[..., Store]) -> None:
        self.now, self.sent = START, 0
        self.store = open_store("stopped.db", clock=lambda: self.now)
        self.collectors = (StatusProbe(self.store), StatusProbe(self.store))
        for collector in self.collectors:
            collector.metrics.processes = OpenProcesses(lambda: self.now)

    def send(self, name: str, *ages: float, to: int = 0, ahead: float = 0.0) -> None:
        """Send a report of a process with requests that have been open for *ages*, or else with a finished request."""
        self.sent += 1
        opened, at = Histogram(), int(self.now + ahead)
        for age in ages:
            opened.record(age, 10_000_000)
        finished = Point(SHOP, REQUEST_DURATION, "forward", at, Histogram(buckets={-80: 1}, sum=0.2))
        point = Point(SHOP, OPEN_TIME, hardware_key("open", f"web-1:{name}"), at, replace(opened, sum=0.0))
        batch = Batch(f"{name}-{self.sent}", [point if ages else finished], instance=name)
        self.collectors[to].metrics.committed([batch], self.store.write([batch]), 0.01)

    def wait(self, seconds: int = 10) -> None:
        for _ in range(seconds // 10):
            self.now += 10
            for collector in self.collectors:
                collector.now = self.now
                collector.reporter.report()

    def stopped(self) -> list[tuple[str, int, float]]:
        now = datetime.fromtimestamp(self.now, UTC)
        found = self.store.read.stopped(Selection(now - timedelta(days=1), now, "shop", environment="prod"))
        return [(row["place"], row["requests"], row["oldest_seconds"]) for row in found.to_dict("records")]


@pytest.fixture
def senders(open_store: Callable[..., Store]) -> Senders:
    return Senders(open_store)


def test_a_process_that_misses_its_reports_is_named(senders: Senders, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        senders.wait()
        for name in ("killed", "ended", "moved"):
            senders.send(name, 2.0, 95.0)
        senders.send("skewed", 1.0, ahead=-3600)
        senders.send("idle")
    senders.send("ended", ahead=1.0)
    for _ in range(10):
        senders.wait()
        senders.send("moved", 3.0, to=1)
        senders.send("skewed", 1.0, ahead=-3600)

    assert senders.stopped() == [("web-1:killed", 2, pytest.approx(95.0, rel=0.022))]
    assert [record.message.partition(",")[0] for record in caplog.records if "stopped" in record.message] == [
        "collector: process web-1:killed of shop stopped sending with open requests (2"
    ]


def test_a_process_that_reports_again_has_not_stopped(senders: Senders) -> None:
    senders.send("frozen", 1.0)
    senders.wait(STOPPED_AFTER + 10)
    noticed = senders.stopped()
    senders.send("frozen", 71.0)
    senders.wait()

    assert [place for place, *_ in noticed] == ["web-1:frozen"]
    assert senders.stopped() == []


def test_stopped_processes_are_bounded(senders: Senders, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(MAX_STOPPED + 10):
        senders.send(str(number), 1.0)
    senders.wait(STOPPED_AFTER + 10)

    assert len(senders.stopped()) == MAX_STOPPED
    assert caplog.text.count("stopped sending") == 1
