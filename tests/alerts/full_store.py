"""A store with rows in every table, and all results that pages and notifications read from it.

    python -m tests.alerts.full_store tests/alerts/schemas

writes both files. Run this command when a version with changed tables is released, so that tests check whether later versions can
read its store. A later change of a formula or column changes its result in the JSON file.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
from sqlalchemy import MetaData, column, func, select, table, text

from stagelens.alerts.delivery import outbox
from stagelens.alerts.delivery.channels import ChannelEntry
from stagelens.alerts.evaluation.evaluator import Evaluator
from stagelens.alerts.incidents import journal, silences
from stagelens.alerts.objectives.slo import Slo
from stagelens.alerts.objectives.slo_file import Definitions, LiveSloFile
from stagelens.alerts.reader import AlertsReader
from stagelens.store import Batch, Event, Indicator, Point, RetainedTrace, Selection, Series, Store
from tests.alerts.traffic import NOW, request_points

BUCKET = timedelta(seconds=10)
SERIES = (Series("shop", "1", route="/a", status="ok"), Series("shop", "2", route="/b", status="ok"))
SLOS = (Slo("latency", "shop", 0.99, timedelta(days=30), timedelta(milliseconds=250)),)
CHANNELS = tuple(ChannelEntry(name, "webhook", None, "URL") for name in ("pager", "slack"))
PERCENTILES = (0.5, 0.99)
TRACE = "ab" * 16
# Empty unless a write is in progress.
EMPTY = {"intents"}


def clock() -> float:
    return NOW.timestamp()


def fill(store: Store) -> None:
    for number, hours in enumerate((5, 1)):
        start = NOW - timedelta(hours=hours)
        points = [point for step in range(5) for point in _points(start + step * BUCKET, step)]
        store.write([Batch(f"points-{number}", points, [], 3 * number, f"agent-{number}")])
        store.maintain()
    recent = [point for step in range(8) for point in _points(NOW - timedelta(minutes=2) + step * BUCKET, step, 8)]
    start_ns, spans = int(clock()) * 10**9, [{"name": "é"}]
    trace = RetainedTrace(TRACE, "01" * 8, SERIES[0], start_ns, 10**9, "slow", "forward", {"forward": 10**9}, spans)
    store.write(
        [Batch("recent", recent, [trace], 0, "agent-1"), Batch("spans", instance="agent-1", spans=b"some spans")]
    )
    store.add_event(Event(NOW - timedelta(hours=1), "shop", "deploy", "v2", "v2 is out"))
    store.take_target("http://engine/metrics", "me", clock(), 30)
    store.write_reading("http://engine/metrics", "me", clock() + 30, b"read", Batch("reading", instance="agent-1"))
    _alert(store)
    _rest(store)


def _points(at: datetime, step: int, slower: int = 1) -> list[Point]:
    return [
        point
        for number, series in enumerate(SERIES)
        for point in request_points(
            series, at, 20, {"forward": 0.02 * (1 + step % 5), "queue": 0.04 * slower * (1 + number)}
        )
    ]


def _alert(store: Store) -> None:
    Evaluator(store, "me", lease_seconds=30).tick(Definitions(SLOS, CHANNELS), NOW)
    with store.transaction() as connection:
        claimed = outbox.claim_message(connection, "pager", "me", clock(), 60)
        assert claimed is not None
        outbox.mark_sent(connection, claimed, clock())
        ends = NOW + timedelta(hours=1)
        silences.create_silence(
            connection, {"service": "other"}, starts_at=NOW, ends_at=ends, author="ada", comment="work"
        )
    (incident,) = AlertsReader(store, LiveSloFile(None, {})).incidents()
    journal.acknowledge(store, incident.id, "ada", NOW)


def _rest(store: Store) -> None:
    with store.transaction() as connection:
        tables = MetaData()
        tables.reflect(connection)
        for empty in tables.sorted_tables:
            if empty.name in EMPTY or connection.execute(select(func.count()).select_from(empty)).scalar_one():
                continue
            kinds = {each.name: each.type.python_type for each in empty.columns}
            one = {name: b"1" if kind is bytes else kind("1") for name, kind in kinds.items()}
            connection.execute(empty.insert().values(one))


def columns(store: Store) -> dict[str, list[str]]:
    tables = MetaData()
    tables.reflect(store.engine)
    return {
        each.name: list(each.columns.keys())
        for each in tables.sorted_tables
        if each.name != "alembic_version" and not each.name.startswith("points_")
    }


def rows(store: Store, wanted: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    with store.engine.connect() as connection:
        return {
            name: sorted(
                repr(tuple(row)) for row in connection.execute(select(*map(column, names)).select_from(table(name)))
            )
            for name, names in wanted.items()
        }


def results_of(store: Store) -> dict[str, str]:
    read, step = store.read, timedelta(minutes=10)
    around = Selection(NOW - timedelta(hours=6), NOW + timedelta(minutes=1), service="shop")
    trace, state, alerts = read.trace(TRACE), read.state(), AlertsReader(store, LiveSloFile(None, {}))
    slow = read.tally(around, Indicator("latency", 0.1))
    results: dict[str, Any] = {
        "services": read.services(around.start, around.end),
        "versions": read.versions(around),
        "dimensions": read.dimensions(around),
        "latency": sorted(read.latency(around).buckets.items()),
        "breakdown": read.breakdown(around, PERCENTILES),
        "over time": read.breakdown_over_time(around, 0.99, step),
        "dominants": read.dominants(around, PERCENTILES),
        "heat": read.heat(around, step),
        "slow": (slow.total, slow.bad, slow.bad_low, slow.bad_high, slow.last_at),
        "traces": read.exemplars(around),
        "trace": trace and (trace.series, trace.started_ns, trace.duration_ns, trace.stages_ns, trace.spans),
        "events": read.events(around.start, around.end),
        "waiting spans": (store.waiting().size_bytes, store.waiting().oldest),
        "last reading": store.take_target("http://engine/metrics", "me", clock(), 30),
        "agents": (state.last_received, state.instances, state.dropped, state.oldest),
        "incidents": [
            (each.id, each.name, each.service, each.severity, each.state, each.opened_at, each.acked_by)
            for each in alerts.incidents()
        ],
        "what happened": [
            (transition.event, transition.at, transition.note)
            for incident in alerts.incidents()
            for transition in incident.transitions
        ],
        "deliveries": [
            (delivery.channel, delivery.transition, delivery.state)
            for incident in alerts.incidents()
            for delivery in incident.deliveries
        ],
        "silences": [
            (silence.id, silence.matchers, silence.ends_at, silence.author) for silence in alerts.silences(NOW)
        ],
        "storage": [(tier.seconds, tier.rows) for tier in read.storage().tiers],
    }
    return {question: _words(result) for question, result in results.items()}


def _words(result: object) -> str:
    if isinstance(result, pd.DataFrame):
        return result.to_csv(float_format="%.9g")
    return repr(result)


def write_down(folder: Path) -> None:
    with TemporaryDirectory() as scratch:
        file = Path(scratch) / "stagelens.db"
        store = Store.open(f"sqlite:///{file}", clock=clock)
        fill(store)
        results: Mapping[str, str] = results_of(store)
        with store.engine.connect() as connection:
            revision = connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one()
        store.close()
        with closing(sqlite3.connect(file)) as opened:
            statements = "\n".join(opened.iterdump())
    folder.mkdir(exist_ok=True)
    (folder / f"{revision}.sql").write_text(statements + "\n", encoding="utf-8")
    (folder / f"{revision}.json").write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_down(Path(sys.argv[1]))
