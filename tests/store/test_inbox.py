"""Inbox of spans: each span is either in the inbox or counted, with kills and several collectors."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from stagelens.core.errors import StoreError
from stagelens.store import Batch, schema
from stagelens.store.inbox import CLAIM_SECONDS, AggregationInput, AggregationResult, Parcel, replace_parcels
from tests.store.store_contents import counted, ledger, number, requests
from tests.support.raw_requests import NOON, PointAggregator, Request, Site, retained

MAX_BYTES = 10**6


def taking(delivery: AggregationInput) -> AggregationResult:
    spans = [span for parcel in delivery.load(delivery.parcels) for span in parcel.spans.split()]
    points = PointAggregator().points([Request({"forward": int(span)}, NOON - 600) for span in spans])
    return AggregationResult(points, remove_ids=[parcel.id for parcel in delivery.parcels])


def test_processed_spans_count_like_a_batch(site: Site) -> None:
    trace = retained(Request({"forward": 5}, NOON), 1)
    left = Parcel(NOON - 5, counted=False, spans=b"waits")

    def fold(delivery: AggregationInput) -> AggregationResult:
        assert [parcel.spans for parcel in delivery.load(delivery.parcels)] == [b"1000 2000", b"3000"]
        return AggregationResult(taking(delivery).points, [trace], [parcel.id for parcel in delivery.parcels], [left])

    site.store.write([Batch("a", spans=b"1000 2000"), Batch("b", spans=b"3000"), Batch("c")])
    changed = site.store.aggregate(fold, MAX_BYTES)
    waiting = site.store.waiting()

    assert changed
    assert (waiting.parcels, waiting.size_bytes, waiting.oldest) == (1, 5, NOON - 5)
    assert requests(site) == 3
    assert number(site, schema.traces) == 1
    assert ledger(site) == counted(site)


def test_processing_an_empty_inbox_writes_nothing(sqlite: Site) -> None:

    def never(_: AggregationInput) -> AggregationResult:
        raise AssertionError

    assert not sqlite.store.aggregate(never, MAX_BYTES)
    assert number(sqlite, schema.batches) == 0


def test_processing_gets_a_limited_size_oldest_first(sqlite: Site) -> None:
    given: list[tuple[list[bytes], list[bytes], bool]] = []

    def fold(delivery: AggregationInput) -> AggregationResult:
        waits, known = (
            [parcel.spans[:5] for parcel in delivery.load(each)] for each in (delivery.parcels, delivery.counted)
        )
        given.append((waits, known, delivery.complete))
        counted = [Parcel(delivery.now, counted=True, spans=b"known")] if len(given) == 1 else []
        return AggregationResult(remove_ids=[parcel.id for parcel in delivery.parcels], remaining=counted)

    sqlite.store.write([Batch("a", spans=b"x" * 30), Batch("b", spans=b"y" * 5)])
    sqlite.clock.now -= 1
    sqlite.store.write([Batch("c", spans=b"z" * 5)])
    while sqlite.store.aggregate(fold, 12):
        pass

    assert given == [
        ([b"zzzzz"], [], False),
        ([b"xxxxx"], [b"known"], False),
        ([b"yyyyy"], [b"known"], True),
    ]


def test_a_failed_processing_changes_nothing(sql: Site) -> None:
    sql.store.write([Batch("a", spans=b"7")])

    def broken(_: AggregationInput) -> AggregationResult:
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        sql.store.aggregate(broken, MAX_BYTES)

    assert sql.another().store.aggregate(taking, MAX_BYTES)
    assert requests(sql) == 1


def test_one_collector_processes_at_a_time(sql: Site) -> None:
    other = sql.another()
    sql.store.write([Batch("a", spans=b"7")])
    processed: list[bool] = []

    def slow(delivery: AggregationInput) -> AggregationResult:
        processed.append(other.store.aggregate(taking, MAX_BYTES))
        sql.clock.now += CLAIM_SECONDS
        processed.append(other.store.aggregate(taking, MAX_BYTES))
        return taking(delivery)

    processed.append(sql.store.aggregate(slow, MAX_BYTES))

    assert processed == [False, True, False]
    assert requests(sql) == 1


def test_spans_processed_by_another_cannot_be_committed(sql: Site) -> None:
    sql.store.write([Batch("a", spans=b"7")])

    def take() -> None:
        with sql.store.transaction() as connection:
            replace_parcels(connection, AggregationResult(remove_ids=[1, 2]))

    with pytest.raises(StoreError, match="already processed"):
        take()

    assert sql.store.waiting().parcels == 1


def test_several_collectors_process_the_same_inbox(shared: Site) -> None:
    collectors = [shared, shared.another(), shared.another()]
    begin = Barrier(len(collectors))

    def work(who: int) -> None:
        for step in range(6):
            begin.wait(60)
            collectors[who].store.write([Batch(f"{who}-{step}", spans=b"1000 1000")])
            collectors[who].store.aggregate(taking, MAX_BYTES)

    with ThreadPoolExecutor(len(collectors)) as pool:
        list(pool.map(work, range(len(collectors))))
    shared.store.aggregate(taking, MAX_BYTES)

    assert shared.store.waiting().parcels == 0
    assert requests(shared) == 3 * 6 * 2
    assert ledger(shared) == counted(shared)
