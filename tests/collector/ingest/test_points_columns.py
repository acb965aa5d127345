"""Reading points as columns gives the same result as reading each point alone, in any encoding."""

from __future__ import annotations

import json
import math
import random
import time
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict, ParseDict
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.metrics.v1.metrics_pb2 import ExponentialHistogramDataPoint

from stagelens.collector.ingest import points
from stagelens.collector.ingest.points import SUM_TOLERANCE, PointReader
from stagelens.collector.ingest.validation import MAX_COUNT, TimeWindow
from stagelens.collector.otlp import protobuf_encoding
from stagelens.collector.otlp.model import ResourceMetrics
from stagelens.collector.otlp.protobuf_encoding import read_metrics
from stagelens.core import names
from stagelens.core.errors import WireError
from stagelens.core.histogram import MAX_SCALE, MIN_SCALE, Histogram, bucket_bounds
from tests.collector.metrics import drawn, length_delimited, read_json
from tests.fuzz import mutate

NOW = time.time_ns()
SECONDS = 1_000_000_000
WINDOW = TimeWindow(NOW // SECONDS - 86_400, NOW // SECONDS + 86_400)
UINT64 = st.integers(0, 2**64 - 1)
# Fields of a point, and invalid values for them.
CHANGES: dict[str, st.SearchStrategy[Any]] = {
    "start_time_unix_nano": st.sampled_from([0, 1, NOW + 1, NOW + 90_000 * SECONDS]) | UINT64,
    "time_unix_nano": st.sampled_from([0, NOW - 90_000 * SECONDS, NOW - 11 * SECONDS]) | UINT64,
    "count": st.integers(0, 5) | UINT64,
    "sum": st.floats() | st.sampled_from([0.0, -1.0]),
    "scale": st.integers(-12, 22) | st.integers(-(2**31), 2**31 - 1),
    "zero_count": st.integers(0, 3) | UINT64,
    "flags": st.integers(0, 2),
    "min": st.floats(0, 1),
    "zero_threshold": st.just(1e-9),
}


def encoded(histogram: Histogram, **fields: Any) -> ExponentialHistogramDataPoint:
    point = ExponentialHistogramDataPoint(time_unix_nano=NOW, **fields)
    return ParseDict({**histogram.to_otlp(), "sum": histogram.sum}, point)


@st.composite
def data_points(draw: st.DrawFn) -> ExponentialHistogramDataPoint:
    histogram = Histogram(draw(st.sampled_from([5, 5, 5, 3, -10, 8])))
    for value in draw(st.lists(st.floats(0.1, 10) | st.just(0.0), max_size=6)):
        histogram.record(value, draw(st.sampled_from([1, 2, 130, 70_000])))
    point = encoded(histogram, start_time_unix_nano=NOW - 10 * SECONDS)
    point.sum *= draw(st.sampled_from([1.0, 1.0, 1.02, 1 / 1.02, 1.2, 0.8]))
    for key in draw(st.lists(st.sampled_from([names.DOMINANT, names.STAGE, names.STATUS, names.ROUTE]), max_size=4)):
        value = draw(st.sampled_from(["ok", "error", "forward", "", "x" * 150]))
        point.attributes.add(key=key).value.string_value = value
    for name in draw(st.lists(st.sampled_from(sorted(CHANGES)), max_size=2)):
        setattr(point, name, draw(CHANGES[name]))
    match draw(st.integers(0, 12)):
        case 0:
            point.ClearField("sum")
        case 1:
            point.negative.bucket_counts.extend(draw(st.lists(st.integers(0, 1), max_size=2)))
        case 2:
            point.positive.offset = draw(st.integers(-(2**31), 2**31 - 1))
        case 3:
            point.positive.bucket_counts.append(draw(UINT64))
        case 4:
            point.exemplars.add(as_double=1.0)
        case _:
            pass
    return point


def exported(*found: ExponentialHistogramDataPoint) -> bytes:
    return _body(*(point.SerializeToString() for point in found))


def accepted_points(export: list[ResourceMetrics]) -> tuple[list[str], dict[str, int], list[str]]:
    reader = PointReader(WINDOW)
    reader.read(export)
    return accepted_by(reader)


def accepted_by(reader: PointReader) -> tuple[list[str], dict[str, int], list[str]]:
    rejected = {str(reason): count for reason, count in reader.tally.rejected.items()}
    return sorted(map(repr, reader.points)), rejected, reader.tally.messages


def is_valid(point: ExponentialHistogramDataPoint) -> bool:
    """Return whether *point* of `inference.request.duration` is valid, by the rules in plain Python."""
    start = point.start_time_unix_nano or point.time_unix_nano
    counts = {point.positive.offset + place: count for place, count in enumerate(point.positive.bucket_counts) if count}
    attributes = {pair.key: pair.value.string_value for pair in point.attributes}
    times = (start // SECONDS, point.time_unix_nano // SECONDS)
    return (
        all(WINDOW.oldest <= at <= WINDOW.newest for at in times)
        and start <= point.time_unix_nano
        and MIN_SCALE <= point.scale <= MAX_SCALE
        and not any(point.negative.bucket_counts)
        and sum(counts.values()) + point.zero_count == point.count <= MAX_COUNT
        and max(map(abs, counts), default=0) <= 1075 * 2.0**point.scale
        and _has_possible_sum(point, counts)
        and attributes.get(names.STATUS, "ok") in {"ok", "error"}
        and 0 < len(attributes.get(names.DOMINANT, "overhead")) <= 64
    )


def _has_possible_sum(point: ExponentialHistogramDataPoint, counts: dict[int, int]) -> bool:
    filled, least, most = sum(counts.values()), 0.0, 0.0
    if counts:
        least = filled * bucket_bounds(min(counts), point.scale)[0] / SUM_TOLERANCE
        most = filled * bucket_bounds(max(counts), point.scale)[1] * SUM_TOLERANCE
    most = math.inf if point.zero_count else most
    return (point.HasField("sum") or not point.count) and least <= point.sum <= most and point.sum < math.inf


@settings(deadline=None, max_examples=100)
@given(st.lists(data_points(), max_size=12))
def test_points_are_accepted_by_the_rules(sent: list[ExponentialHistogramDataPoint]) -> None:
    reader = PointReader(WINDOW)
    reader.read(read_metrics(exported(*sent)))
    recorded = [point for point in sent if not point.flags & 1]
    valid = [point for point in recorded if is_valid(point)]

    assert [point.histogram.count for point in reader.points] == [point.count for point in valid if point.count]
    assert reader.tally.rejected.total() == len(recorded) - len(valid)


@settings(max_examples=30)
@given(st.randoms(use_true_random=False))
def test_exports_parsed_together_equal_exports_parsed_alone(rng: random.Random) -> None:
    exports: list[list[ResourceMetrics]] = []
    for request in (drawn(rng, "metrics") for _ in range(3)):
        body = json.dumps(MessageToDict(request, use_integers_for_enums=True)).encode()
        exports += read_metrics(request.SerializeToString()), read_json(body)
    readers = [PointReader(WINDOW) for _ in exports]
    points.read_exports(list(zip(readers, exports, strict=True)))

    assert list(map(accepted_by, readers)) == list(map(accepted_points, exports))


@settings(deadline=None, max_examples=60)
@given(st.lists(data_points(), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_damaged_points_change_no_other_point(points_: list[ExponentialHistogramDataPoint], rng: random.Random) -> None:
    whole = [point.SerializeToString() for point in points_]
    found = [mutate.raw(point[:150], rng) if rng.random() < 0.5 else point for point in whole]
    together, alone = result_or_malformed(_body(*found)), [result_or_malformed(_body(point)) for point in found]

    if "malformed" in alone:
        assert together == "malformed"
    else:
        assert together[0] == sorted(point for one in alone for point in one[0])


def result_or_malformed(body: bytes) -> Any:
    try:
        return accepted_points(read_metrics(body))
    except WireError:
        return "malformed"


@pytest.mark.parametrize("count", [b"\x81" + b"\x80" * 9 + b"\0", b"\x80" * 10 + b"\0", b"\x81" + b"\x80" * 8 + b"\0"])
def test_a_varint_over_ten_bytes_is_no_count(count: bytes) -> None:
    counts = b"\x12" + bytes([len(count)]) + count
    point = ExponentialHistogramDataPoint(time_unix_nano=NOW, count=1, sum=1.0).SerializeToString()
    accepted, _, _ = accepted_points(read_metrics(_body(point + b"\x42" + bytes([len(counts)]) + counts)))

    assert len(accepted) == (len(count) <= 10)


def test_usual_encodings_are_parsed_as_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protobuf_encoding, "_normalized", None)
    histogram = Histogram()
    for value in (0.0, 0.001, 0.002, 5.0):
        histogram.record(value, 200)
    point = encoded(histogram, start_time_unix_nano=NOW, min=0.0, max=5.0, zero_threshold=1e-9)
    reader = PointReader(WINDOW)
    reader.read(read_metrics(exported(point, point, point)))

    assert [found.histogram for found in reader.points] == [histogram] * 3
    assert math.isclose(sum(found.histogram.sum for found in reader.points), 3 * histogram.sum)


@pytest.mark.parametrize(
    ("as_written", "otherwise"),
    [
        (b"\x19" + NOW.to_bytes(8, "little") + b"\x21" + bytes([3]) + bytes(7), None),
        (b"\x42\x05\x08\x01\x12\x01\x03", b"\x42\x04\x08\x01\x10\x03"),
        (b"\x42\x05\x08\x01\x12\x01\x03", b"\x42\x09\x08\x01\x12\x81\x80\x80\x80\x00\x03"),
        (b"\x30\x0a", b"\x30\x8a\x80\x80\x80\x00"),
        (b"\x30\x0a", b"\x30\x0c\x30\x0a"),
    ],
    ids=["another order", "not packed", "a long length", "a long number", "twice"],
)
def test_unusual_encodings_are_parsed(as_written: bytes, otherwise: bytes | None) -> None:
    point = ExponentialHistogramDataPoint(time_unix_nano=NOW, count=3, sum=3.0, scale=5)
    point.positive.offset = -1
    point.positive.bucket_counts.append(3)
    plain = point.SerializeToString()
    unusual = plain.replace(as_written, b"\x21\x03" + bytes(7) + as_written[:9] if otherwise is None else otherwise)

    assert unusual != plain
    assert ExponentialHistogramDataPoint.FromString(unusual) == point
    assert accepted_points(read_metrics(_body(plain, unusual, plain))) == accepted_points(
        read_metrics(exported(point, point, point))
    )


def _body(*found: bytes) -> bytes:
    data = length_delimited(10, b"".join(length_delimited(1, point) for point in found) + b"\x10\x01")
    return length_delimited(
        1, length_delimited(2, length_delimited(2, length_delimited(1, names.REQUEST_DURATION.encode()) + data))
    )
