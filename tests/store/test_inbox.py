"""Inbox of spans: each span is either in the inbox or counted, with kills and several collectors."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
from sqlalchemy import select

from stagelens.core.errors import StoreError
from stagelens.store import Batch, RetainedTrace, schema
from stagelens.store.backup import copy_store
from stagelens.store.engines import database
from stagelens.store.inbox import CLAIM_SECONDS, AggregationInput, AggregationResult, Parcel, replace_parcels
from tests.store.store_contents import counted, ledger, number, requests
from tests.support.raw_requests import NOON, NS, OpenSite, PointAggregator, Request, Series, Site

MAX_BYTES = 10**6

ROOT = Path(__file__).parents[2]
# Script that forks processes, which each receive a batch of three spans and process the inbox: spans with an even time become
# requests, the others wait. Each process dies three steps (statements, begins or commits) later, until one completes.
DYING = """
import json, os, signal, sys
from sqlalchemy import event
from tests.support.raw_requests import NOON, Clock, PointAggregator, Request
from stagelens.store import Batch, Store
from stagelens.store.inbox import CLAIM_SECONDS, AggregationResult, Parcel

url, options = sys.argv[1], json.loads(sys.argv[2])

def fold(delivery):
    spans = [span for parcel in delivery.load(delivery.parcels) for span in parcel.spans.split()]
    now, later = spans[::2], spans[1::2]
    points = PointAggregator().points([Request({"forward": int(span)}, NOON - 600) for span in now])
    left = [Parcel(delivery.now, counted=False, spans=b" ".join(later))] if later else []
    return AggregationResult(points, [], [parcel.id for parcel in delivery.parcels], left)

def live(number, last_step, told):
    store = Store.open(url, clock=Clock(NOON + number * (CLAIM_SECONDS + 1)), **options)
    left = [last_step]
    def step(*_):
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    for name in ("before_cursor_execute", "begin", "commit"):
        event.listen(store.engine, name, step)
    store.write([Batch(f"{sent}", spans=b"%d %d %d" % (3 * sent + 1, 3 * sent + 2, 3 * sent + 3)) for sent in range(number + 1)])
    store.aggregate(fold, 10**6)
    os.write(told, b"!")
    store.close()
    os._exit(0)

number, last_step, ended = 0, 1, False
while not ended:
    answers, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        live(number, last_step, told)
    os.close(told)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 0, status
    ended = b"!" in os.read(answers, 10)
    os.close(answers)
    number += 1
    last_step += 3
print(number)
"""


def taking(delivery: AggregationInput) -> AggregationResult:
    spans = [span for parcel in delivery.load(delivery.parcels) for span in parcel.spans.split()]
    points = PointAggregator().points([Request({"forward": int(span)}, NOON - 600) for span in spans])
    return AggregationResult(points, remove_ids=[parcel.id for parcel in delivery.parcels])


def test_processed_spans_count_like_a_batch(site: Site) -> None:
    trace = RetainedTrace("ab" * 16, "01" * 8, Series("shop"), NOON * NS, 5, "slow", "forward", {"forward": 5})
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


def test_a_duplicate_batch_is_queued_once(sql: Site) -> None:
    for _ in range(2):
        sql.store.write([Batch("a", spans=b"7")])

    assert sql.store.waiting().parcels == 1


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


def test_a_kill_between_any_two_steps_counts_each_span_once(shared: Site) -> None:
    shared.close()
    command = [sys.executable, "-c", DYING, shared.url, json.dumps(shared.options)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, timeout=200)
    lives = json.loads(done.stdout)
    shared.clock.now = NOON + lives * (CLAIM_SECONDS + 1)
    shared.reopen()
    shared.store.aggregate(taking, MAX_BYTES)
    spent = shared.store.read.latency(shared.around())

    assert lives > 5
    assert shared.store.waiting().parcels == 0
    # The sum 1 + 2 + ... nanoseconds detects a span that is counted twice in place of another.
    assert spent.count == 3 * lives
    assert round(spent.sum * NS) == sum(range(1, 3 * lives + 1))
    assert ledger(shared) == counted(shared)


def test_a_copy_contains_the_inbox(open_site: OpenSite, tmp_path: Path) -> None:
    one, other = open_site(), Site(f"sqlite:///{tmp_path}/copy.db", {})
    one.store.write([Batch("a", spans=b"1000"), Batch("b", spans=b"2000")])
    copy_store(one.store, other.store, lambda _done, _of: None)
    other.store.write([Batch("c", spans=b"3000")])
    with database.reading(other.store.engine) as connection:
        numbers = connection.scalars(select(schema.inbox.c.id)).all()

    assert len(set(numbers)) == 3
    assert other.store.aggregate(taking, MAX_BYTES)
    assert requests(other) == 3
    other.close()


def test_waiting_spans_count_towards_the_store_size(sql: Site) -> None:

    def used() -> int:
        with database.reading(sql.store.engine) as connection:
            return database.used_bytes(connection)

    before = used()
    sql.store.write([Batch("a", spans=bytes(range(256)) * 4000)])

    assert used() - before > 256 * 3900
