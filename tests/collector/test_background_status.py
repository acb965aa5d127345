"""Status of a collector in the store: content, limits, and removal at shutdown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from stagelens.collector.background import StatusReporter
from stagelens.collector.config import LiveConfig
from stagelens.collector.scrape.scraper import TargetState
from stagelens.collector.self_metrics import Health, SelfMetrics
from stagelens.store import Batch, Store
from stagelens.store.collectors import FORGOTTEN_AFTER, SILENT_AFTER, Report, Vitals, remove_collector, write_report

START = 1_790_000_000.0


class StatusProbe:
    """Status reporter with a clock set by the test, and its reports."""

    def __init__(self, store: Store) -> None:
        self.now = START
        self.store = store
        self.health = Health()
        self.metrics = SelfMetrics(self.health)
        self.targets: list[TargetState] = []
        self.file = LiveConfig(None, {})
        self.reporter = StatusReporter(
            store,
            metrics=self.metrics,
            health=self.health,
            file=self.file,
            targets=lambda: self.targets,
            clock=lambda: self.now,
        )

    def __call__(self, after: float = 0.0) -> Report:
        """Return the report *after* some seconds."""
        self.now += after
        self.reporter.report()
        (report,) = self.store.read.collectors()
        return report


@pytest.fixture
def status_probe(store: Store) -> StatusProbe:
    return StatusProbe(store)


def test_rates_cover_the_last_minute(status_probe: StatusProbe) -> None:
    """Rates cover the last minute, by signal and, for refusals, by status."""
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
    """Commit time is an upper bound of its 99th percentile; None without commits."""
    quiet = status_probe().vitals
    for seconds in [0.002] * 98 + [0.3] * 2:
        status_probe.metrics.committed([Batch("b")], [False], seconds)
    busy = status_probe(10).vitals

    assert (quiet.commit_p99_seconds, busy.commit_p99_seconds) == (None, 0.5)


def test_a_commit_beyond_all_buckets_is_the_last_bound(status_probe: StatusProbe) -> None:
    """A commit beyond all buckets is reported with the last bound instead of infinity."""
    status_probe()
    status_probe.metrics.committed([Batch("b")], [False], 99.0)

    assert status_probe(10).vitals.commit_p99_seconds == 10.0


def test_failures_are_reported_with_their_start(status_probe: StatusProbe) -> None:
    """An error is reported with the time of its first occurrence, until it is resolved."""
    status_probe.health.failed("committing", "disk full")
    status_probe()
    status_probe.health.failed("committing", "disk still full")
    failing = status_probe(30).vitals.failing
    status_probe.health.succeeded("committing")

    assert failing == (("committing", "disk still full", START),)
    assert status_probe(10).vitals.failing == ()


def test_reported_targets_are_bounded(status_probe: StatusProbe) -> None:
    """The number of reported targets is limited."""
    status_probe.targets = [TargetState(f"http://{n}/", "s", state="down", error="x" * 5000) for n in range(1000)]
    status_probe.targets += [
        TargetState("http://up/", "s", state="up"),
        TargetState("http://theirs/", "s", state="elsewhere"),
    ]
    vitals = status_probe().vitals

    assert vitals.targets_up == 1
    assert len(vitals.targets_down) == 20
    assert max(map(len, vitals.targets_down.values())) == 300


def test_a_restarted_process_replaces_its_row(store: Store) -> None:
    """A restarted process replaces its previous row; two machines with the same name have two rows."""

    def report(name: str, seen: float) -> Report:
        return Report(name, "pod:4318", "1", START, seen)

    with store.transaction() as connection:
        for each in (
            report("dead", START),
            report("alive", START + SILENT_AFTER),
            report("new", START + SILENT_AFTER + 1),
        ):
            write_report(connection, each)

    assert [each.id for each in store.read.collectors()] == ["alive", "new"]


def test_rows_of_stopped_processes_are_deleted_after_a_day(store: Store) -> None:
    """Rows of stopped processes are deleted after a day by other reporters."""
    with store.transaction() as connection:
        write_report(connection, Report("old", "a:1", "1", START, START))
        write_report(connection, Report("new", "b:1", "1", START, START + FORGOTTEN_AFTER + 1))

    assert [each.id for each in store.read.collectors()] == ["new"]


def test_status_reports_round_trip_across_versions(store: Store) -> None:
    """Unknown fields of a newer collector are ignored by an older dashboard."""
    vitals = Vitals({"metrics": 1.5}, {"429": 0.1}, {"metrics x": 2}, failing=(("a", "b", 1.0),), file_errors=("e",))
    with store.transaction() as connection:
        write_report(connection, Report("a", "a:1", "1", START, START, vitals))
        written = connection.exec_driver_sql("SELECT vitals FROM collectors").scalar_one()
        connection.exec_driver_sql("UPDATE collectors SET vitals = ?", (written.replace("{", '{"newer": [1], ', 1),))

    assert store.read.collectors()[0].vitals == vitals


def test_a_stopped_collector_has_no_row_and_a_killed_one_has(store: Store) -> None:
    """Only an orderly shutdown deletes the row; that of a killed process remains."""
    with store.transaction() as connection:
        write_report(connection, Report("stopped", "a:1", "1", START, START))
        write_report(connection, Report("killed", "b:1", "1", START, START))
        remove_collector(connection, "stopped")

    assert [each.id for each in store.read.collectors()] == ["killed"]


def test_a_running_collector_has_a_row_until_it_stops(
    serve: Callable[..., Any], store: Store, until: Callable[[Callable[[], object]], None]
) -> None:
    """A running collector has a row with its host and port until it stops."""
    served = serve()
    until(store.read.collectors)
    (report,) = store.read.collectors()
    served.collector.stop()

    assert report.name.endswith(f":{served.collector.address[1]}")
    assert store.read.collectors() == []
