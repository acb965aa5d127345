"""Attributes of finished requests: the requests that ran at each arrival, and the values by which a request is counted."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from stagelens.core.request_histograms import AttributeLimits
from stagelens.instrumentors.agent.attributes import (
    GENERATION_SECONDS,
    MAX_ENDS,
    MAX_GENERATIONS,
    Arrivals,
    attribute_values,
)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50)), max_size=20), st.data())
def test_the_running_requests_are_counted(times: list[tuple[int, int]], data: st.DataObject) -> None:
    requests = [(2 * start, 2 * (start + length) + 1) for start, length in sorted(times)]
    arrivals = Arrivals()
    finished = data.draw(st.permutations(range(len(requests))))
    for number in finished:
        arrivals.end(number, requests[number][1])

    for number, (start, _) in enumerate(requests):
        assert arrivals.running(number, start) == 1 + sum(end > start for _, end in requests[:number])


def test_a_request_that_never_ends_is_no_longer_counted() -> None:
    arrivals = Arrivals()
    for minute in range(MAX_GENERATIONS + 2):
        arrivals.age(minute * GENERATION_SECONDS)
        arrivals.end(minute + 1, 100 * minute + 50)

    assert arrivals.running(20, 10_000) == 20 - (MAX_GENERATIONS + 2)

    arrivals.end(0, 9000)

    assert arrivals.running(20, 10_000) == 20 - (MAX_GENERATIONS + 2)


def test_requests_without_a_record_have_ended_and_others_still_run() -> None:
    arrivals = Arrivals()
    arrivals.age(0.0)
    arrivals.drop(2)
    arrivals.end(2, 5)

    assert (arrivals.running(3, 10), arrivals.running(4, 10)) == (1, 2)

    for minute in range(1, MAX_GENERATIONS + 2):
        arrivals.age(minute * GENERATION_SECONDS)

    assert arrivals.running(3, 10) == 1


def test_the_memory_is_limited() -> None:
    arrivals = Arrivals()
    for number in range(MAX_ENDS + 1):
        arrivals.end(number, 10 * number + 5)

    assert arrivals.running(3, 30) is None
    assert arrivals.running(MAX_ENDS, 10 * MAX_ENDS) == 1


def values(**facts: Any) -> dict[str, str]:
    named = {f"@{key}": value for key, value in facts.items()}
    return dict(attribute_values(named, None, AttributeLimits()))


def test_numbers_are_counted_by_band() -> None:
    assert values(request_size="5000", response_size=0, batch=5, tokens_in=5000, tokens_out=3, queue_length=0) == {
        "request_size": "4096",
        "response_size": "0",
        "batch_size": "4",
        "input_tokens": "4096",
        "output_tokens": "1",
        "queue_length": "0",
    }


def test_what_is_no_number_is_unknown_and_a_huge_one_is_counted() -> None:
    for size in ("", "-1", "1_000", "x", "٣", -1, "9" * 30):
        assert not values(request_size=size)
    for batch in (0, -3, None, "x", object()):
        assert not values(batch=batch)
    assert values(request_size=10**40) == {"request_size": str(1 << 62)}


def test_texts_are_printable_and_empty_ones_have_no_value() -> None:
    assert values(attribute={"tenant": "a\0b", "plan": ""}) == {"tenant": "a\ufffdb"}
    assert values(caller="x=1,stagelens=check%20out") == {"caller": "check out"}
    assert not values(caller="x=1")
