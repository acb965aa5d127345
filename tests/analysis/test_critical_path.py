"""Critical path of traces that pass several services."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelens.analysis.critical_path import (
    DependencySplit,
    PlacedRequest,
    TracedRequest,
    critical_path,
    missing_services,
    path_shares,
    place_requests,
    split_dependency,
)
from stagelens.core.partition import partition

MS = 1_000_000
SERVICES = ("gateway", "ranker", "triton")


def span(stage: str, start: int, end: int, **more: Any) -> dict[str, Any]:
    """Return an interval of a request [ms after the start of the request]."""
    return {"name": stage, "stage": stage, "start_ns": start * MS, "duration_ns": (end - start) * MS, **more}


def request(service: str, parent: str, start: int, end: int, *spans: dict[str, Any]) -> TracedRequest:
    """Return a request whose span has the name of its service [ms]."""
    intervals = [(each["stage"], each["start_ns"], each["start_ns"] + each["duration_ns"]) for each in spans]
    stages = partition(intervals, 0, (end - start) * MS)
    return TracedRequest(service, service, parent, start * MS, (end - start) * MS, stages, spans)


def path(root: PlacedRequest) -> str:
    """Return the pieces of a path: service, stage, start and end [ms]."""
    pieces = critical_path(root)
    return ", ".join(f"{each.services[-1]} {each.stage} {each.start // MS}-{each.end // MS}" for each in pieces)


BODY = {"attributes": {"stagelens.part": "body"}}


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        pytest.param(
            [
                request("gateway", "", 0, 100, span("preprocess", 0, 20), span("dependency", 20, 90)),
                request("ranker", "gateway", 30, 80, span("forward", 0, 40)),
            ],
            "gateway preprocess 0-20, gateway network 20-30, ranker forward 30-70, ranker overhead 70-80, "
            "gateway network 80-90, gateway overhead 90-100",
            id="into the called request",
        ),
        pytest.param(
            [
                request("gateway", "", 0, 100, span("dependency", 0, 60), span("dependency", 0, 90)),
                request("short", "gateway", 5, 55),
                request("long", "gateway", 5, 85),
            ],
            "gateway network 0-5, long overhead 5-85, gateway network 85-90, gateway overhead 90-100",
            id="of parallel calls the one that ended last",
        ),
        pytest.param(
            [
                request("gateway", "", 0, 60, span("dependency", 10, 50)),
                request("ranker", "gateway", 15, 500, span("forward", 0, 485)),
            ],
            "gateway overhead 0-10, gateway network 10-15, ranker forward 15-50, gateway overhead 50-60",
            id="without work after the caller gave up",
        ),
        pytest.param(
            [request("gateway", "", 0, 100, span("dependency", 10, 90)), request("triton", "lost", 40, 60)],
            "gateway overhead 0-10, gateway dependency 10-40, triton overhead 40-60, gateway dependency 60-90, "
            "gateway overhead 90-100",
            id="of a caller that is not retained, in the only open call",
        ),
        pytest.param(
            [
                request("gateway", "", 0, 100, span("dependency", 10, 40), span("dependency", 60, 80, **BODY)),
                request("ranker", "gateway", 15, 75),
            ],
            "gateway overhead 0-10, gateway network 10-15, ranker overhead 15-40, gateway overhead 40-60, "
            "ranker overhead 60-75, gateway network 75-80, gateway overhead 80-100",
            id="through the body of a response, which belongs to its call",
        ),
        pytest.param(
            [TracedRequest("vllm", "a", "", 0, 10 * MS, {"queue": 2 * MS, "decode": 8 * MS}, [span("queue", 0, 2)])],
            "vllm queue 0-2, vllm decode 2-10",
            id="with the stage of a root span as the rest",
        ),
    ],
)
def test_the_critical_path_goes(requests: list[TracedRequest], expected: str) -> None:
    [root] = place_requests(requests)

    assert path(root) == expected


def test_a_body_that_its_call_reads_is_no_call_of_its_own() -> None:
    body = span("dependency", 38, 40, **BODY)
    [root] = place_requests([request("gateway", "", 0, 100, span("dependency", 10, 41), body)])

    assert len(root.calls) == 1


def test_a_request_of_another_clock_is_in_the_middle_of_its_call() -> None:
    [root] = place_requests(
        [
            request("gateway", "", 0, 100, span("dependency", 10, 90)),
            request("ranker", "gateway", 5000, 5060, span("dependency", 10, 50)),
            request("triton", "ranker", 5015, 5045, span("forward", 0, 30)),
        ]
    )

    [ranker] = root.called
    assert (ranker.start // MS, ranker.end // MS, ranker.moved // MS) == (20, 80, -4980)
    assert [(each.service, each.start // MS) for each in root.everything()] == [
        ("gateway", 0),
        ("ranker", 20),
        ("triton", 35),
    ]


@pytest.mark.parametrize(
    ("calls", "called"),
    [
        # Several calls are possible.
        ([span("dependency", 0, 40), span("dependency", 50, 90)], request("ranker", "gateway", 5000, 5020)),
        # A message that is processed later.
        ([span("dependency", 10, 12, id="send")], request("ranker", "send", 40, 200)),
    ],
)
def test_a_request_without_a_certain_call_is_in_none(calls: list[dict[str, Any]], called: TracedRequest) -> None:
    placed = place_requests([request("gateway", "", 0, 100, *calls), called])

    assert [each.service for each in placed] == ["gateway", "ranker"]


def test_a_call_is_found_by_its_id() -> None:
    [root] = place_requests(
        [
            request("gateway", "", 0, 100, span("network", 0, 40, id="a"), span("network", 50, 90, id="b")),
            request("ranker", "b", 5000, 5020),
        ]
    )

    assert [len(call.called) for call in root.calls] == [0, 1]


def test_a_called_service_without_a_part_is_named() -> None:
    copied = span("dependency", 20, 80, attributes={"service.name": "ranker"})
    [root] = place_requests([request("gateway", "", 0, 100, span("network", 10, 90, id="a"), copied)])

    assert "ranker untimed 20-80" in path(root)
    assert missing_services(root, {}) == ["ranker"]


def test_services_that_are_called_in_other_traces_are_missing_where_a_call_is_open() -> None:
    [root] = place_requests([request("gateway", "", 0, 100, span("dependency", 10, 90))])

    assert missing_services(root, {"gateway": ["ranker"]}) == ["ranker"]
    assert missing_services(root, {}) == []


spans = st.builds(
    lambda stage, start, length, more: {**span(stage, start, start + length), **more},
    st.sampled_from(["dependency", "network", "preprocess", "forward", "", "rerank"]),
    st.integers(-10, 120),
    st.integers(0, 130),
    st.sampled_from(
        [{}, {}, {"id": "x"}, {"attributes": {"stagelens.part": "body"}}, {"attributes": {"service.name": "db"}}]
    ),
)
requests = st.builds(
    lambda number, service, parent, start, length, inside: TracedRequest(
        service, f"s{number}", parent, start * MS, length * MS, {"overhead": length * MS}, inside
    ),
    st.integers(0, 5),
    st.sampled_from(SERVICES),
    st.sampled_from(["", "x", "lost", *(f"s{number}" for number in range(6))]),
    st.integers(-50, 150),
    st.integers(0, 120),
    st.lists(spans, max_size=5),
)


@given(st.lists(requests, max_size=8, unique_by=lambda each: each.span_id))
def test_the_pieces_add_up_for_any_requests(found: list[TracedRequest]) -> None:
    roots = place_requests(found)
    placed = [each.request.span_id for root in roots for each in root.everything()]

    assert sorted(each for each in placed if each) == sorted(each.span_id for each in found)
    for root in roots:
        for each in root.everything():
            pieces = critical_path(each)
            assert sum(piece.end - piece.start for piece in pieces) == each.request.duration
            assert [piece.start for piece in pieces] == [
                *([each.start] if pieces else []),
                *(piece.end for piece in pieces[:-1]),
            ]
            assert all(piece.start < piece.end for piece in pieces)


@given(st.lists(spans, max_size=6).map(lambda found: [each for each in found if len(each) == 4]))
def test_the_path_of_a_single_request_is_its_partition(inside: list[dict[str, Any]]) -> None:
    intervals = [
        (each["stage"], each["start_ns"], each["start_ns"] + each["duration_ns"]) for each in inside if each["stage"]
    ]
    stages = partition(intervals, 0, 100 * MS)
    [root] = place_requests([TracedRequest("a", "a", "", 0, 100 * MS, stages or {"overhead": 1}, inside)])
    found = {share.stage: round(share.seconds * 1e9) for share in path_shares([critical_path(root)])}

    assert found == {stage: spent for stage, spent in stages.items() if spent}


def test_dependency_is_split_by_service_host_and_client() -> None:
    calls = (
        span("dependency", 0, 20),
        span("dependency", 20, 60),
        span("dependency", 25, 60, attributes={"server.address": "api.example.com"}),
        span("dependency", 60, 70, attributes={"stagelens.part": "redis"}),
        span("dependency", 70, 75, attributes={"stagelens.part": "body"}),
        span("forward", 80, 100),
    )
    roots = place_requests([request("gateway", "", 0, 100, *calls), request("ranker", "gateway", 2, 18)])

    assert split_dependency(roots) == DependencySplit(
        1, (("api.example.com", 35 / 75), ("ranker", 20 / 75), ("redis", 15 / 75), ("", 5 / 75))
    )
    assert split_dependency(place_requests([request("model", "", 0, 100, span("forward", 0, 100))])) == DependencySplit(
        0, ()
    )
