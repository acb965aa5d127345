"""Marks of a request: stages reported by a server while its response is read are server stages."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stagelens.core.partition import partition
from stagelens.instrumentors.records import OPEN, Marks
from stagelens.instrumentors.request_marks import read_marks

WALL = 100
spans = st.tuples(st.integers(0, WALL), st.integers(0, WALL)).map(sorted).map(tuple[int, ...])


def own_times(*triples: tuple[str, int, int]) -> dict[str, int]:
    marks: Marks = [OPEN, 0, 0, *(value for triple in triples for value in triple)]
    return {stage: spent for stage, spent in partition(read_marks(marks).intervals, 0, WALL).items() if spent}


def test_body_reads_do_not_overlap_reported_server_stages() -> None:
    waits = [
        ("dependency", 0, 10),
        ("dependency@body", 10, 40),
        ("dependency@body", 45, 60),
        ("dependency@body", 60, 90),
    ]

    reported = ("network@rest", 0, 12), ("prefill@reported", 12, 20), ("decode@reported", 20, 70)

    assert own_times(*waits, *reported, ("postprocess", 41, 44)) == {
        "network": 2,
        "dependency": 30,
        "prefill": 8,
        "decode": 47,
        "postprocess": 3,
        "overhead": 10,
    }


def test_a_call_inside_reported_server_stages_is_recorded() -> None:
    assert own_times(("decode@reported", 0, 100), ("dependency", 20, 30)) == {"decode": 90, "dependency": 10}


@given(bodies=st.lists(spans, max_size=5), reported=st.lists(spans, max_size=3))
def test_a_body_read_without_server_stages_is_a_dependency(
    bodies: list[tuple[int, int]], reported: list[tuple[int, int]]
) -> None:
    decoded = {at for start, end in reported for at in range(start, end)}
    waited = {at for start, end in bodies for at in range(start, end)} - decoded
    expected = {"decode": len(decoded), "dependency": len(waited), "overhead": WALL - len(decoded | waited)}
    triples = [("dependency@body", *each) for each in bodies] + [("decode@reported", *each) for each in reported]

    assert own_times(*triples) == {stage: spent for stage, spent in expected.items() if spent}  # pyright: ignore[reportArgumentType]
