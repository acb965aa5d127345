"""Share of the services that each sender has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelens.collector.server import service_shares
from stagelens.collector.server.service_shares import FORGOTTEN_SECONDS, MIN_SERVICES, Sender, ServiceShares

A: Sender = ("token", "a")
B: Sender = ("address", "10.0.0.7")
C: Sender = ("certificate", "c")


def number_admitted(shares: ServiceShares, sender: Sender, services: int = 10_000) -> int:
    return sum(shares.admit(sender, f"{sender}-{number}") for number in range(services))


def test_a_sender_has_as_many_services_as_it_leaves() -> None:
    shares = ServiceShares(lambda: 0.0, places=100)

    assert [number_admitted(shares, sender) for sender in (A, B, C)] == [50, 25, 13]
    assert number_admitted(shares, A, 50) == 50
    assert shares.greedy() == ["token a", "address 10.0.0.7", "certificate c"]


def test_a_service_unused_for_a_day_frees_its_place() -> None:
    now = [0.0]
    shares = ServiceShares(lambda: now[0], places=100)
    number_admitted(shares, A)
    now[0] = FORGOTTEN_SECONDS - 1
    shares.admit(A, f"{A}-0")
    now[0] = FORGOTTEN_SECONDS
    shares.update([], [])

    assert shares.greedy() == []
    assert number_admitted(shares, B) == 50
    assert shares.admit(A, f"{A}-0")


def test_a_flood_of_senders_shares_one_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_shares, "_MAX_SENDERS", 10)
    now = [0.0]
    shares = ServiceShares(lambda: now[0], places=100)
    shares.admit(("token", "known"), "shop")
    admitted = sum(shares.admit(("address", f"10.0.{number}"), f"invented-{number}") for number in range(10_000))

    assert admitted == 9 + 45
    assert shares.admit(("token", "known"), "desk")
    assert shares.greedy() == ["many addresses"]

    now[0] = FORGOTTEN_SECONDS

    assert shares.admit(("token", "honest"), "till")


@given(
    st.lists(
        st.tuples(st.sampled_from([A, B, ("token", "d")]), st.integers(0, 60), st.floats(0, 50_000), st.booleans()),
        max_size=300,
    )
)
def test_others_and_known_services_always_have_a_place(uses: list[tuple[Sender, int, float, bool]]) -> None:
    now, stored = 0.0, dict[str, float]()

    def clock() -> float:
        return now

    shares = ServiceShares(clock, places=20)
    for sender, number, seconds, restarts in uses:
        now += seconds
        if restarts:
            shares = ServiceShares(clock, places=20)
            shares.update(stored, [name for name, at in stored.items() if now - at < FORGOTTEN_SECONDS])
        if shares.admit(sender, str(number)):
            stored[str(number)] = now

    shares.update(stored, stored)
    assert all(shares.admit(B, name) for name in stored)
    assert number_admitted(shares, C) >= MIN_SERVICES
