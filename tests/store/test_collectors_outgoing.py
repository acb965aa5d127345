"""Bodies that wait for forwarding, on every engine: stored atomically with their batch and returned in order."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stagelens.store import Batch
from stagelens.store.backup import copy_store
from stagelens.store.collectors import (
    Backlog,
    Outgoing,
    drop_oldest,
    drop_unknown_destinations,
    hold_destination,
    oldest_bodies,
    read_backlogs,
    release_destinations,
    remove_bodies,
    store_identity,
)
from stagelens.store.engines import database
from tests.support.raw_requests import NOON, Site


def body(number: int, destination: str = "a", size: int = 10) -> Outgoing:
    return Outgoing(destination, "metrics", "application/json", bytes([number]) * size, via="0" * 16)


def waiting(site: Site, max_bytes: int = 1000, max_bodies: int = 100) -> list[int]:
    """Return the first byte of each body that waits for destination a."""
    with database.reading(site.store.engine) as connection:
        return [each.body[0] for each in oldest_bodies(connection, "a", max_bodies, max_bytes)]


def test_bodies_are_stored_with_their_batch(site: Callable[..., Site]) -> None:
    one = site()

    def fail(_: object) -> None:
        msg = "not committed"
        raise ArithmeticError(msg)

    with pytest.raises(ArithmeticError):
        one.store.write([Batch("1", onward=[body(9)])], fail)
    assert waiting(one) == []
    assert one.store.write([Batch("1", onward=[body(1), body(1, "b")]), Batch("2", onward=[body(2)])]) == [True, True]
    assert one.store.write([Batch("1", onward=[body(3)])]) == [False]
    assert waiting(one) == [1, 2]
    with database.reading(one.store.engine) as connection:
        (first, _) = oldest_bodies(connection, "a", 100, 1000)
        found = read_backlogs(connection)

    assert (first.signal, first.media_type, first.via, first.received) == (
        "metrics",
        "application/json",
        "0" * 16,
        NOON,
    )
    assert found == {"a": Backlog(2, 20, NOON), "b": Backlog(1, 10, NOON)}


def test_bodies_are_returned_oldest_first_and_bounded(site: Callable[..., Site]) -> None:
    one = site()
    one.store.write([Batch("1", onward=[body(1, size=50), *(body(number) for number in range(2, 8))])])

    assert waiting(one, max_bytes=5) == [1]
    assert waiting(one, max_bytes=70) == [1, 2, 3]
    assert waiting(one, max_bodies=2) == [1, 2]
    with one.store.transaction() as connection:
        numbers = [each.id for each in oldest_bodies(connection, "a", 2, 1000)]
        remove_bodies(connection, numbers)
        remove_bodies(connection, numbers)
    assert waiting(one) == [3, 4, 5, 6, 7]
    with one.store.transaction() as connection:
        assert drop_oldest(connection, "a", 25) == 3
        assert drop_oldest(connection, "a", 25) == 0
    assert waiting(one) == [6, 7]


def test_one_collector_leases_a_destination(site: Callable[..., Site]) -> None:
    one = site()

    def holds(who: str, now: float) -> bool:
        with one.store.transaction() as connection:
            return hold_destination(connection, "a", who, now, 60)

    assert [holds("x", 100), holds("y", 159), holds("x", 150), holds("y", 205)] == [True, False, True, False]
    assert [holds("y", 211), holds("x", 211)] == [True, False]
    with one.store.transaction() as connection:
        release_destinations(connection, "y")
    assert holds("x", 212)
    assert holds("y", 212 - 200_000)


def test_bodies_for_removed_destinations_expire(site: Callable[..., Site]) -> None:
    one = site()
    one.store.write([Batch("1", onward=[body(1), body(2, "gone")])])
    with one.store.transaction() as connection:
        assert drop_unknown_destinations(connection, ["a"], NOON) == 0
        assert drop_unknown_destinations(connection, ["a"], NOON + 1) == 1
        assert set(read_backlogs(connection)) == {"a"}


def test_a_copy_has_the_waiting_bodies_and_a_new_collector_id(
    site: Callable[..., Site], target_site: Callable[..., Site]
) -> None:
    one, other = site(), target_site()
    one.store.write([Batch("1", onward=[body(1), body(2)])])
    with one.store.transaction() as connection:
        hold_destination(connection, "a", "x", NOON, 60)
    copy_store(one.store, other.store, lambda *_: None)
    names: list[str] = []
    for each in (one, other):
        with database.reading(each.store.engine) as connection:
            names.append(store_identity(connection))

    assert waiting(other) == [1, 2]
    assert names[0] != names[1]
    assert all(len(name) == 16 for name in names)
    with other.store.transaction() as connection:
        assert hold_destination(connection, "a", "y", NOON, 60)
