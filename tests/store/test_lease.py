"""Leases: one holder at a time, and expiry without renewal."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stagelens.store import Store, lease
from tests.support.raw_requests import OpenSite


@pytest.fixture
def store(open_sql: OpenSite) -> Store:
    return open_sql().store


def hold(store: Store, holder: str, at: float, name: str = "evaluate") -> bool:
    with store.transaction() as connection:
        return lease.hold(connection, name, holder, at, 30.0)


@pytest.mark.parametrize(("at", "taken"), [(29.9, False), (30.0, True)])
def test_a_lease_is_lost_only_by_expiry(store: Store, at: float, taken: bool) -> None:
    first = hold(store, "a", 0.0)

    assert first
    assert hold(store, "b", at) is taken


def test_a_renewed_lease_is_not_lost(store: Store) -> None:
    mine = [hold(store, "a", 20.0 * turn) for turn in range(10)]

    assert all(mine)
    assert not hold(store, "b", 200.0)


@pytest.mark.parametrize(("release", "others"), [(lease.release, [False, False]), (lease.release_all, [False, True])])
def test_a_released_lease_is_free_immediately(store: Store, release: Callable[..., None], others: list[bool]) -> None:
    for name in ("evaluate", "evaluated"):
        hold(store, "a", 0.0, name)
    with store.transaction() as connection:
        release(connection, "evaluate", "b")
    refused = hold(store, "b", 1.0)
    with store.transaction() as connection:
        release(connection, "evaluate", "a")

    assert [refused, hold(store, "b", 1.0, "evaluated")] == others
    assert hold(store, "b", 1.0)
