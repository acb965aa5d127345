"""The lease: one holder at a time, lost by silence."""

from __future__ import annotations

import pytest

from stagelens.alerts import lease
from stagelens.store import Store


def hold(store: Store, holder: str, at: float) -> bool:
    with store.transaction() as connection:
        return lease.hold(connection, "evaluate", holder, at, 30.0)


@pytest.mark.parametrize(("at", "taken"), [(29.9, False), (30.0, True)])
def test_a_lease_is_lost_by_silence_only(store: Store, at: float, taken: bool) -> None:
    """Another gets it when its time is over, not before."""
    first = hold(store, "a", 0.0)

    assert first
    assert hold(store, "b", at) is taken


def test_renewing_keeps_it(store: Store) -> None:
    """A holder that renews in time is never overtaken."""
    mine = [hold(store, "a", 20.0 * turn) for turn in range(10)]

    assert all(mine)
    assert not hold(store, "b", 200.0)


def test_giving_it_back_frees_it_at_once(store: Store) -> None:
    """A process that stops leaves no gap, and nobody can give back what another holds."""
    hold(store, "a", 0.0)
    with store.transaction() as connection:
        lease.release(connection, "evaluate", "b")
    refused = hold(store, "b", 1.0)
    with store.transaction() as connection:
        lease.release(connection, "evaluate", "a")

    assert not refused
    assert hold(store, "b", 1.0)
