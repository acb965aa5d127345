"""Any response of a server, in every dialect: no exception, no warning, and no impossible number."""

from __future__ import annotations

import itertools
import json
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai._models import construct_type
from openai.types.chat import ChatCompletionChunk
from openai.types.responses import ResponseCompletedEvent, ResponseTextDeltaEvent

from stagelens.core.partition import partition
from stagelens.core.stages import BY_KEY
from stagelens.instrumentors import instrumentor, records
from stagelens.instrumentors.libraries import client_common
from stagelens.instrumentors.libraries.client_common import LineStream, RespondedCall, TokenStream, record_headers
from stagelens.instrumentors.libraries.server_reports import (
    BODIES,
    HEADERS,
    SERVER_TIMING,
    TO_FIRST,
    TOTAL,
    ReportDialect,
    Wait,
)
from stagelens.instrumentors.request_marks import read_marks

START = 1_000_000
WALL = 20_000_000
# As JSON may have them: NaN and Infinity too, which Python reads.
numbers = st.one_of(st.floats(), st.integers(-10, 10**30), st.integers(0, 30), st.booleans(), st.none())
anything = st.recursive(
    numbers | st.text(max_size=6) | st.floats(0, 30).map(str),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=3,
)


@st.composite
def bodies(draw: st.DrawFn) -> dict[str, Any]:
    """Return an object with the fields of some dialects, at their places or elsewhere, and anything in them."""
    body: dict[str, Any] = draw(st.dictionaries(st.sampled_from(["usage", "choices", "delta", "id"]), anything))
    for dialect in draw(st.lists(st.sampled_from(BODIES), max_size=3)):
        fields: dict[str, Any] = {field.name: draw(anything) for field in dialect.fields if draw(st.booleans())}
        at = body
        for key in draw(st.sampled_from(dialect.places)):
            at[key] = at = at[key] if isinstance(at.get(key), dict) else {}
        at.update(fields)
    return body


@contextmanager
def nothing_reported() -> Generator[None]:
    places: set[str] = set()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(instrumentor, "_reported", places)
        patch.setattr(client_common, "clock", itertools.count(START + WALL // 10, WALL // 20).__next__)
        yield

    assert places == set()


def a_call(wall: int = WALL) -> tuple[RespondedCall, records.Marks]:
    """Return a call that took *wall*, and the marks of its request."""
    marks: records.Marks = [records.OPEN, START, 0, "dependency", START, START + wall]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_common, "clock", lambda: START + wall // 2)
        call = RespondedCall(marks, START, {})
    call.ended = START + wall
    return call, marks


def assert_possible(marks: records.Marks) -> None:
    """Check that the recorded stages are sequential and within the call."""
    added = list(zip(marks[6::3], marks[7::3], marks[8::3], strict=True))
    stages = [mark for mark in added if not mark[0].startswith("@")]

    assert all(START <= start < end <= START + WALL for _, start, end in stages)
    assert all(before[2] == after[1] for before, after in itertools.pairwise(stages))
    assert sum(partition(read_marks(marks).intervals, START, START + WALL).values()) == WALL
    assert all(type(first) is int and first >= 0 for key, first, _ in added if key.startswith(("@tokens", "@gap")))


values = st.one_of(numbers.map(str), st.decimals(0, 100, allow_nan=False, places=3).map(str), st.text(max_size=8))
headers_of_any_dialect = st.dictionaries(
    st.sampled_from([field.name for dialect in HEADERS if dialect is not SERVER_TIMING for field in dialect.fields]),
    values,
)
metrics = st.lists(
    st.tuples(st.sampled_from([*BY_KEY, "total", "db"]), values).map(lambda pair: f"{pair[0]};dur={pair[1]}")
)


@settings(deadline=None)
@given(headers=headers_of_any_dialect, timing=metrics, first=st.floats(0, 1))
def test_any_response_headers_are_parsed_without_an_error(
    headers: dict[str, str], timing: list[str], first: float
) -> None:
    _, marks = a_call()
    headers |= {"Server-Timing": ",".join(timing)} if timing else {}
    with nothing_reported():
        used = record_headers(headers, marks, Wait(START, START + WALL, START + round(WALL * first)))

    assert_possible(marks)
    assert used or all(key.startswith("@") for key in marks[6::3])


@settings(deadline=None)
@given(body=bodies(), cut=st.integers(0, 400), inserted=st.binary(max_size=3))
def test_any_response_body_is_parsed_without_an_error(body: dict[str, Any], cut: int, inserted: bytes) -> None:
    text = json.dumps(body).encode()
    for content in (text, text[:cut], text[:cut] + inserted + text[cut:]):
        call, marks = a_call()
        with nothing_reported():
            call.read(content)

        assert_possible(marks)


@settings(deadline=None)
@given(
    texts=st.lists(
        st.one_of(
            bodies().map(json.dumps),
            bodies().map(lambda body: f"data: {json.dumps(body)}"),
            st.text(max_size=20),
            st.sampled_from(
                ['{"response": "a"}', "", "data: [DONE]", 'data: {"choices": [{"delta": {"content": "a"}}']
            ),
        ),
        max_size=5,
    ),
    cut=st.integers(0, 100),
)
def test_any_response_lines_are_parsed_without_an_error(texts: list[str], cut: int) -> None:
    for lines in (texts, [line.encode()[: cut or None] for line in texts]):
        call, marks = a_call()
        with nothing_reported():
            stream = LineStream(call)
            for line in lines:
                stream.line(line)
            stream.end()

        assert_possible(marks)


@settings(deadline=None)
@given(
    parts=st.lists(bodies(), max_size=3),
    kind=st.sampled_from([ChatCompletionChunk, ResponseTextDeltaEvent, ResponseCompletedEvent]),
)
def test_any_openai_stream_parts_are_parsed_without_an_error(parts: list[dict[str, Any]], kind: Any) -> None:
    call, marks = a_call()
    with nothing_reported():
        stream = TokenStream(marks, call)
        for part in parts:
            for more in ({}, {"type": "response.output_text.delta"}, {"choices": [{"delta": part}]}):
                stream.part(construct_type(type_=kind, value={**part, **more}))
        stream.end()

    assert_possible(marks)


@pytest.mark.parametrize(
    "dialect", [each for each in (*HEADERS, *BODIES) if each.generates], ids=lambda each: each.name
)
@settings(max_examples=30, deadline=None)
@given(share=st.floats(0.51, 0.99), fields=st.data(), up=st.booleans())
def test_times_in_a_wrong_unit_are_refused(
    dialect: ReportDialect, share: float, fields: st.DataObject, *, up: bool
) -> None:
    stages = [field for field in dialect.fields if field.stage not in {TOTAL, TO_FIRST}]
    parts = fields.draw(st.lists(st.floats(0, 1), min_size=len(stages), max_size=len(stages)).filter(sum))
    factor = share * WALL / sum(parts) * (1000 if up else 0.001)
    reported = {field.name: part * factor / field.unit_ns for field, part in zip(stages, parts, strict=True)}
    reported.setdefault(dialect.known_by, 0.0)
    call, marks = a_call()
    if dialect.places:
        for key in reversed(dialect.places[0]):
            reported = {key: reported}  # pyright: ignore[reportAssignmentType]
        call.read(json.dumps(reported))
    else:
        record_headers({name: str(value) for name, value in reported.items()}, marks, Wait(START, START + WALL))

    assert marks[6::3] == ["@suspect"]


def test_an_oversized_body_is_not_parsed() -> None:
    timings = {"timings": {"prompt_ms": 1.0, "predicted_ms": 2.0}}
    short, long = (json.dumps({"content": "a" * size, **timings}).encode() for size in (1000, 10_000_000))

    def added(body: bytes) -> Iterable[str]:
        call, marks = a_call()
        call.read(body)
        return marks[6::3]

    assert (list(added(short)) != [], list(added(long))) == (True, [])


def test_a_deeply_nested_body_is_not_parsed() -> None:
    call, marks = a_call()
    with nothing_reported():
        call.read("[" * 100_000 + '"load_duration"')

    assert len(marks) == 6


def test_every_stage_of_a_dialect_is_a_known_stage() -> None:
    named = {
        stage for dialect in (*HEADERS, *BODIES) for field in dialect.fields for stage in (field.stage, field.brief)
    }

    assert named <= {*BY_KEY, TOTAL, TO_FIRST, ""}
    assert {field.name for field in SERVER_TIMING.fields} <= {*BY_KEY, TOTAL}
