"""Interning series, and folding what is too many."""

from __future__ import annotations

from collections.abc import Callable

from raw_requests import NOON, Request, Series, Site
from sqlalchemy import select

from stagelens.collector.store import SeriesCaps, schema


def routes(one: Site) -> set[str]:
    """The routes the store tells apart."""
    with one.store.engine.connect() as connection:
        return set(connection.scalars(select(schema.series.c.route)))


def test_past_a_cap_values_fold_and_still_count(site: Callable[..., Site]) -> None:
    """The first values keep their names, also after a restart; the others are one series, and no request is lost."""
    one = site(series_caps=SeriesCaps(route=3))
    for number in range(6):
        one.write([Request({"forward": 1_000_000}, series=Series("shop", route=f"/{number}"))])
        one.reopen()
    one.write([Request({"forward": 1_000_000}, series=Series("shop", route="/1"))])

    assert routes(one) == {"/0", "/1", "/2", "__other__"}
    assert one.store.read.latency(one.around()).count == 7
    assert one.store.read.latency(one.around(route="/1")).count == 2


def test_caps_are_each_services_own(site: Callable[..., Site]) -> None:
    """One service that invents routes takes nothing from another; an unknown value takes no place."""
    one = site(series_caps=SeriesCaps(route=1))
    one.write([Request({"forward": 1}, series=Series("a", route=f"/{number}")) for number in range(5)])
    one.write([Request({"forward": 1}, series=Series("b", route=route)) for route in ("/home", "")])

    assert routes(one) == {"/0", "__other__", "/home", ""}


def test_services_themselves_are_capped(site: Callable[..., Site]) -> None:
    """Past the cap of services the rest is one service."""
    one = site(series_caps=SeriesCaps(services=2))
    one.write([Request({"forward": 1}, series=Series(f"s{number}")) for number in range(5)])
    counts = {name: one.store.read.latency(one.around(service=name)).count for name in ("s0", "s1", "__other__")}

    assert counts == {"s0": 1, "s1": 1, "__other__": 3}


def test_combinations_are_capped_too(site: Callable[..., Site]) -> None:
    """Many values of several dimensions multiply: past the cap only version, environment and status are told apart."""
    one = site(series_caps=SeriesCaps(series=4))
    for model in range(5):
        for route in range(5):
            one.write([Request({"forward": 1}, series=Series("shop", "1", model=f"m{model}", route=f"/{route}"))])
    with one.store.engine.connect() as connection:
        known = connection.execute(select(schema.series.c.model, schema.series.c.route)).all()

    assert len(known) == 5
    assert ("__other__", "__other__") in [tuple(row) for row in known]
    assert one.store.read.latency(one.around(version="1")).count == 25


def test_stages_of_the_users_own_are_capped(site: Callable[..., Site]) -> None:
    """The fixed stages always have their names; beyond the cap a user's own become one, and the breakdown still adds up."""
    one = site(series_caps=SeriesCaps(custom_stages=2))
    for number in range(5):
        one.write([Request({"forward": 5_000_000, f"mine-{number}": 9_000_000, "overhead": 1_000_000})])
        one.reopen()
    frame = one.store.read.breakdown(one.around(), [0.5])
    names = ["forward", "__other__", "mine-0", "mine-1", "overhead"]

    assert frame.columns.tolist()[5:] == names
    assert abs(frame[names].sum(axis=1)[0] / frame["value_seconds"][0] - 1) < 1e-9


def test_endless_values_are_cut(site: Callable[..., Site]) -> None:
    """A value of any length is kept to its first 256 characters; it is still the same series each time."""
    one = site()
    for _ in range(2):
        one.write([Request({"forward": 1}, series=Series("shop", route="/" + "x" * 100_000))])

    assert {len(route) for route in routes(one)} == {256}


def test_a_service_name_may_be_anything(site: Callable[..., Site]) -> None:
    """Quotes, wildcards, line breaks and other scripts are names like any other."""
    one = site()
    names = ["a'b", 'a"b', "a%b", "a_b", "推論", "a\nb", "; DROP TABLE series", "\x00"]
    one.write([Request({"forward": 1}, NOON - 60, Series(name)) for name in names])

    assert [one.store.read.latency(one.around(service=name)).count for name in names] == [1] * len(names)
