"""Limit of services per sender."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelens.collector.server import auth
from stagelens.collector.server.auth import FORGOTTEN_SECONDS, MAX_SERVICES, Sender, ServiceShares

A: Sender = ("token", "a")
B: Sender = ("address", "10.0.0.7")


def test_each_sender_has_a_separate_share() -> None:
    """A sender may continue to use its services, those beyond its share are refused, and others have their own share."""
    shares = ServiceShares(lambda: 0.0)
    admitted = sum(shares.admit(A, f"invented-{number}") for number in range(10_000))

    assert admitted == MAX_SERVICES
    assert shares.admit(A, "invented-0")
    assert not shares.admit(A, "invented-9999")
    assert shares.admit(B, "honest")
    assert shares.greedy() == ["token a"]


def test_a_service_unused_for_a_day_frees_its_place() -> None:
    """A service that is unused for a day frees its place."""
    now = [0.0]
    shares = ServiceShares(lambda: now[0])
    for number in range(MAX_SERVICES + 1):
        shares.admit(A, str(number))
    now[0] = FORGOTTEN_SECONDS - 1
    shares.admit(A, "0")
    now[0] = FORGOTTEN_SECONDS

    assert shares.greedy() == []
    assert all(shares.admit(A, f"new-{number}") for number in range(MAX_SERVICES - 1))
    assert not shares.admit(A, "one more")
    assert shares.admit(A, "0")


def test_a_flood_of_senders_shares_one_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Senders beyond the memory limit share one share; known senders lose nothing, and places are free after a day."""
    monkeypatch.setattr(auth, "_MAX_SENDERS", 10)
    now = [0.0]
    shares = ServiceShares(lambda: now[0])
    shares.admit(("token", "known"), "shop")
    admitted = sum(shares.admit(("address", f"10.0.{number}"), f"invented-{number}") for number in range(10_000))

    assert admitted == 9 + MAX_SERVICES
    assert shares.admit(("token", "known"), "desk")
    assert shares.greedy() == ["many addresses"]

    now[0] = FORGOTTEN_SECONDS

    assert shares.admit(("token", "honest"), "till")


@given(st.lists(st.tuples(st.sampled_from([A, B]), st.integers(0, 400), st.floats(0, 50_000)), max_size=300))
def test_a_sender_uses_at_most_its_share_per_day(calls: list[tuple[Sender, int, float]]) -> None:
    """Within any day a sender uses at most its share of services."""
    now, named = 0.0, dict[Sender, list[tuple[float, str]]]()
    shares = ServiceShares(lambda: now)
    for sender, number, seconds in calls:
        now += seconds
        if shares.admit(sender, str(number)):
            named.setdefault(sender, []).append((now, str(number)))
        recent = {name for at, name in named.get(sender, ()) if now - at < FORGOTTEN_SECONDS}

        assert len(recent) <= MAX_SERVICES


def test_services_of_the_store_are_always_admitted() -> None:
    """Services in the store are always admitted, so that a gateway continues after a restart."""
    shares = ServiceShares(lambda: 0.0, known=[f"old-{number}" for number in range(300)])

    assert all(shares.admit(A, f"old-{number}") for number in range(300))
    assert sum(shares.admit(A, f"new-{number}") for number in range(300)) == MAX_SERVICES
