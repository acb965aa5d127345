"""Validation of decoded spans, and their conversion into columns."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from ...core.columns import Bools
from ..ingest.validation import IngestResult, Reason, TimeWindow, Validation
from .columns import ROW, Flag, Label, Rows, Spans, SpanSource, StreamMeasurements, streams_of
from .measurements import SpanInterval, measure_span
from .parsed_spans import ParsedSpans
from .rules import SpanMeaning

# Maximum number of processes that the columns can number.
MAX_SOURCES = 2**16 - 1
# Maximum number of distinct labels in an export, each up to a few kilobytes.
MAX_LABELS = 20_000


def validate_spans(parsed: ParsedSpans, window: TimeWindow, result: IngestResult) -> Spans:
    if not parsed.count:
        return Spans(np.zeros(0, ROW), [], [])
    rows = parsed.rows[0] if len(parsed.rows) == 1 else np.concatenate(parsed.rows)
    starts, ends = (np.ascontiguousarray(rows[column]).view(np.uint64) for column in ("start", "end"))
    sources = dict.fromkeys(parsed.sources)
    numbers = {source: number for number, source in enumerate(sources)}
    of_source = np.repeat([numbers[source] for source in parsed.sources], parsed.counts)
    labels, rows["label"], flags = _distinct_labels(parsed.meanings)
    rows["flags"] |= flags
    invalid = ((rows["trace_high"] == 0) & (rows["trace_low"] == 0)) | (rows["span"] == 0)
    invalid[list(parsed.malformed)] = True
    has_ended = ends != 0

    def name(row: int) -> str:
        high, low, span = (int(rows[column][row]) for column in ("trace_high", "trace_low", "span"))
        trace_id, span_id = parsed.malformed.get(row) or (bytes.fromhex(f"{high:016x}{low:016x}"), span.to_bytes(8))
        return f"trace {trace_id.hex()[:40]}, span {span_id.hex()[:20]}"

    check = Validation(len(rows), [(result, 0, len(rows))], name)
    check.reject(invalid, Reason.IDS, lambda _: "spanId must be 8 bytes, and traceId 16, not all zero")
    check.reject(window.excludes(starts), Reason.TIME, lambda row: window.explain(int(starts[row])))
    check.reject(
        has_ended & (ends < starts),
        Reason.DURATION,
        lambda row: f"it ends {int(starts[row]) - int(ends[row])} ns before it begins",
    )
    check.reject(has_ended & window.excludes(ends), Reason.TIME, lambda row: window.explain(int(ends[row])))
    check.reject(of_source > MAX_SOURCES, Reason.SIZE, lambda _: f"the export has more than {MAX_SOURCES} processes")
    check.reject(
        rows["label"] >= MAX_LABELS,
        Reason.SIZE,
        lambda _: f"the export has more than {MAX_LABELS} kinds of spans; send fewer attributes or smaller batches",
    )
    rows["source"] = np.minimum(of_source, MAX_SOURCES)
    return _to_columns(parsed, rows, check.valid, list(sources)[: MAX_SOURCES + 1], labels[:MAX_LABELS])


def _to_columns(
    parsed: ParsedSpans, rows: Rows, valid: Bools, sources: Sequence[SpanSource], labels: list[Label]
) -> Spans:
    number_of = np.cumsum(valid) - 1
    streams: dict[int, StreamMeasurements] = {}
    intervals: list[tuple[int, SpanInterval]] = []
    is_valid = valid.tolist()
    chosen = [measurement for measurement in parsed.measurements if is_valid[measurement.row]]
    measured = np.array([measurement.row for measurement in chosen], np.intp)
    columns = (column[measured].tolist() for column in (rows["start"], rows["end"], number_of))
    for measurement, start, end, number in zip(chosen, *columns, strict=True):
        result = measure_span(measurement, start, end)
        if result.start != start:
            rows["start"][measurement.row] = result.start
        intervals += [(number, interval) for interval in result.intervals]
        if result.stream is not None:
            streams[number] = result.stream
    which = np.flatnonzero(valid)
    if not intervals:
        return Spans(rows[which], sources, labels, streams_of(streams))
    # All intervals of a stage share a label.
    stages = dict.fromkeys(interval.stage for _, interval in intervals)
    at = {stage: len(labels) + number for number, stage in enumerate(stages)}
    # One selection, because concatenating rows takes three times as long.
    rows = rows[np.append(which, which[[number for number, _ in intervals]])]
    derived = rows[len(which) :]
    derived["parent"], derived["span"] = derived["span"], 0
    derived["start"] = [interval.start for _, interval in intervals]
    derived["end"] = [interval.end for _, interval in intervals]
    derived["label"] = [at[interval.stage] for _, interval in intervals]
    derived["flags"] = Flag.DERIVED
    return Spans(rows, sources, [*labels, *map(_interval_label, at)], streams_of(streams))


@cache
def _interval_label(stage: str) -> Label:
    return Label(stage, stage=stage)


def _distinct_labels(meanings: Sequence[SpanMeaning]) -> tuple[list[Label], NDArray[np.uint32], NDArray[np.uint16]]:
    distinct = {meaning: number for number, meaning in enumerate(dict.fromkeys(meanings))}
    numbers: dict[Label, int] = {}
    of_distinct = np.array([numbers.setdefault(meaning.label, len(numbers)) for meaning in distinct], np.uint32)
    flags = np.array([meaning.flags for meaning in distinct], np.uint16)
    which = np.fromiter(map(distinct.__getitem__, meanings), np.intp, len(meanings))
    return list(numbers), of_distinct[which], flags[which]
