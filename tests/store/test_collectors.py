"""Several collectors with one database: batches, series, caps and retention are consistent."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from threading import Barrier

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from stagelens.core import names
from stagelens.core.histogram import Distribution, Interval
from stagelens.store import Batch, Point, Retention, SeriesCaps, schema
from stagelens.store.collectors import TargetLostError
from stagelens.store.engines import database
from tests.store.store_contents import (
    check_tiers,
    counted,
    ledger,
    number,
    requests,
)
from tests.support.raw_requests import NOON, OpenSite, PointAggregator, Request, Series, Site

ROOT = Path(__file__).parents[2]
# Script that writes a number of batches with maintenance in between, and prints those accepted as new.
COLLECTOR = """
import json, sys
from tests.support.raw_requests import NOON, Clock, PointAggregator, Request, Series
from stagelens.store import Batch, Store

url, options, name, count = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3], int(sys.argv[4])
store = Store.open(url, clock=Clock(NOON), **options)
print("ready", flush=True)
sys.stdin.readline()
told = []
for step in range(count):
    at = NOON - 3600 + 60 * step
    requests = [Request({"forward": 10**6, "queue": 10**6}, at, Series("shop", route=route)) for route in ("/", f"/{name}/{step}")]
    shared = [Request({"forward": 10**6}, at, Series("shared"))]
    batches = [Batch(f"{name}-{step}", PointAggregator().points(requests)), Batch(f"shared-{step}", PointAggregator().points(shared))]
    told.append(store.write(batches))
    if step % 5 == 4:
        store.maintain()
print(json.dumps(told), flush=True)
store.close()
"""


def batch(name: str, *, route: str = "/", at: int = NOON - 60, n: int = 1, stage: str = "forward") -> Batch:
    return Batch(name, PointAggregator().points([Request({stage: 1_000_000}, at, Series("shop", route=route))] * n))


def test_collectors_in_separate_processes_count_each_batch_once(open_shared: OpenSite) -> None:
    one = open_shared(series_caps=SeriesCaps(route=10))
    points = {name: value for name, value in one.options.items() if name == "points_url"}
    command = [sys.executable, "-c", COLLECTOR, one.url, json.dumps(points)]
    running = [
        subprocess.Popen([*command, name, "15"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for name in ("a", "b", "c")
    ]
    results: list[list[list[bool]]] = []
    for process in running:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in running:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in running:
        output, _ = process.communicate(timeout=200)
        results.append(json.loads(output))

    assert [sum(collector[step][1] for collector in results) for step in range(15)] == [1] * 15
    assert all(own for collector in results for own, _ in collector)
    assert one.store.read.latency(one.between(NOON - 7200, NOON, service="shared")).count == 15
    assert one.store.read.latency(one.between(NOON - 7200, NOON, service="shop")).count == 3 * 15 * 2
    assert one.store.read.latency(one.between(NOON - 7200, NOON, route="/")).count == 3 * 15
    one.store.maintain()
    check_tiers(one)


def test_the_same_batch_from_several_collectors_counts_once(site: Site) -> None:
    collectors = [site, site.another(), site.another(), site.another()]
    begin = Barrier(len(collectors))

    def send(collector: Site) -> list[bool]:
        accepted: list[bool] = []
        for step in range(8):
            begin.wait(60)
            accepted += collector.store.write([batch(f"same-{step}", route=f"/{step}")])
        return accepted

    with ThreadPoolExecutor(len(collectors)) as pool:
        accepted = list(pool.map(send, collectors))

    assert [sum(results) for results in zip(*accepted, strict=True)] == [1] * 8
    assert requests(site) == 8
    assert number(site, schema.series) == 8
    check_tiers(site)


def test_caps_are_shared(open_site: OpenSite) -> None:
    caps = SeriesCaps(route=3, custom_stages=2)
    one = open_site(series_caps=caps)
    collectors = [one, one.another(), one.another()]
    for step in range(12):
        collectors[step % 3].store.write([batch(f"{step}", route=f"/{step}", stage=f"mine-{step}")])
    again = [collectors[2 - step % 3].store.write([batch(f"again-{step}", route=f"/{step}")]) for step in range(12)]
    with database.reading(one.store.engine) as connection:
        routes = set(connection.scalars(select(schema.series.c.route)))
        stages = set(connection.scalars(select(schema.stages.c.stage)))

    assert again == [[True]] * 12
    assert routes == {"/0", "/1", "/2", "__other__"}
    assert stages == {"mine-0", "mine-1"}
    assert one.store.read.latency(one.around(route="/1")).count == 2
    assert one.store.read.latency(one.around(route="__other__")).count == 18
    check_tiers(one)


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    turns=st.lists(
        st.tuples(
            st.integers(0, 2),
            st.sampled_from(["write", "write", "retry", "maintain", "restart", "later"]),
            st.integers(0, 4),
        ),
        max_size=14,
    )
)
def test_any_order_of_turns_counts_each_batch_once(open_site: OpenSite, turns: list[tuple[int, str, int]]) -> None:
    one = open_site(retention=Retention(timedelta(hours=1), timedelta(hours=3), timedelta(hours=30)))
    collectors = [one, one.another(), one.another()]
    sent: list[Batch] = []
    for who, kind, value in turns:
        collector = collectors[who]
        if kind == "write":
            sent.append(batch(f"{len(sent)}", route=f"/{value}", at=int(one.clock.now) - 600 * value))

            assert collector.store.write([sent[-1]]) == [True]
        elif kind == "retry" and sent:
            assert collector.store.write([sent[-1 - value % len(sent)]]) == [False]
        elif kind == "maintain":
            collector.store.maintain()
        elif kind == "restart":
            collector.reopen()
        elif kind == "later":
            one.clock.now += 1000 * value

    assert requests(one) == len(sent)
    assert ledger(one) == counted(one)


def reading(name: str, count: int) -> Batch:
    made = Distribution()
    made.add(0.5, 1.0, count - 1)
    made.add(10.0, float("inf"), 1)
    made.set_sum(0.75 * count)
    both = zip(names.ENGINE_REQUEST, (made.lows, made.highs), strict=True)
    return Batch(name, [Point(Series("chat"), metric, names.BY_ENGINE, NOON, each) for metric, each in both])


def test_a_target_is_leased_by_one_collector_and_counted_once(site: Site) -> None:
    store = site.store
    first = store.take_target("http://engine", "a", NOON, 30)
    store.write_reading("http://engine", "a", NOON + 30, b"one", reading("1", 100))
    waiting = store.take_target("http://engine", "b", NOON + 29, 30)
    taken = store.take_target("http://engine", "b", NOON + 31, 30)
    with pytest.raises(TargetLostError):
        store.write_reading("http://engine", "a", NOON + 60, b"two", reading("2", 50))
    store.write_reading("http://engine", "b", NOON + 60, b"three", reading("3", 10))
    store.release_targets("b")
    back = store.take_target("http://engine", "a", NOON + 32, 30)
    window = site.between(NOON - 3600, NOON + 3600)
    before = store.read.engines(window)[0].requests
    # The error bounds are the same after rollup.
    site.clock.now = NOON + 3 * 3600
    store.maintain()
    after = store.read.engines(window)[0].requests

    assert (first, waiting, taken, back) == (b"", None, b"one", b"three")
    assert before.count == after.count == 110
    assert before.mean == after.mean == 0.75
    assert before.quantile(0.5) == after.quantile(0.5) == Interval(2 ** (-33 / 32), 1.0)
    assert after.quantile(1.0) == Interval(before.lows.quantile(1.0).low, float("inf"))  # pyright: ignore[reportOptionalMemberAccess] - it has values
