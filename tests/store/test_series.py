"""Series ids, and the aggregation of series beyond caps."""

from __future__ import annotations

import sqlite3
from random import Random

import pytest
from sqlalchemy import event, select

from stagelens.core.errors import StoreError
from stagelens.core.stages import OTHER
from stagelens.store import Batch, RetainedTrace, SeriesCaps, schema
from stagelens.store.series import REMEMBERED_FACTOR
from tests.store.store_contents import number as number_of
from tests.support.raw_requests import NOON, NS, OpenSite, PointAggregator, Request, Series, Site


def routes(one: Site) -> set[str]:
    with one.store.engine.connect() as connection:
        return set(connection.scalars(select(schema.series.c.route)))


def test_values_over_the_cap_of_a_service_are_aggregated_and_counted(open_site: OpenSite) -> None:
    one = open_site(series_caps=SeriesCaps(route=3))
    for number in range(6):
        one.write([Request({"forward": 1_000_000}, series=Series("shop", route=f"/{number}"))])
        one.reopen()
    again = [Series("shop", route="/1"), Series("bank", route="/home"), Series("bank", route="")]
    one.write([Request({"forward": 1_000_000}, series=series) for series in again])

    assert routes(one) == {"/0", "/1", "/2", "__other__", "/home", ""}
    assert one.store.read.latency(one.around()).count == 9
    assert one.store.read.latency(one.around(route="/1")).count == 2


def test_services_themselves_are_capped(open_site: OpenSite) -> None:
    one = open_site(series_caps=SeriesCaps(services=1))
    names = [f"s{number}" for number in range(REMEMBERED_FACTOR + 2)]
    for _ in range(2):
        one.write([Request({"forward": 1}, series=Series(name)) for name in names])
        one.reopen()
    counts = {name: one.store.read.latency(one.around(service=name)).count for name in (names[0], names[-3], OTHER)}

    assert counts == {names[0]: 2, names[-3]: 2, OTHER: 4}
    assert [str(dimension) for dimension in one.store.read.capped_dimensions()] == [
        "The store has more than 1 services"
    ]


def test_invented_services_free_their_places(open_site: OpenSite) -> None:
    one = open_site(series_caps=SeriesCaps(services=1))
    for _ in range(2):
        one.write([Request({"forward": 1}, int(one.clock.now), Series(name)) for name in ("old", "older")])
        one.clock.now += 7200
    invented = [f"invented-{number}" for number in range(REMEMBERED_FACTOR - 3)]
    one.write([Request({"forward": 1}, int(one.clock.now), Series(name)) for name in invented])
    one.clock.now += 90_000
    one.write([Request({"forward": 1}, int(one.clock.now), Series("used"))])
    one.store.maintain()
    one.write([Request({"forward": 1}, int(one.clock.now), Series("new"))])

    assert {"old", "older", "used", "new"} < set(one.store.services())
    assert OTHER not in one.store.services()
    assert one.store.services(int(one.clock.now) - 60) == ["new", "used"]


def test_combinations_are_capped_too(open_site: OpenSite) -> None:
    one = open_site(series_caps=SeriesCaps(series=4))
    for model in range(5):
        for route in range(5):
            one.write([Request({"forward": 1}, series=Series("shop", "1", model=f"m{model}", route=f"/{route}"))])
    with one.store.engine.connect() as connection:
        known = connection.execute(select(schema.series.c.model, schema.series.c.route)).all()

    assert len(known) == 5
    assert ("__other__", "__other__") in [tuple(row) for row in known]
    assert one.store.read.latency(one.around(version="1")).count == 25
    assert [str(dimension) for dimension in one.store.read.capped_dimensions()] == [
        "shop has more than 4 combinations of model, route and device"
    ]


def test_custom_stages_are_capped(open_site: OpenSite) -> None:
    one = open_site(series_caps=SeriesCaps(custom_stages=2))
    for number in range(5):
        one.write([Request({"forward": 5_000_000, f"mine-{number}": 9_000_000, "overhead": 1_000_000})])
        one.reopen()
    frame = one.store.read.breakdown(one.around(), [0.5])
    names = ["forward", "__other__", "mine-0", "mine-1", "overhead"]

    assert frame.columns.tolist()[5:] == names
    assert abs(frame[names].sum(axis=1)[0] / frame["value_seconds"][0] - 1) < 1e-9


def test_a_service_name_can_be_any_text(site: Site) -> None:
    names = ["a'b", 'a"b', "a%b", "a_b", "推論", "a\nb", "; DROP TABLE series", "\x00"]
    site.write([Request({"forward": 1}, NOON - 60, Series(name)) for name in names])

    assert [site.store.read.latency(site.around(service=name)).count for name in names] == [1] * len(names)


def test_the_longest_names_of_any_script_fit(site: Site) -> None:
    random = Random(7)
    names = ["".join(chr(random.randrange(0x20000, 0x2A000)) for _ in range(500)) for _ in range(8)]
    for _ in range(2):
        site.write([Request({"forward": 1, names[7]: 1}, series=Series(*names[:7]))])

    assert number_of(site, schema.series) == 1
    assert {len(route) for route in routes(site)} == {64}
    assert site.store.read.latency(site.around(service=names[0], route=names[5])).count == 2


def test_invalid_characters_are_replaced_everywhere(site: Site) -> None:
    odd = "a\0b\ud800"
    series = Series(*[odd] * 7)
    trace = RetainedTrace(odd, odd, series, NOON * NS, 5, odd, odd, {odd: 5}, [{"name": odd}], {odd: odd})
    batch = Batch(odd, PointAggregator().points([Request({odd: 1_000_000}, series=series)]), [trace], instance=odd)
    accepted = [site.store.write([batch]), site.store.write([batch]), site.another().store.write([batch])]
    exemplars = site.store.read.exemplars(site.between(NOON - 60, NOON + 60, service=odd), dominant=odd)
    breakdown = site.store.read.breakdown(site.around(version=odd, environment=odd, model=odd, route=odd), [0.5])

    assert accepted == [[True], [False], [False]]
    assert exemplars[["trace_id", "service", "version", "route", "dominant"]].to_numpy().tolist() == [["a\ufffdb?"] * 5]
    assert "a\ufffdb?" in breakdown.columns
    assert site.store.read.revision(odd) > 0
    assert site.store.read.trace(f"{odd}12345678") is None


def test_the_times_of_a_series_survive_a_failed_write(sqlite: Site) -> None:
    sqlite.store.write([Batch("a", PointAggregator().points([Request({"forward": 1000}, NOON - 600)]))])
    later = Batch("b", PointAggregator().points([Request({"forward": 1000}, NOON - 60)]))

    def refuse(*_: object) -> None:
        msg = "the disk is gone"
        raise sqlite3.OperationalError(msg)

    event.listen(sqlite.store.engine, "commit", refuse)
    with pytest.raises(StoreError):
        sqlite.store.write([later])
    event.remove(sqlite.store.engine, "commit", refuse)
    sqlite.store.write([later])

    with sqlite.store.engine.connect() as connection:
        seen = connection.exec_driver_sql("SELECT first_seen, last_seen FROM series").all()
    assert [tuple(row) for row in seen] == [(NOON - 600, NOON - 60)]
