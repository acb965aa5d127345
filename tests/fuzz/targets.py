"""Fuzz targets: every parser of untrusted input returns a value or raises its documented error.

A check returns when it has read its input, or refused it as it should; whatever else it raises is a bug. What was read has to
hold what the store builds on.
"""

from __future__ import annotations

import json
import math
import random
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from typing import Any

from stagelens.collector.ingest.pipeline import read_export
from stagelens.collector.ingest.validation import TimeWindow
from stagelens.collector.otlp.model import JSON, PROTOBUF
from stagelens.collector.scrape import exposition, triton_statistics
from stagelens.collector.scrape.config import engines
from stagelens.collector.scrape.snapshot import read_snapshot as read_samples
from stagelens.collector.server.bodies import inflate
from stagelens.collector.traces import columns
from stagelens.collector.traces.inbox import InboxLimits, process_inbox
from stagelens.collector.traces.sampling import SamplingPolicy
from stagelens.collector.traces.span_reader import SpanReader
from stagelens.core import names
from stagelens.core.errors import StoreError, WireError
from stagelens.store import Point, RetainedTrace
from stagelens.store.events import event_from_json
from stagelens.store.inbox import AggregationInput, Parcel
from tests.fuzz import exports, mutate, valid
from tests.fuzz.exports import Signal

_NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)
_WINDOW = TimeWindow(0, 2**40)
_INFLATED_BYTES = 100_000
_NOW = int(_NOON.timestamp())
_READER = SpanReader()
_FOLDED_ONE_IN = 32


@dataclass(frozen=True, slots=True)
class Target:
    check: Callable[[bytes], None]
    draw: Callable[[random.Random], bytes]
    seeds: Callable[[], Sequence[bytes]]
    share: int = 4


def _check_export(signal: Signal, media_type: str, body: bytes) -> None:
    try:
        export = read_export(signal, media_type, body, None, _WINDOW, _READER)
    except WireError:
        return
    _check_points(export.batch.points)
    _check_traces(export.batch.traces)
    assert export.batch.dropped >= 0
    if export.batch.spans:
        _check_columns(export.batch.spans)
        # Ten times the price of all the rest.
        if not zlib.crc32(export.batch.spans) % _FOLDED_ONE_IN:
            _check_processing(export.batch.spans)


def _check_points(points: Iterable[Point]) -> None:
    for point in points:
        histogram = point.histogram
        assert histogram.count > 0
        assert all(0 <= count < 2**63 for count in histogram.buckets.values())
        assert math.isfinite(histogram.sum)
        assert -(2**63) <= point.at < 2**63


def _check_traces(traces: Iterable[RetainedTrace]) -> None:
    for trace in traces:
        assert sum(trace.stages_ns.values()) == trace.duration_ns
        assert all(spent >= 0 for spent in trace.stages_ns.values())
        assert -(2**63) <= trace.started_ns < 2**63


def _check_processing(blob: bytes) -> None:
    waits = Parcel(_NOW - 5000, counted=False, spans=blob, id=1)
    folded, outcome = process_inbox(AggregationInput(_NOW, [waits], [], complete=True), InboxLimits(), SamplingPolicy())
    points = list(folded.points)
    _check_points(points)
    _check_traces(folded.traces)
    counted = sum(point.histogram.count for point in points if point.metric == names.REQUEST_DURATION)
    assert counted == outcome.requests
    assert folded.remove_ids == [1]


def _check_columns(blob: bytes) -> None:
    spans = columns.decode_spans(blob)
    assert not len(spans.rows) or spans.rows["source"].max() < len(spans.sources)
    assert not len(spans.rows) or spans.rows["label"].max() < len(spans.labels)


def _draw_protobuf(signal: Signal, rng: random.Random) -> bytes:
    whole = rng.choice(exports.messages(signal))
    body = (mutate.message(whole, rng) if rng.random() < 0.8 else whole).SerializeToString()
    return mutate.raw(body, rng) if rng.random() < 0.3 else body


def _draw_json(whole: Callable[[random.Random], Any], rng: random.Random) -> bytes:
    body = json.dumps(mutate.json_value(whole(rng), rng)).encode()
    return mutate.raw(body, rng) if rng.random() < 0.1 else body


def _export_target(signal: Signal, media_type: str) -> Target:
    made = exports.metrics if signal == "metrics" else exports.spans
    if media_type == PROTOBUF:
        return Target(
            partial(_check_export, signal, media_type),
            partial(_draw_protobuf, signal),
            lambda: [message.SerializeToString() for message in exports.messages(signal)],
        )
    return Target(
        partial(_check_export, signal, media_type),
        partial(_draw_json, made),
        lambda: [json.dumps(made(random.Random(seed))).encode() for seed in range(8)],
    )


def _check_body(encoding: str, body: bytes) -> None:
    with suppress(WireError):
        assert len(inflate(body, encoding, _INFLATED_BYTES)) <= _INFLATED_BYTES


def _body_target(encoding: str) -> Target:
    return Target(
        partial(_check_body, encoding),
        lambda rng: mutate.raw(exports.deflated(encoding, rng), rng),
        lambda: [exports.deflated(encoding, random.Random(seed)) for seed in range(4)],
    )


def _check(parse: Callable[[bytes], object], error: type[Exception], body: bytes) -> None:
    with suppress(error):
        parse(body)


def _check_blob(blob: bytes) -> None:
    try:
        columns.decode_spans(blob)
    except StoreError:
        return
    # What cannot be read of it is passed over.
    process_inbox(
        AggregationInput(_NOW, [Parcel(_NOW - 5000, counted=False, spans=blob, id=1)], [], complete=True),
        InboxLimits(),
        SamplingPolicy(),
    )


@cache
def _blobs() -> Sequence[bytes]:
    reads = [
        read_export("traces", PROTOBUF, message.SerializeToString(), None, _WINDOW, _READER)
        for message in exports.messages("traces")
    ]
    return [export.batch.spans for export in reads if export.batch.spans]


def _draw_blob(rng: random.Random) -> bytes:
    blob = rng.choice(_blobs())
    start = 5 + int.from_bytes(blob[1:5], "little")
    if rng.random() < 0.3:
        return mutate.raw(blob, rng)
    rows = bytearray(blob[start:])
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(rows) // 8) * 8
        rows[at : at + 8] = rng.choice((bytes(8), b"\xff" * 8, rng.randbytes(8), rows[:8], rows[-8:]))
    return blob[:start] + bytes(rows)


def _check_exposition(body: bytes) -> None:
    text = body.decode(errors="replace")
    for engine in engines().values():
        try:
            samples = exposition.parse_exposition(text, "text/plain", engine.wanted())
        except exposition.ExpositionError:
            continue
        read_samples(samples, engine, float(_NOW), "rules")


TARGETS: dict[str, Target] = {
    "metrics_protobuf": _export_target("metrics", PROTOBUF),
    "metrics_json": _export_target("metrics", JSON),
    "traces_protobuf": _export_target("traces", PROTOBUF),
    "traces_json": _export_target("traces", JSON),
    "gzip": _body_target("gzip"),
    "zstd": _body_target("zstd"),
    "inbox": Target(_check_blob, _draw_blob, _blobs, share=1),
    "exposition": Target(
        _check_exposition, lambda rng: mutate.raw(valid.EXPOSITION.encode(), rng), lambda: [valid.EXPOSITION.encode()]
    ),
    "statistics": Target(
        partial(
            _check,
            lambda body: triton_statistics.read_triton_statistics(body.decode(errors="replace")),
            triton_statistics.StatisticsError,
        ),
        partial(_draw_json, lambda _: valid.STATISTICS),
        lambda: [json.dumps(valid.STATISTICS).encode()],
    ),
    "event": Target(
        partial(_check, lambda body: event_from_json(body, _NOON), ValueError),
        partial(_draw_json, lambda _: valid.EVENT),
        lambda: [json.dumps(valid.EVENT).encode()],
    ),
}
