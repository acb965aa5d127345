"""A uid with a run equals the original uid, and the run is delivered to the waiting request."""

from __future__ import annotations

import pickle
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from stagelens.instrumentors.api import request
from stagelens.instrumentors.tickets import TicketsById, batch, ticket, with_run

if TYPE_CHECKING:
    from conftest import Finished

UIDS = ["a text", UUID(int=7)]


@pytest.mark.parametrize("uid", [*UIDS, 7, ("a", 7)])
def test_a_uid_with_a_run_is_found_under_the_uid(uid: Hashable) -> None:
    with batch([]) as run:
        pass
    carrier = with_run(uid, run)
    arrived = pickle.loads(pickle.dumps(carrier))  # noqa: S301 - our own

    assert {uid: "found"}[carrier] == {uid: "found"}[arrived] == "found"
    assert str(carrier) == str(arrived) == str(uid)


@pytest.mark.usefixtures("finished")
@pytest.mark.parametrize("uid", UIDS)
def test_a_result_with_a_uid_is_delivered_once(uid: Any) -> None:
    waiting = TicketsById("a library")
    with request("asks"):
        own, other = ticket(), ticket()
        waiting.add(uid, own)
        waiting.add("another", other)
        with batch([]) as run:
            pass
        waiting.responded(uid)

        assert not own.runs()

        for _ in range(2):
            waiting.responded(pickle.loads(pickle.dumps(with_run(uid, run))))  # noqa: S301 - our own

        assert (len(own.runs()), len(other.runs())) == (1, 0)


def test_finished_requests_are_not_retained(finished: Finished) -> None:
    waiting = TicketsById("a library")
    with request("leaves"):
        waiting.add("uid", ticket())

        assert waiting.get("uid") is not None

    finished.clear()

    assert waiting.get("uid") is None
