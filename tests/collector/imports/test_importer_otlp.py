"""Import of OTLP/JSON files: lines and objects, metrics and spans, compressed, invalid or repeated."""

from __future__ import annotations

import gzip
import json
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from stagelens.collector.imports import importer
from stagelens.collector.imports.importer import import_file
from stagelens.collector.imports.source import ImportFileError
from stagelens.collector.ingest.validation import TimeWindow
from stagelens.core import names
from stagelens.core.histogram import Histogram
from stagelens.store import Batch, Store, schema

if TYPE_CHECKING:
    from tests.collector.imports.taking import Taking

NOW = time.time_ns() - 60 * 10**9
MS = 10**6


def attributes(**values: str) -> list[dict[str, Any]]:
    return [{"key": key.replace("_", "."), "value": {"stringValue": value}} for key, value in values.items()]


def spans(count: int, first: int = 1, service: str = "shop") -> dict[str, Any]:
    made: list[dict[str, Any]] = []
    for number in range(first, first + count):
        ids = {"traceId": f"{number:032x}"}
        times = {"startTimeUnixNano": str(NOW), "endTimeUnixNano": str(NOW + 10 * MS)}
        server = attributes(http_request_method="GET", http_route="/predict")
        made.append({**ids, "spanId": f"{number:016x}", "name": "GET", "kind": 2, "attributes": server, **times})
        inner = {"startTimeUnixNano": str(NOW + 2 * MS), "endTimeUnixNano": str(NOW + 6 * MS)}
        query = {"spanId": f"{number:08x}{7:08x}", "parentSpanId": f"{number:016x}", "name": "q", "kind": 3}
        made.append({**ids, **query, "attributes": attributes(db_system="redis"), **inner})
    resource = {"attributes": attributes(service_name=service)}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": {"name": "http"}, "spans": made}]}]}


def metrics(*seconds: float, **changes: Any) -> dict[str, Any]:
    histogram = Histogram()
    for each in seconds:
        histogram.record(each)
    point = {
        "attributes": [{"key": names.DOMINANT, "value": {"stringValue": "forward"}}],
        "startTimeUnixNano": str(NOW - 10 * 10**9),
        "timeUnixNano": str(NOW),
        **histogram.to_otlp(),
        **changes,
    }
    data = {"aggregationTemporality": 1, "dataPoints": [point]}
    metric = {"name": names.REQUEST_DURATION, "exponentialHistogram": data}
    scope = {"scope": {"name": "stagelens"}, "metrics": [metric]}
    resource = {"attributes": attributes(service_name="shop")}
    return {"resourceMetrics": [{"resource": resource, "scopeMetrics": [scope]}]}


def test_lines_of_both_signals_count_like_exports(taking: Taking, tmp_path: Path) -> None:
    file = tmp_path / "export.jsonl"
    file.write_text("\n".join(map(json.dumps, (spans(2), metrics(0.1, 0.2, 0.3), spans(1, first=3)))) + "\n")

    imported = taking(file)

    assert (imported.requests, imported.broken_count) == (6, 0)
    assert taking.requests() == 6
    assert taking.stages() == [("/predict", {"dependency": 4000, "overhead": 6000})] * 3


@pytest.mark.parametrize("indent", [None, 2])
def test_one_object_counts_whatever_its_layout(taking: Taking, tmp_path: Path, indent: int | None) -> None:
    file = tmp_path / "run.json"
    file.write_text(json.dumps({"stagelens": {"format": 1}, **metrics(0.1), **spans(3)}, indent=indent))

    assert taking(file).requests == 4
    assert taking.requests() == 4


def test_a_request_with_distant_spans_is_one_request(
    taking: Taking, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importer, "_HELD_BYTES", 400)
    whole = spans(40)
    (resource,) = whole["resourceSpans"]
    (scope,) = resource["scopeSpans"]
    ordered = sorted(scope["spans"], key=lambda span: (-len(span.get("parentSpanId", "")), span["traceId"]))
    lines = [{"resourceSpans": [{**resource, "scopeSpans": [{**scope, "spans": [each]}]}]} for each in ordered]
    near = [line for pair in zip(lines[:40], lines[40:], strict=True) for line in pair]
    file = tmp_path / "export.jsonl"
    file.write_text("\n".join(map(json.dumps, near)))

    assert taking(file).requests == 40
    assert taking.stages() == [("/predict", {"dependency": 4000, "overhead": 6000})] * 40


def test_a_file_counts_once_compressed_or_not_and_under_any_name(taking: Taking, tmp_path: Path) -> None:
    file, copy = tmp_path / "a.json", tmp_path / "b.json.gz"
    file.write_text(json.dumps(spans(5)))
    copy.write_bytes(gzip.compress(file.read_bytes()))

    assert taking(file).requests == 5
    again = taking(copy)

    assert (again.requests, again.known) == (0, 5)
    assert taking.requests() == 5


def test_the_name_of_an_import_is_retained_longer_than_batch_names(taking: Taking, tmp_path: Path) -> None:
    file, later, week = tmp_path / "a.json", tmp_path / "b.json", 7 * 86_400
    file.write_text(json.dumps(spans(5)))
    taking(file)
    # Data after a gap delete nothing until they have arrived for a day.
    lists = list[Any]()
    for hours in range(0, 36, 6):
        at = NOW + (2 * week - hours * 3600) * 10**9
        lists += metrics(0.1, startTimeUnixNano=str(at), timeUnixNano=str(at + 10**10))["resourceMetrics"]
    later.write_text(json.dumps({"resourceMetrics": lists}))
    store = Store.open(str(taking.store.engine.url), clock=lambda: time.time() + week)
    store.write([Batch("metrics:a retry")])
    store.close()
    with closing(Store.open(str(taking.store.engine.url), clock=lambda: time.time() + 2 * week)) as store:
        import_file(later, store, TimeWindow(0, 2**40))
        store.maintain()
        with store.engine.connect() as connection:
            names_kept = connection.scalars(select(schema.batches.c.id)).all()

    assert "metrics:a retry" not in names_kept
    assert taking(file).known == 5


def test_an_interrupted_import_continues(taking: Taking, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importer, "_ROWS_A_WRITE", 1)
    file = tmp_path / "export.jsonl"
    file.write_text("\n".join(map(json.dumps, (metrics(0.1), metrics(0.2), metrics(0.3)))))
    write, written = taking.store.write, list[object]()

    def fails_at_the_second(batches: Any) -> list[bool]:
        if written:
            raise KeyboardInterrupt
        written.append(batches)
        return write(batches)

    monkeypatch.setattr(taking.store, "write", fails_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        taking(file)
    monkeypatch.setattr(taking.store, "write", write)

    again = taking(file)

    assert (again.known, again.requests) == (1, 2)
    assert taking.requests() == 3


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[1]",
        '"text"',
        '{"resourceSpans": 5}',
        '{"resourceSpans": [5]}',
        '{"resourceMetrics": [{"scopeMetrics": 1}]}',
    ],
)
def test_an_invalid_line_is_named_and_skipped_alone(taking: Taking, tmp_path: Path, line: str) -> None:
    file = tmp_path / "export.jsonl"
    file.write_text("\n".join((json.dumps(spans(2)), line, json.dumps(spans(1, first=9)))))

    imported = taking(file)

    assert imported.requests == 3
    assert [each.split(":")[0] for each in imported.broken] == ["line 2"]


def test_a_malformed_point_is_skipped_alone(taking: Taking, tmp_path: Path) -> None:
    body, bad, odd = metrics(0.1, 0.2), metrics(0.3, count="x"), metrics(0.3, count="17")
    data = body["resourceMetrics"][0]["scopeMetrics"][0]["metrics"][0]["exponentialHistogram"]
    for each in (bad, odd):
        other = each["resourceMetrics"][0]["scopeMetrics"][0]["metrics"][0]["exponentialHistogram"]
        data["dataPoints"] += other["dataPoints"]
    file = tmp_path / "export.jsonl"
    file.write_text(json.dumps(body) + "\n")

    imported = taking(file)

    assert imported.requests == 2
    assert imported.broken_count == 2
    assert all(each.startswith("line 1: ") for each in imported.broken)


def test_data_older_than_every_tier_are_refused_with_their_time(taking: Taking, tmp_path: Path) -> None:
    file = tmp_path / "old.json"
    old = NOW - 500 * 86_400 * 10**9
    file.write_text(json.dumps(metrics(0.1, startTimeUnixNano=str(old), timeUnixNano=str(old + 10**10))))

    imported = taking(file)

    assert (imported.requests, imported.broken_count, taking.requests()) == (0, 1, 0)
    assert "too long ago" in imported.broken[0]


@pytest.mark.parametrize("days", [2, 30, 300])
def test_old_data_are_stored_in_a_tier_that_retains_them(taking: Taking, tmp_path: Path, days: int) -> None:
    new, old, at = tmp_path / "new.json", tmp_path / "old.json", NOW - days * 86_400 * 10**9
    new.write_text(json.dumps(metrics(0.1)))
    old.write_text(json.dumps(metrics(0.2, 0.3, startTimeUnixNano=str(at), timeUnixNano=str(at + 10**10))))
    taking(new)
    taking.store.maintain()

    taking(old)
    taking.store.maintain()

    assert taking.requests() == 3


def test_options_replace_service_and_environment_of_the_file(taking: Taking, tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text(json.dumps({**metrics(0.1), **spans(1)}))

    assert taking(file, service="mine", environment="ci").services == {"mine": 2}
    assert taking(file).services == {"shop": 2}


@pytest.mark.parametrize("resource", [5, [], {"attributes": 5}, {"attributes": [5]}])
def test_an_invalid_resource_is_named_despite_replacement(taking: Taking, tmp_path: Path, resource: Any) -> None:
    broken = spans(1, first=9)
    broken["resourceSpans"][0]["resource"] = resource
    file = tmp_path / "export.jsonl"
    file.write_text("\n".join(map(json.dumps, (broken, spans(2)))))

    imported = taking(file, service="mine")

    assert imported.services == {"mine": 2}
    assert [each.split(":")[0] for each in imported.broken] == ["line 1"]


def test_a_truncated_gzip_file_counts_up_to_the_damage(taking: Taking, tmp_path: Path) -> None:
    file = tmp_path / "export.jsonl.gz"
    lines = "\n".join(json.dumps(spans(1, first=number)) for number in range(1, 400))
    file.write_bytes(gzip.compress(lines.encode())[:-40])

    imported = taking(file)

    assert 0 < imported.requests < 400
    assert imported.broken_count >= 1


@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_random_bytes_are_refused_with_the_supported_formats(taking: Taking, tmp_path: Path, garbage: bytes) -> None:
    file = tmp_path / "garbage"
    file.write_bytes(garbage)

    with pytest.raises(ImportFileError) as raised:
        taking(file)

    assert str(file) in str(raised.value)


WHOLE = json.dumps({**metrics(0.1), **spans(2)}).encode()


@given(st.integers(0, len(WHOLE) - 1), st.binary(max_size=3), st.sampled_from([None, "other"]))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_damage_is_reported_without_a_crash(
    taking: Taking, tmp_path: Path, at: int, what: bytes, service: str | None
) -> None:
    file = tmp_path / "damaged.json"
    file.write_bytes(WHOLE[:at] + what + WHOLE[at + 1 :])

    try:
        imported = taking(file, service=service)
    except ImportFileError:
        return

    assert imported.requests + imported.known <= 3
