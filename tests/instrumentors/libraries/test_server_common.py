"""The head of a request: which of its headers count, and how much they are trusted."""

from __future__ import annotations

import asyncio
import enum
import time
from collections.abc import AsyncGenerator, Generator
from types import GeneratorType, MethodType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelens.instrumentors.libraries import proxy_waits
from stagelens.instrumentors.libraries.proxy_waits import MAX_PROXY_WAIT_NS, ProxyClock, proxy_wait_ns, trusted_wait_ns
from stagelens.instrumentors.libraries.server_common import (
    as_handler,
    called_like,
    record_request_head,
)
from stagelens.instrumentors.records import OPEN, Marks

ARRIVED = 5_000_000_000
SECOND_NS, MS = 1_000_000_000, 1_000_000
GET = ["@method", "GET", 0]


def test_a_generator_of_a_handler_stays_one_of_its_name() -> None:
    sent: list[Any] = []

    def steps() -> Generator[int, Any, str]:
        sent.append((yield 1))
        try:
            yield 2
        except LookupError as error:
            sent.append(error)
        try:
            yield 3
        finally:
            sent.append("closed")
        return "result"

    error, own = LookupError(), iter([])
    relayed: Any = as_handler(steps, steps)()
    names = (relayed.__name__, relayed.__qualname__)
    assert (type(relayed), *names) == (GeneratorType, steps.__name__, steps.__qualname__)
    assert (next(relayed), relayed.send(0), relayed.throw(error)) == (1, 2, 3)
    with pytest.raises(StopIteration) as last:
        next(relayed)
    assert (sent, last.value.value) == ([0, error, "closed"], "result")
    assert as_handler(lambda: own, lambda: own)() is own


def test_closing_the_stream_of_a_handler_closes_that_of_the_user() -> None:
    closed: list[str] = []

    async def steps() -> AsyncGenerator[int]:
        try:
            yield 1
        finally:
            closed.append("closed")

    async def drive() -> None:
        stream = as_handler(steps, steps)()
        await anext(stream)
        await stream.aclose()
        assert closed == ["closed"]

    asyncio.run(drive())


class Without(type):
    """A class of classes whose instances have no hash, and do not say what they have."""

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __eq__(cls, other: object) -> bool:
        return cls is other

    def __dir__(cls) -> list[str]:
        return []


class Odd(metaclass=Without):
    def __call__(self, *_: object) -> str:
        return "own"


class Choice(enum.Enum):
    YES = 1

    def __call__(self, *_: object) -> str:
        return "own"


@pytest.mark.parametrize("called", [Odd(), Choice.YES, MethodType(Odd(), "object"), Odd().__call__, repr])
def test_every_callable_object_can_be_timed(called: Any) -> None:
    made = called_like(lambda *_: "timed", called)

    assert made() == "timed"
    assert isinstance(made, type(called)) or made.__self__ is called.__self__


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        ({}, GET),
        *(({"method": method}, ["@method", "_OTHER", 0]) for method in ("BREW", "get", "", "GET /secret")),
        ({"traceparent": "00-a-b-01"}, [*GET, "@traceparent", "00-a-b-01", 0]),
        ({"forced": "please"}, [*GET, "@force", 1, 0]),
        ({"forced": "other"}, GET),
        ({"waited_ns": 7}, [*GET, "queue", ARRIVED - 7, ARRIVED]),
    ],
)
def test_a_head_is_recorded(monkeypatch: pytest.MonkeyPatch, head: dict[str, Any], expected: Marks) -> None:
    monkeypatch.setenv("STAGELENS_FORCE_TRACE", "please")
    marks: Marks = [OPEN, ARRIVED, 0]
    defaults: dict[str, Any] = {"method": "GET", "traceparent": "", "forced": "", "waited_ns": 0}
    start = record_request_head(marks, **defaults | head)

    assert (marks[3:], start) == (expected, ARRIVED - head.get("waited_ns", 0))


def test_a_forced_trace_is_opt_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAGELENS_FORCE_TRACE", "")
    marks: Marks = [OPEN, ARRIVED, 0]
    record_request_head(marks, "GET", "", "", 0)

    assert marks[3:] == GET


@pytest.mark.parametrize(
    ("header", "waited_ns"),
    [
        ("t=1700000000.250", 750_000_000),
        ("1700000000.25", 750_000_000),
        ("1700000000", 1_000_000_000),
        ("1700000000250", 750_000_000),
        ("t=1700000000250000", 750_000_000),
        (" t=1700000000250000000 ", 750_000_000),
        ("t=1700000001.5", 0),
        ("t=1600000000", 0),
        ("t=", 0),
        ("", 0),
        ("nan", 0),
        ("t=1e9", 0),
        ("t=-1700000000", 0),
        ("9" * 4000, 0),
        ("\xff\x00", 0),
        ("\u0661" * 10, 0),
        ("t=1700000000.250, t=1700000000.750", 750_000_000),
        (",1700000000", 0),
    ],
)
def test_the_proxy_header_is_parsed_in_every_unit_and_validated(header: str, waited_ns: int) -> None:
    waited = proxy_wait_ns(header, 1_700_000_001_000_000_000)

    # A float of seconds since 1970 resolves 0.24 microseconds.
    assert abs(waited - waited_ns) < 1_000


@given(st.text(max_size=40), st.integers(1, 2**62))
def test_the_proxy_wait_is_at_most_ten_minutes(header: str, now_ns: int) -> None:
    assert 0 <= proxy_wait_ns(header, now_ns) <= MAX_PROXY_WAIT_NS


@pytest.mark.parametrize(
    ("trusted", "peer", "expected"),
    [
        ("", "10.0.0.7", False),
        ("10.0.0.7, 10.1.0.0/16", "10.0.0.7", True),
        ("10.0.0.7,10.1.0.0/16", ("10.1.2.3", 40_000), True),
        ("10.0.0.7", "::ffff:10.0.0.7", True),
        ("10.0.0.7", "10.0.0.8", False),
        ("10.0.0.7", "", False),
        ("10.0.0.7", "/run/app.sock", False),
        ("unix", "/run/app.sock", True),
        ("nginx,10.0.0.7", ["10.0.0.7", 1], True),
        ("*", "", True),
    ],
)
def test_only_a_trusted_proxy_moves_the_start(
    monkeypatch: pytest.MonkeyPatch, trusted: str, peer: object, expected: bool
) -> None:
    monkeypatch.setattr(proxy_waits, "trusted", proxy_waits.trusted_networks(trusted))
    monkeypatch.setattr(proxy_waits, "clocks", {})

    assert (trusted_wait_ns(f"t={time.time() - 0.5:.3f}", lambda: peer) > 0) is expected


def test_a_constant_wait_is_the_difference_of_the_clocks(caplog: pytest.LogCaptureFixture) -> None:
    skewed, busy = ProxyClock("10.0.0.7"), ProxyClock("10.0.0.8")
    waits = [skewed.wait_ns(3 * SECOND_NS + number * MS) for number in range(30)]
    queued = [busy.wait_ns(SECOND_NS // 2 + number * 50 * MS) for number in range(10)]
    queued += [busy.wait_ns(2 * SECOND_NS + number * 50 * MS) for number in range(20)]

    assert max(waits) < 100 * MS
    assert queued[:10] == [SECOND_NS // 2 + number * 50 * MS for number in range(10)]
    assert queued[-1] == 2 * SECOND_NS + 19 * 50 * MS
    (reported,) = [record.getMessage() for record in caplog.records]
    assert "10.0.0.7 is 3.00 s behind" in reported
