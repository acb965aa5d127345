"""Leases: one holder at a time, and expiry without renewal."""

from __future__ import annotations

import pytest

from stagelens.alerts import lease
from stagelens.store import Store


def hold(store: Store, holder: str, at: float) -> bool:
    with store.transaction() as connection:
        return lease.hold(connection, "evaluate", holder, at, 30.0)


@pytest.mark.parametrize(("at", "taken"), [(29.9, False), (30.0, True)])
def test_a_lease_is_lost_only_by_expiry(store: Store, at: float, taken: bool) -> None:
    first = hold(store, "a", 0.0)

    assert first
    assert hold(store, "b", at) is taken


def test_a_renewed_lease_is_not_lost(store: Store) -> None:
    mine = [hold(store, "a", 20.0 * turn) for turn in range(10)]

    assert all(mine)
    assert not hold(store, "b", 200.0)


def test_a_released_lease_is_free_immediately(store: Store) -> None:
    hold(store, "a", 0.0)
    with store.transaction() as connection:
        lease.release(connection, "evaluate", "b")
    refused = hold(store, "b", 1.0)
    with store.transaction() as connection:
        lease.release(connection, "evaluate", "a")

    assert not refused
    assert hold(store, "b", 1.0)
