"""A reader of some environments sees exactly what a store with only these environments contains."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest
from sqlalchemy import event as engine_events
from sqlalchemy import select

from stagelens.core.names import ENVIRONMENT, SERVICE_NAME
from stagelens.store import Batch, Event, Store, schema
from stagelens.store.engines import database
from stagelens.store.queries.trace_search import TraceFilter
from stagelens.store.reader import filtered_engine
from tests.store.questions import query_results
from tests.support.environments import HIDDEN, fill
from tests.support.raw_requests import NOON, OpenSite, PointAggregator, Request, Series, Site, retained

ENVIRONMENTS = ("prod", "staging", "")
# Queries that count the writes and agents of the whole store; the dashboard does not show them to such a reader.
WHOLE_STORE = {"revision", "revisions", "state"}


def within(one: Site, *environments: str) -> dict[str, object]:
    read = one.store.read.within(frozenset(environments))
    found = query_results(cast("Store", SimpleNamespace(read=read)), one.around())
    return {question: result for question, result in found.items() if question not in WHOLE_STORE}


def wrong_results(open_site: OpenSite, environments: tuple[str, ...]) -> set[str]:
    mixed, alone = open_site(), open_site()
    fill(mixed, ENVIRONMENTS)
    fill(alone, environments, ENVIRONMENTS)
    expected = query_results(alone.store, alone.around())
    return {question for question, result in within(mixed, *environments).items() if result != expected[question]}


def test_a_reader_sees_its_environments_only(open_site: OpenSite) -> None:
    assert wrong_results(open_site, ("prod",)) == set()


@pytest.mark.parametrize("environments", [("staging",), ("prod", "staging")])
def test_a_reader_sees_each_of_its_environments(open_sqlite: OpenSite, environments: tuple[str, ...]) -> None:
    assert wrong_results(open_sqlite, environments) == set()


@pytest.mark.parametrize(
    ("where", "is_shown"),
    [({ENVIRONMENT: "prod"}, True), ({ENVIRONMENT: "staging"}, False), ({ENVIRONMENT: ""}, False), ({}, False)],
    ids=["own", "another", "without", "unknown"],
)
def test_a_part_of_another_environment_has_only_times(sqlite: Site, where: dict[str, str], *, is_shown: bool) -> None:
    call = {"name": "GET", "stage": "network", "start_ns": 0, "duration_ns": 40, "id": "1" * 16, "attributes": {}}
    part = {"name": "/pay", "stage": "dependency", "start_ns": 5, "duration_ns": 31}
    part |= {"attributes": {SERVICE_NAME: "payments", "tenant": "acme"} | where}
    request = Request({"network": 9, "dependency": 31}, series=Series("shop", "1", "prod"))
    kept = replace(retained(request, 3), spans=[call, part])
    sqlite.store.write([Batch("1", PointAggregator().points([request]), [kept])])
    own, around = sqlite.store.read.within(frozenset({"prod"})), sqlite.around()
    found, paths = own.trace(kept.trace_id), own.slow_paths(around, 0.5)
    wanted = TraceFilter(attributes=(("tenant", "acme"),))
    hidden = part | {"name": HIDDEN["name"], "attributes": HIDDEN["attributes"]}

    assert paths is not None
    assert found == replace(kept, spans=[call, part if is_shown else hidden])
    assert own.search_traces(around, wanted).matching == is_shown
    assert {share.service for share in paths.shares} == {"shop", "payments" if is_shown else "another environment"}
    assert sqlite.store.read.trace(kept.trace_id) == kept


def test_no_environment_is_nothing(open_sqlite: OpenSite) -> None:
    mixed, empty = open_sqlite(), open_sqlite()
    fill(mixed, ENVIRONMENTS)
    empty.clock.now = mixed.clock.now
    expected, actual = query_results(empty.store, empty.around()), within(mixed)

    assert {question for question, result in actual.items() if result != expected[question]} <= {"whole"}


def test_an_event_of_all_environments_is_for_readers_of_all(sqlite: Site) -> None:
    fill(sqlite, ("prod", "staging"))
    note = Event(datetime.fromtimestamp(NOON - 600, UTC), "shop", "note", "", "both")
    own = replace(note, service="only-prod", text="one")
    for event in (note, own, replace(note, service="", text="everywhere")):
        sqlite.store.add_event(event)
    around = sqlite.between(NOON - 3600, NOON)

    def texts(*environments: str) -> set[str]:
        events = sqlite.store.read.within(frozenset(environments)).events(around.start, around.end)
        return set(events["text"]) & {"both", "one", "everywhere"}

    assert texts("prod") == {"one"}
    assert texts("staging") == set()
    assert texts("prod", "staging") == {"both", "one"}


def test_an_unknown_table_is_empty(sqlite: Site) -> None:
    fill(sqlite, ("prod",))
    with database.reading(filtered_engine(sqlite.store.engine, frozenset({"prod"}))) as connection:
        found: list[Any] = [connection.execute(select(table)).all() for table in (schema.ledger, schema.batches)]

    assert found[0] == []
    assert {row.instance for row in found[1]} <= {f"prod-{number}" for number in range(6)}


def test_queries_together_equal_single_queries(site: Site) -> None:
    fill(site, ENVIRONMENTS)
    for read in (site.store.read, site.store.read.within(frozenset({"prod"}))):
        with read.together() as shared:
            # The first is read for itself, the second with all services; the prod reader does not see it.
            for service in ("bank", "only-staging"):
                around = site.around(service=service)
                expected = query_results(cast("Store", SimpleNamespace(read=read)), around)
                assert query_results(cast("Store", SimpleNamespace(read=shared)), around) == expected


def test_queries_together_read_points_twice(sqlite: Site) -> None:
    sqlite.write([Request({"forward": 1_000_000}, series=Series(f"service-{number}", "1")) for number in range(6)])
    read: list[str] = []
    engine_events.listen(sqlite.store.engine, "before_cursor_execute", lambda *arguments: read.append(arguments[2]))
    with sqlite.store.read.together() as shared:
        counts = [shared.latency(sqlite.around(service=f"service-{number}")).count for number in range(6)]

    assert counts == [1] * 6
    assert sum("histogram FROM points" in statement for statement in read) == 2


def test_latencies_equal_the_latency_of_each(site: Site) -> None:
    for hours in (-50, -30, -8, -1, 0):
        site.clock.now = NOON + 3600 * hours
        site.write(
            [
                Request({"forward": (2 + number) * 1_000_000}, int(site.clock.now) - 40 * number - 1, series)
                for number, series in enumerate((Series("shop", "1", "prod"), Series("shop", "2"), Series("bank", "1")))
            ]
        )
    site.store.maintain()
    now = int(site.clock.now)
    selections = [
        site.between(now - seconds, now + 10, service=service, **more)
        for seconds in (30, 4000, 40_000, 300_000)
        for service in ("shop", "bank", "unknown")
        for more in ({}, {"version": "1"}, {"environment": "prod"})
    ]
    for read in (site.store.read, site.store.read.within(frozenset({"prod"}))):
        together, single = read.latencies(selections), [read.latency(selection) for selection in selections]

        assert [replace(each, sum=0.0) for each in together] == [replace(each, sum=0.0) for each in single]
        assert [each.sum for each in together] == pytest.approx([each.sum for each in single])
        assert any(each.count for each in single)
        assert read.latencies([]) == []
