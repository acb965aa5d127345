"""Every engine returns the results of SQLite, on which the tests of single queries run."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from stagelens.core import hardware, names
from stagelens.core.attributes import ATTRIBUTE_SCALE
from stagelens.core.histogram import SCALE, Histogram
from stagelens.store import Batch, Event, Point, schema
from stagelens.store.reader import Reader
from tests.store.questions import NOT_ASKED, query_results
from tests.store.test_exactness import END, START, Delivery, deliveries
from tests.support.raw_requests import OpenSite, Request, Site, retained

# Keys of each metric besides requests and stages.
KEYS = {
    names.FIRST_TOKEN: (names.BY_GENERATE,),
    names.OUTPUT_TOKEN: (names.BY_GENERATE,),
    names.STREAM_GAP: (names.BY_FIRST_CHUNK,),
    names.FIRST_TOKEN_TIME: ("forward",),
    names.TOKENS: (names.TOKENS_OUT,),
    names.FAILED_CALL: ("timeout",),
    names.BATCH_DURATION: ("4",),
    names.FIRST_TOKEN_BY_INPUT: (f"{names.BY_GENERATE}:256",),
    names.AGENT_COST: ("all",),
    names.STALL_TIME: ("gc:forward",),
    names.PROFILE_TIME: ("forward;serve:predict@serve.py:30",),
    names.HARDWARE: (hardware.CPU.key,),
    names.ENGINE_REQUEST[0]: ("forward",),
    names.ENGINE_REQUEST[1]: ("forward",),
    names.REQUEST_BY_ATTRIBUTE: ("tenant=it's 50%", "tenant=", "replica=web-1:7", "replica=web-2:7"),
    names.REPLICA_STAGE_TIME: ("forward;web-1:7", "queue;web-2:7"),
    names.OPEN_TIME: ("open web-1:7", "open web-2:7"),
    names.PROBE_DURATION: ("untimed",),
    names.COLLECTOR_LOST: ("late_spans", "too_large"),
}


@pytest.mark.parametrize(
    "open_site",
    [pytest.param(engine, marks=pytest.mark.stacks) for engine in ("postgresql", "sqlite+clickhouse")],
    indirect=True,
)
@settings(
    max_examples=3,
    deadline=None,
    # Seeded random data do not become simpler by shrinking.
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow],
)
@given(batches=deliveries(), seed=st.integers(0, 2**32))
def test_every_query_result_equals_sqlite(
    open_site: OpenSite, open_sqlite: OpenSite, batches: list[Delivery], seed: int
) -> None:
    one, other = open_sqlite(), open_site()
    for each in (one, other):
        fill(each, batches, seed)
        if seed % 2:
            # After a day the finest tier has expired.
            each.clock.now += 86_400
            each.store.maintain()
    expected, actual = (query_results(each.store, each.between(START, int(each.clock.now))) for each in (one, other))
    one.close()
    other.close()

    assert {question: result for question, result in actual.items() if result != expected[question]} == {}


def test_every_query_of_the_reader_is_tested(sqlite: Site) -> None:
    methods = {name for name, _ in inspect.getmembers(Reader, inspect.isfunction) if not name.startswith("_")}

    assert query_results(sqlite.store, sqlite.around()).keys() == methods - NOT_ASKED


def fill(one: Site, batches: Sequence[Delivery], seed: int) -> None:
    random = Random(seed)
    for number, batch in enumerate(batches):
        one.write(batch.requests, scale=batch.scale)
        points = [point for request in batch.requests for point in beside(request, random)]
        traces = [retained(request, 16 * number + place) for place, request in enumerate(batch.requests[:3])]
        one.store.write([Batch(f"beside-{number}", points, traces, instance="agent-1", dropped=number)])
        one.clock.now += batch.wait
        one.store.maintain()
    one.store.add_event(Event(datetime.fromtimestamp(END - 60, UTC), "shop", "deploy", "2", "2 is out"))


def beside(request: Request, random: Random) -> Iterator[Point]:
    metric = random.choice(list(KEYS))
    histogram = Histogram(ATTRIBUTE_SCALE if metric in schema.WITHOUT_TOTALS else SCALE)
    histogram.record(random.uniform(0.001, 3.0), random.randint(1, 9))
    if metric in names.TIME_METRICS:
        histogram.sum = 0.0
    yield Point(request.series, metric, random.choice(KEYS[metric]), request.at - request.at % 10, histogram)
