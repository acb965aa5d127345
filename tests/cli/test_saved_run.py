"""Saved runs are complete: a store that ingests one returns the results of the original store."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagelens.cli.saved_run import Run, save_run
from stagelens.collector.imports.importer import import_file
from stagelens.collector.ingest.validation import TimeWindow
from stagelens.collector.serve import Collector, CollectorConfig
from stagelens.core.errors import StagelensError
from stagelens.core.histogram import Histogram
from stagelens.core.request_histograms import dominant_stage
from stagelens.core.stages import OVERHEAD
from stagelens.dashboard.view import trace_name
from stagelens.store import Batch, Reader, RetainedTrace, Selection, Series, Store
from tests.support.raw_requests import NOON, NS, PointAggregator, Request, attribute_points
from tests.support.serving import serving

RUN = Run(["python", "serve.py"], datetime.fromtimestamp(NOON, UTC), datetime.fromtimestamp(NOON + 1, UTC), 0)
EVER = (datetime.fromtimestamp(NOON - 7200, UTC), datetime.fromtimestamp(NOON + 7200, UTC))
PERCENTILES = (0.0, 0.5, 0.95, 0.99, 1.0)

names = st.text(st.characters(categories=("L", "N", "P")), min_size=1, max_size=12)
series = st.builds(
    Series,
    service=st.sampled_from(["shop", "bücher"]),
    version=st.sampled_from(["", "2"]),
    environment=st.sampled_from(["", "prod"]),
    model=st.sampled_from(["", "resnet"]),
    route=st.sampled_from(["", "/items/{id}", "/ü"]),
    device=st.sampled_from(["", "cuda:0"]),
    status=st.sampled_from(["ok", "error"]),
)
stages = st.dictionaries(
    st.sampled_from(["forward", "queue", "my_rerank", OVERHEAD]), st.integers(0, 10**11), min_size=1
)
requests = st.builds(Request, stages_ns=stages, at=st.integers(NOON - 3000, NOON), series=series)
attributes = st.dictionaries(
    names.map("my.{}".format),
    st.one_of(names, st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False), st.booleans()),
    max_size=4,
)


@st.composite
def retained_trace(draw: st.DrawFn) -> RetainedTrace:
    spent = draw(stages)
    spans = [
        {
            "name": draw(names),
            "stage": draw(st.sampled_from(["forward", ""])),
            "start_ns": start,
            "duration_ns": draw(st.integers(0, 10**10)),
            "attributes": draw(attributes),
        }
        for start in sorted(draw(st.sets(st.integers(0, 10**10), max_size=4)))
    ]
    return RetainedTrace(
        trace_id=draw(st.integers(1, 2**128 - 1)).to_bytes(16, "big").hex(),
        span_id=draw(st.integers(1, 2**64 - 1)).to_bytes(8, "big").hex(),
        series=draw(series),
        started_ns=NOON * NS + draw(st.integers(-(10**12), 0)),
        duration_ns=sum(spent.values()),
        because=draw(st.sampled_from(["slow", "error", "uniform"])),
        dominant=dominant_stage(spent),
        stages_ns=spent,
        spans=spans,
        attributes=draw(attributes),
        parent_id=draw(st.sampled_from(["", "ab" * 8])),
    )


def take_in(path: Path, store: Store) -> None:
    imported = import_file(path, store, TimeWindow(0, 2**40))

    assert (imported.broken_count, imported.notes) == (0, [])


def numbers(histogram: Histogram) -> tuple[Any, ...]:
    """Counts of *histogram*; sums are those of floats, in any order."""
    return histogram.scale, histogram.buckets, histogram.zero, pytest.approx(histogram.sum, rel=1e-9)


def query_results(read: Reader) -> Iterator[Any]:
    for service in read.services(*EVER)["service"]:
        about = Selection(*EVER, service=service)
        for part in (about, replace(about, status="error"), replace(about, version="2")):
            yield numbers(read.latency(part))
            yield {stage: numbers(each) for stage, each in read.stage_latency(part).items()}
            yield read.breakdown(part, PERCENTILES)
            yield read.dominants(part, PERCENTILES)
            yield read.heat(part, EVER[1] - EVER[0])
            yield repr((read.attributes(part), read.replica_counts(part)))
        yield read.dimensions(about)
        exemplars = read.exemplars(about, limit=100)
        yield exemplars
        yield [read.trace(trace_name(*ids)) for ids in zip(exemplars["trace_id"], exemplars["span_id"], strict=True)]
    yield read.state().dropped


def assert_same(actual: Any, expected: Any) -> None:
    if isinstance(expected, pd.DataFrame):
        pd.testing.assert_frame_equal(actual, expected, rtol=1e-9)
    else:
        assert actual == expected


@pytest.fixture(scope="module")
def new_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Store]]:
    folder, opened, count = tmp_path_factory.mktemp("saved"), list[Store](), itertools.count()

    def new(now: float = NOON + 60) -> Store:
        opened.append(Store.open(f"sqlite:///{folder / str(next(count))}.db", clock=lambda: now))
        return opened[-1]

    yield new
    for store in opened:
        store.close()


@settings(max_examples=5, deadline=None)
@given(
    asked=st.lists(requests, min_size=1, max_size=30),
    traces=st.lists(retained_trace(), max_size=4, unique_by=lambda trace: trace.trace_id),
    dropped=st.integers(0, 2**40),
)
def test_every_query_is_equal_in_a_store_that_ingests_the_run(
    new_store: Callable[..., Store],
    tmp_path_factory: pytest.TempPathFactory,
    asked: list[Request],
    traces: list[RetainedTrace],
    dropped: int,
) -> None:
    path = tmp_path_factory.mktemp("run") / "run.json"
    one, other = new_store(), new_store()
    half = len(asked) // 2
    # In two writes, so that there are buckets with more than one row.
    one.write([Batch("a", PointAggregator().points(asked[:half]), traces, dropped)])
    one.write([Batch("attributes", attribute_points(asked))])
    one.write([Batch("b", PointAggregator(scale=3).points(asked[half:]))])
    save_run(one, path, RUN)
    take_in(path, other)

    for actual, expected in zip(query_results(other.read), query_results(one.read), strict=True):
        assert_same(actual, expected)


def test_expired_fine_buckets_are_saved_as_hours(new_store: Callable[..., Store], tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    clock = [float(NOON)]
    store = Store.open(f"sqlite:///{tmp_path / 'long.db'}", clock=lambda: clock[0])
    store.write([Batch("a", PointAggregator().points([Request({"forward": NS}, at=NOON - 600)] * 5))])
    clock[0] += 86_400 * 30
    store.maintain()
    store.write([Batch("b", PointAggregator().points([Request({"forward": 2 * NS}, at=int(clock[0]) - 60)] * 3))])
    save_run(store, path, RUN)
    store.close()
    other = new_store(clock[0])
    take_in(path, other)
    ever = Selection(EVER[0], datetime.fromtimestamp(NOON + 86_400 * 31, UTC))

    assert other.read.latency(ever).count == 8
    assert other.read.latency(Selection(*EVER)).count == 5


def test_a_collector_ingests_a_saved_run_once(new_store: Callable[..., Store], tmp_path: Path) -> None:
    now = int(datetime.now(UTC).timestamp())
    saved, path = new_store(now), tmp_path / "run.json"
    saved.write([Batch("a", PointAggregator().points([Request({"forward": NS}, at=now - 60)] * 7))])
    save_run(saved, path, RUN)
    store = Store.open(f"sqlite:///{tmp_path / 'collected.db'}")
    with serving(Collector(CollectorConfig(port=0), store)) as url:
        json_ = {"Content-Type": "application/json"}
        responses = [
            httpx.post(f"{url}/v1/{signal}", content=path.read_bytes(), headers=json_, timeout=60).text
            for signal in ("metrics", "metrics", "traces", "traces")
        ]
    start, end = (datetime.fromtimestamp(at, UTC) for at in (now - 3600, now))
    count = store.read.latency(Selection(start, end)).count
    store.close()

    assert responses == ["{}"] * 4
    assert count == 7


def test_a_file_that_cannot_be_written_is_unchanged(new_store: Callable[..., Store], tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text("before")
    (tmp_path / "sub").mkdir()
    store = new_store()
    with pytest.raises(StagelensError, match="could not be written"):
        save_run(store, tmp_path / "sub" / "nowhere" / "run.json", RUN)
    save_run(store, path, RUN)

    assert json.loads(path.read_text())["resourceMetrics"] == []
    assert sorted(each.name for each in tmp_path.iterdir()) == ["run.json", "sub"]
