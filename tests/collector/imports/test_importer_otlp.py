"""Import of OTLP/JSON files: lines and objects, metrics and spans, compressed, invalid or repeated."""

from __future__ import annotations

import gzip
import io
import json
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from stagelens.collector.imports import importer
from stagelens.collector.imports.gunzip import TolerantGunzip
from stagelens.collector.imports.importer import import_file
from stagelens.collector.imports.source import ImportFileError
from stagelens.collector.ingest.validation import TimeWindow
from stagelens.core import names
from stagelens.store import Batch, Store, schema
from tests.collector.conftest import Bodies
from tests.collector.traces.otlp import NOON_NS, attributes, export, span

if TYPE_CHECKING:
    from tests.collector.imports.conftest import Taking

NOW = time.time_ns() - 60 * 10**9
AGO_MS = (NOW - NOON_NS) / 10**6


def spans(count: int, first: int = 1, service: str = "shop") -> dict[str, Any]:
    """Return requests of 10 ms with a call of 4 ms each."""
    made: list[dict[str, Any]] = []
    for number in range(first, first + count):
        server = {"http.request.method": "GET", "http.route": "/predict"}
        ids: dict[str, Any] = {"traceId": f"{number:032x}"}
        call: dict[str, Any] = {"spanId": f"{number:08x}{7:08x}", "parentSpanId": f"{number:016x}", **ids}
        made += [
            span("GET", kind="server", id=number, start_ms=AGO_MS, end_ms=AGO_MS + 10, values=server, **ids),
            span("q", kind="client", start_ms=AGO_MS + 2, end_ms=AGO_MS + 6, values={"db.system": "redis"}, **call),
        ]
    return export(*made, scope="http", resource={"service.name": service})


def metrics(*seconds: float, **changes: Any) -> dict[str, Any]:
    bodies = Bodies(NOW)
    dominant = attributes({names.DOMINANT: "forward"})
    return bodies.metrics(bodies.point(seconds, **{"attributes": dominant, **changes}))


def lines(*exports: Any) -> str:
    return "\n".join(each if isinstance(each, str) else json.dumps(each) for each in exports) + "\n"


def points_of(body: dict[str, Any]) -> list[dict[str, Any]]:
    return body["resourceMetrics"][0]["scopeMetrics"][0]["metrics"][0]["exponentialHistogram"]["dataPoints"]


BOTH = {"stagelens": {"format": 1}, **metrics(0.1, 0.2, 0.3), **spans(3)}


@pytest.mark.parametrize(
    "text",
    [
        lines(spans(2), metrics(0.1, 0.2, 0.3), spans(1, first=3)),
        json.dumps(BOTH),
        json.dumps(BOTH, indent=2),
    ],
    ids=["lines", "one line", "one object"],
)
def test_both_signals_count_like_exports(taking: Taking, text: str) -> None:
    imported = taking(text)

    assert (imported.requests, imported.broken_count) == (6, 0)
    assert taking.requests() == 6
    assert taking.stages() == [("/predict", {"dependency": 4000, "overhead": 6000})] * 3


def test_a_request_with_distant_spans_is_one_request(taking: Taking, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importer, "_HELD_BYTES", 400)
    whole = spans(40)
    (resource,) = whole["resourceSpans"]
    (scope,) = resource["scopeSpans"]
    ordered = sorted(scope["spans"], key=lambda span: (-len(span.get("parentSpanId", "")), span["traceId"]))
    alone = [{"resourceSpans": [{**resource, "scopeSpans": [{**scope, "spans": [each]}]}]} for each in ordered]

    assert taking(lines(*(line for pair in zip(alone[:40], alone[40:], strict=True) for line in pair))).requests == 40
    assert taking.stages() == [("/predict", {"dependency": 4000, "overhead": 6000})] * 40


def test_a_file_counts_once_compressed_or_not_and_under_any_name(taking: Taking) -> None:
    assert taking(spans(5)).requests == 5
    again = taking(taking.write(gzip.compress(json.dumps(spans(5)).encode()), "other.json.gz"))

    assert (again.requests, again.known) == (0, 5)
    assert taking.requests() == 5


def test_the_name_of_an_import_is_retained_longer_than_batch_names(taking: Taking) -> None:
    week = 7 * 86_400
    taking(spans(5))
    # Data after a gap delete nothing until they have arrived for a day.
    lists = list[Any]()
    for hours in range(0, 36, 6):
        lists += metrics(0.1, **times(days=14 - hours / 24))["resourceMetrics"]
    later = taking.write({"resourceMetrics": lists}, "later.json")
    store = Store.open(str(taking.store.engine.url), clock=lambda: time.time() + week)
    store.write([Batch("metrics:a retry")])
    store.close()
    with closing(Store.open(str(taking.store.engine.url), clock=lambda: time.time() + 2 * week)) as store:
        import_file(later, store, TimeWindow(0, 2**40))
        store.maintain()
        with store.engine.connect() as connection:
            names_kept = connection.scalars(select(schema.batches.c.id)).all()

    assert "metrics:a retry" not in names_kept
    assert taking(spans(5)).known == 5


def times(days: float) -> dict[str, str]:
    at = NOW + round(days * 86_400) * 10**9
    return {"startTimeUnixNano": str(at), "timeUnixNano": str(at + 10**10)}


def test_an_interrupted_import_continues(taking: Taking, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importer, "_ROWS_A_WRITE", 1)
    file = taking.write(lines(metrics(0.1), metrics(0.2), metrics(0.3)))
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


WITH_RESOURCE = [
    json.dumps({"resourceSpans": [{**spans(1, first=9)["resourceSpans"][0], "resource": resource}]})
    for resource in (5, [], {"attributes": 5}, {"attributes": [5]})
]


@pytest.mark.parametrize(
    ("line", "options"),
    [
        *((text, {}) for text in ("{", "[1]", '"text"', '{"resourceSpans": 5}', '{"resourceSpans": [5]}')),
        ('{"resourceMetrics": [{"scopeMetrics": 1}]}', {}),
        *((text, {"service": "mine"}) for text in WITH_RESOURCE),
    ],
)
def test_an_invalid_line_is_named_and_skipped_alone(taking: Taking, line: str, options: dict[str, str]) -> None:
    imported = taking(lines(spans(2), line, spans(1, first=9)), **options)

    assert imported.services == {options.get("service", "shop"): 3}
    assert [each.split(":")[0] for each in imported.broken] == ["line 2"]


def test_a_malformed_point_is_skipped_alone(taking: Taking) -> None:
    body = metrics(0.1, 0.2)
    for count in ("x", "17"):
        points_of(body).extend(points_of(metrics(0.3, count=count)))
    imported = taking(lines(body))

    assert imported.requests == 2
    assert imported.broken_count == 2
    assert all(each.startswith("line 1: ") for each in imported.broken)


@pytest.mark.parametrize(("days", "requests"), [(2, 3), (30, 3), (300, 3), (500, 1)])
def test_old_data_are_stored_in_a_tier_that_retains_them(taking: Taking, days: int, requests: int) -> None:
    taking(metrics(0.1))
    taking.store.maintain()
    imported = taking(metrics(0.2, 0.3, **times(-days)))
    taking.store.maintain()

    assert taking.requests() == requests
    assert ["too long ago" in each for each in imported.broken] == [True] * (requests == 1)


def test_options_replace_service_and_environment_of_the_file(taking: Taking) -> None:
    file = taking.write({**metrics(0.1), **spans(1)})

    assert taking(file, service="mine", environment="ci").services == {"mine": 2}
    assert taking(file).services == {"shop": 2}


def test_a_truncated_gzip_file_counts_up_to_the_damage(taking: Taking) -> None:
    text = lines(*(spans(1, first=number) for number in range(1, 400)))
    imported = taking(gzip.compress(text.encode())[:-40])

    assert 0 < imported.requests < 400
    assert imported.broken_count >= 1


@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_random_bytes_are_refused_with_the_file(taking: Taking, garbage: bytes) -> None:
    with pytest.raises(ImportFileError, match=r"file\.json"):
        taking(garbage)


WHOLE = json.dumps({**metrics(0.1), **spans(2)}).encode()


@given(st.integers(0, len(WHOLE) - 1), st.binary(max_size=3), st.sampled_from([None, "other"]))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_damage_is_reported_without_a_crash(taking: Taking, at: int, what: bytes, service: str | None) -> None:
    try:
        imported = taking(WHOLE[:at] + what + WHOLE[at + 1 :], service=service)
    except ImportFileError:
        return

    assert imported.requests + imported.known <= 3


@given(st.lists(st.binary(max_size=300).map(lambda data: data * 700), min_size=1, max_size=3), st.integers(1, 100_000))
def test_decompression_returns_the_original_for_any_read_sizes(members: list[bytes], most: int) -> None:
    raw = TolerantGunzip(io.BytesIO(b"".join(map(gzip.compress, members))))
    file, found = io.BufferedReader(raw), b""
    while piece := file.read(most):
        found += piece

    assert found == b"".join(members)
    assert file.read(most) == b""
    assert raw.broken == ""
