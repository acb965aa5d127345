"""Storage format of spans, with errors for other data."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagelens.collector.traces.columns import Label, StreamMeasurements, decode_rows, decode_spans, encode_spans
from stagelens.core.errors import StoreError
from tests.collector.traces.span_trees import SHOP, STOCK, Span, columns

LABELS = [
    Label("POST /", "server", request=True, route="/", attributes=(("http.request.method", "GET"), ("status", 200))),
    Label("1", attributes=(("flag", True),)),
    Label("1", attributes=(("flag", 1),)),
    Label("推論\n\u2028", stage="forward", head="queue", model="m", definition="chunk"),
]
SPANS = columns([
    Span(number, 1, number, number + 5, label, STOCK if number % 2 else SHOP, stream=stream)
    for number, (label, stream) in enumerate(zip(LABELS, (None, StreamMeasurements(1, 2, 3, 4), None, StreamMeasurements(gap_ns=2**40)), strict=True))
])  # fmt: skip


def test_written_columns_are_read_unchanged() -> None:
    blob = encode_spans(SPANS)
    found = decode_spans(blob)

    assert found.rows.tolist() == decode_rows(blob).tolist() == SPANS.rows.tolist()
    assert (found.labels, found.sources) == (SPANS.labels, SPANS.sources)
    assert [label.attributes for label in found.labels] == [label.attributes for label in LABELS]
    assert found.streams.tolist() == SPANS.streams.tolist()


def test_python_equal_labels_stay_distinct() -> None:
    assert len({LABELS[1], LABELS[2], Label("1", attributes=(("flag", True),))}) == 2


@settings(max_examples=60, deadline=None)
@given(at=st.integers(0, 10_000), byte=st.binary(min_size=1, max_size=5), cut=st.integers(0, 300))
def test_damage_is_reported(at: int, byte: bytes, cut: int) -> None:
    whole = encode_spans(SPANS)
    blob = bytearray(whole)
    blob[at % len(blob) : at % len(blob) + len(byte)] = byte
    for damaged in (bytes(blob), whole[:cut], bytes(blob[:-cut])):
        try:
            decode_spans(damaged)
        except StoreError:
            continue


def test_a_newer_format_is_refused() -> None:
    with pytest.raises(StoreError, match=r"format 03.*upgrade"):
        decode_spans(b"\x03" + encode_spans(SPANS)[1:])
