"""From records to histograms and bodies."""

from __future__ import annotations

import gzip
import random
from collections import Counter, defaultdict, deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelens.collector.ingest.points import PointReader
from stagelens.collector.ingest.retained_traces import RetainedTraceReader
from stagelens.collector.ingest.validation import TimeWindow
from stagelens.collector.otlp import protobuf_encoding
from stagelens.collector.otlp.model import PROTOBUF
from stagelens.collector.traces.span_reader import SpanReader
from stagelens.core import names
from stagelens.core.health_probes import PROBES, ProbePolicy
from stagelens.core.histogram import Histogram, bucket_index
from stagelens.core.request_histograms import RequestHistograms, dominant_stage
from stagelens.core.stages import OTHER, OVERHEAD
from stagelens.instrumentors import recorder, records
from stagelens.instrumentors.agent import aggregate
from stagelens.instrumentors.agent.aggregate import Aggregator, Delta, Dimensions
from stagelens.instrumentors.agent.spans import MAX_SPANS, RetainedRequest, Trace, build_trace
from stagelens.instrumentors.config import SamplingLimits
from stagelens.instrumentors.export.otlp import Encoder, ExportInterval
from stagelens.instrumentors.stalls import HEARTBEAT_SECONDS, IDLE_SECONDS, LoopLag, Stalls
from stagelens.instrumentors.trace_context import Parent, parse
from tests.collector.traces.otlp import read_spans
from tests.instrumentors.conftest import plain, record
from tests.support.otlp_bodies import read_traces

MS = 1_000_000
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def aggregated(*records: records.Record, **options: Any) -> dict[Dimensions, Delta]:
    fold = Aggregator(SamplingLimits(), random.Random(1), **options)
    for item in records:
        fold.add(item)
    return fold.take()


def trace_in(deltas: dict[Dimensions, Delta]) -> Trace:
    ((dimensions, delta),) = deltas.items()
    ((record, because),) = delta.sampler.retained()
    return build_trace(RetainedRequest(record, because, dimensions, delta.own_stages))


def retained_trace(item: records.Record) -> Trace:
    return trace_in(aggregated(item))


def of(delta: Delta, wanted: str) -> dict[str, Histogram]:
    return {key: histogram for metric, key, histogram in delta.counts.histograms() if metric == wanted}


def only(deltas: dict[Dimensions, Delta]) -> Delta:
    (delta,) = deltas.values()
    return delta


def test_health_probes_are_counted_apart() -> None:
    probes = [
        record(("@method", "GET", 0), route="/healthz", http_status=503),
        record(route="grpc.health.v1.Health/Check"),
        record(("@method", "GET", 0), ("@user_agent", "kube-probe/1.31", 0), route="/"),
    ]
    users = [
        record(("@method", "POST", 0), route="/ping"),
        record(("@method", "GET", 0), ("@user_agent", "curl/8", 0), route="/"),
        record(route="/healthz", kind="internal"),
    ]
    deltas = aggregated(*probes, *users)
    counted = {each.route: delta.counts.requests for each, delta in deltas.items() if delta.counts.requests}
    apart = {each.route: delta for each, delta in deltas.items() if of(delta, names.PROBE_DURATION)}

    assert counted == {"/ping": 1, "/": 1, "/healthz": 1}
    assert {(each.route, each.status) for each, delta in deltas.items() if of(delta, names.PROBE_DURATION)} == {
        ("/healthz", "error"),
        ("grpc.health.v1.Health/Check", "ok"),
        (PROBES, "ok"),
    }
    assert {metric for delta in apart.values() for metric, *_ in delta.counts.histograms()} == {names.PROBE_DURATION}
    assert not any(list(delta.sampler.retained()) for delta in apart.values())
    assert len(aggregated(*probes, probes=ProbePolicy.parse("none"))) == 3


def test_facts_status_and_loads_determine_the_series() -> None:
    facts = (("@model", "a", 0), ("@model", "b", 0), ("@model_version", 3, 0), ("@device", "cpu", 0))
    failed = record(http_status=503), record(error_type="KeyError"), record(("load", 0, MS), http_status=500)
    cold = record(("load", 0, MS)), record(("forward", 0, MS), ("load", 2 * MS, 3 * MS))
    deltas = aggregated(record(*facts), record(http_status=404), record(("load", 11 * MS, 12 * MS)), *failed, *cold)

    assert {dimensions: delta.counts.requests for dimensions, delta in deltas.items()} == {
        Dimensions("b", "3", "/predict", "cpu", "ok"): 1,
        Dimensions("", "", "/predict", "", "ok"): 2,
        Dimensions("", "", "/predict", "", "ok", "true"): 2,
        Dimensions("", "", "/predict", "", "error"): 2,
        Dimensions("", "", "/predict", "", "error", "true"): 1,
    }


durations = st.integers(0, 10 * MS)
stages = st.sampled_from(["forward", "queue", "preprocess"])


@given(st.lists(st.lists(st.tuples(stages, durations, durations), max_size=5), min_size=1, max_size=20), durations)
def test_the_time_spent_in_stages_adds_up_to_the_latency(requests: list[list[Any]], end: int) -> None:
    delta = only(aggregated(*(record(*triples, end=end) for triples in requests)))

    spent: Counter[int] = Counter()
    for histogram in of(delta, names.STAGE_TIME).values():
        spent.update(histogram.buckets)

    assert delta.counts.requests == of(delta, names.STAGE_DURATION)[OVERHEAD].count == len(requests)
    assert +spent == +Counter({bucket_index(max(end, 1) / 1e9): (end * len(requests) + 500) // 1000})


def test_stalls_are_counted_by_request_latency(fold: Aggregator) -> None:
    aggregate.stalls.note("gc", 3 * MS, 5 * MS)
    for item in (record(("forward", 0, 4 * MS)), record(("forward", 2 * MS, 9 * MS)), record(end=2 * MS)):
        fold.add(item)
    delta = only(fold.take())
    bucket = bucket_index(0.01)

    assert {key: histogram.buckets for key, histogram in of(delta, names.STALL_TIME).items()} == {
        "gc:forward": {bucket: 3000},
        "gc:overhead": {bucket: 1000},
    }


def test_a_series_has_at_most_three_custom_stages() -> None:
    fold = Aggregator(SamplingLimits(), random.Random(1))
    fold.add(record(*((f"own-{number}", number, number + 1) for number in range(5))))
    first = only(fold.take())
    fold.add(record(("own-4", 0, 1), ("own-2", 1, 2), ("forward", 2, 3)))

    assert set(of(first, names.STAGE_DURATION)) == {"own-0", "own-1", "own-2", OTHER, OVERHEAD}
    assert set(of(only(fold.take()), names.STAGE_DURATION)) == {OTHER, "own-2", "forward", OVERHEAD}


STREAM = {names.FIRST_TOKEN, names.FIRST_TOKEN_BY_INPUT, names.OUTPUT_TOKEN, names.OUTPUT_TOKEN_BY_OUTPUT}
CONTENT = "client_first_content"


@pytest.mark.parametrize(
    ("triples", "counted"),
    [
        (
            [
                *(("@first_token", 5 * MS, "generate"), ("@first_token", 9 * MS, "first_chunk")),
                *(("@tokens_in", 7, 0), ("@tokens_in", 5, 0), ("@tokens_out", 3, 0), ("@per_token", 4 * MS, 2)),
                *(("@gap", MS, 0), ("@gap", 3 * MS, 0), ("@gap", 2 * MS, 0)),
            ],
            {
                (names.FIRST_TOKEN, "generate"): (1, 0.005),
                (names.FIRST_TOKEN_BY_INPUT, "8-15"): (1, 0.005),
                (names.OUTPUT_TOKEN, "generate"): (1, 0.002),
                (names.OUTPUT_TOKEN_BY_OUTPUT, "2-3"): (1, 0.002),
                (names.STREAM_GAP, "generate"): (1, 0.003),
                (names.TOKENS, names.TOKENS_IN): (1, 12),
                (names.TOKENS, names.TOKENS_OUT): (1, 3),
            },
        ),
        (
            [
                *(("@first_token", 2 * MS, CONTENT), ("@gap", MS, CONTENT), ("@per_token", 6 * MS, (3, CONTENT))),
                *(("@per_token", 4 * MS, 4), ("@first_token", 3 * MS, "first_chunk"), ("@gap", 5 * MS, "first_chunk")),
                *(("@gap", 2 * MS, CONTENT), ("@tokens_in", 0, 0)),
            ],
            {
                (names.FIRST_TOKEN, CONTENT): (1, 0.002),
                (names.OUTPUT_TOKEN, CONTENT): (2, 0.003),
                (names.STREAM_GAP, CONTENT): (1, 0.002),
                (names.STREAM_GAP, "first_chunk"): (1, 0.005),
            },
        ),
    ],
    ids=["by definition and size", "each definition"],
)
def test_streams_are_counted(triples: list[Any], counted: dict[tuple[str, str], tuple[int, float]]) -> None:
    delta = only(aggregated(record(("forward", MS, 2 * MS), *triples)))
    metrics = {*STREAM, names.STREAM_GAP, names.TOKENS}
    histograms = {(metric, key): each for metric, key, each in delta.counts.histograms() if metric in metrics}

    assert {key: (histogram.count, round(histogram.sum, 9)) for key, histogram in histograms.items()} == counted


def test_stages_are_counted_up_to_the_first_token() -> None:
    stages = (("prefill", MS, 4 * MS), ("decode", 4 * MS, 10 * MS))
    delta = only(aggregated(record(*stages, ("@first_token", 5 * MS, "generate"))))

    assert {stage: histogram.buckets for stage, histogram in of(delta, names.FIRST_TOKEN_TIME).items()} == {
        "prefill": {bucket_index(0.005): 3000},
        "decode": {bucket_index(0.005): 1000},
        OVERHEAD: {bucket_index(0.005): 1000},
    }


def test_model_time_is_counted_by_batch_size() -> None:
    delta = only(
        aggregated(
            record(("@batch", 9, 0), ("forward", 0, 2 * MS), ("forward", 3 * MS, 6 * MS), ("@batch", 5, 0)),
            record(("prefill", 0, 4 * MS), ("h2d", 0, MS), ("decode", 4 * MS, 9 * MS), ("@batch", 1, 0)),
            record(("forward", 0, MS), ("@batch", 4, 0)),
            record(("forward", 0, MS), ("@batch", 10**9, 0)),
            # No model ran.
            record(("queue", 0, MS), ("@batch", 4, 0)),
            record(("@batch", 4, 0)),
        )
    )

    assert {band: (histogram.count, histogram.sum) for band, histogram in of(delta, names.BATCH_DURATION).items()} == {
        "4-7": (2, 0.006),
        "1": (1, 0.003),
        "1024+": (1, 0.001),
    }


class Odd:
    def __bool__(self) -> bool:
        raise ValueError


NO_NUMBERS = [0, -3, None, "many", Odd(), float("nan"), float("inf"), [1]]


@pytest.mark.parametrize(
    "fact",
    [
        *(("@batch", batch, 0) for batch in NO_NUMBERS),
        *(("@first_token", when, "generate") for when in ("soon", None, -5, 99 * MS)),
    ],
)
def test_an_invalid_number_is_dropped_alone(fact: tuple[Any, ...]) -> None:
    item = record(("forward", 0, MS), fact, ("@model", 7, 0), ("@traceparent", b"00-", 0), ("@tokens_out", "many", 0))
    delta = only(aggregated(item))
    root = retained_trace(item).spans[0]

    metrics = {metric for metric, _, _ in delta.counts.histograms()}
    assert metrics == {names.REQUEST_DURATION, names.STAGE_DURATION, names.STAGE_TIME}
    assert root.attributes[names.MODEL] == "7"
    assert names.BATCH_SIZE not in root.attributes


def test_a_cold_series_needs_no_slot_and_shares_stage_names_with_its_warm_one() -> None:
    own = [(f"own{number}", 0, MS) for number in range(4)]
    deltas = aggregated(record(*own), record(*own[::-1], ("load", MS, 2 * MS)), max_series=1)
    warm, cold = (set(of(delta, names.STAGE_DURATION)) for delta in deltas.values())
    beyond = aggregated(
        record(("load", 0, MS)), *(record(("load", 0, MS), route=f"/{n}") for n in range(3)), max_series=2
    )

    assert cold == warm | {"load"}
    assert {dimensions.route: dimensions.cold for dimensions in beyond} == {
        "/predict": "true",
        "/0": "true",
        OTHER: "true",
    }


def test_failed_calls_and_unused_reports_are_counted() -> None:
    item = record(
        ("dependency", 0, 5 * MS),
        *(("@suspect", server, spent) for server, spent in (("tgi", 5 * MS), ("openai", MS), ("tgi", MS))),
        *(("@failed", "triton:timeout", spent) for spent in (MS, 3 * MS)),
    )
    delta = only(aggregated(item))
    counted = [
        (metric, key, calls.count, calls.sum)
        for metric in (names.SUSPECT_REPORT, names.FAILED_CALL)
        for key, calls in of(delta, metric).items()
    ]

    assert counted == [
        (names.SUSPECT_REPORT, "tgi", 2, 0.006),
        (names.SUSPECT_REPORT, "openai", 1, 0.001),
        (names.FAILED_CALL, "triton:timeout", 2, 0.004),
    ]
    assert retained_trace(item).spans[0].attributes[names.SUSPECT] == "openai, tgi"


def test_how_a_stage_was_timed_is_not_part_of_its_name() -> None:
    delta = only(
        aggregated(record(("forward@launch", 0, 2 * MS), ("forward@gpu", MS, 7 * MS), ("queue@averaged", 8, 9)))
    )

    assert set(of(delta, names.STAGE_DURATION)) == {"forward", "queue", OVERHEAD}
    assert of(delta, names.STAGE_DURATION)["forward"].sum == pytest.approx(0.007 - 1e-9)


def test_series_over_the_limit_are_aggregated() -> None:
    deltas = aggregated(*(record(route=f"/{number}") for number in range(9)), record(http_status=500), max_series=3)

    assert len(deltas) == 5
    assert deltas[Dimensions(OTHER, OTHER, OTHER, OTHER, "ok")].counts.requests == 6
    assert deltas[Dimensions(OTHER, OTHER, OTHER, OTHER, "error")].counts.requests == 1


def test_texts_are_truncated_and_made_printable() -> None:
    (dimensions,) = aggregated(record(("@model", "m" * 999 + "\n", 0), route="/a\x00b"))
    stages = of(only(aggregated(record(("own\nstage" + "x" * 99, 0, 1)))), names.STAGE_DURATION)

    assert dimensions.model == "m" * 200
    assert dimensions.route == "/a\ufffdb"
    assert {len(stage) for stage in stages} == {64, len(OVERHEAD)}


def test_a_retained_trace_has_its_longest_intervals() -> None:
    root, *below = retained_trace(
        record(*(("decode", 10 * number, 10 * number + 1 + number % 9) for number in range(5000)))
    ).spans
    own = [value for key, value in root.attributes.items() if key.startswith(names.STAGE_SELF_PREFIX)]

    assert root.attributes[names.RETAINED_BECAUSE] == "slow"
    assert len(below) == MAX_SPANS
    assert {span.end - span.start for span in below} == {9}
    assert sum(value for value in own if isinstance(value, int)) == 10 * MS


@pytest.mark.parametrize(
    "header",
    [
        *("", "00-short-b7ad6b7169203331-01", TRACEPARENT.upper(), f"{TRACEPARENT}x", f"{TRACEPARENT}-more"),
        *(f"00-{'0' * 32}-{'b' * 16}-01", f"00-{'a' * 32}-{'0' * 16}-01", f"ff-{'a' * 32}-{'b' * 16}-01"),
    ],
)
def test_an_invalid_traceparent_is_ignored(header: str) -> None:
    assert parse(header) is None


def test_a_retained_trace_is_a_root_and_a_span_per_interval() -> None:
    item = record(
        ("@method", "POST", 0),
        ("@batch", 4, 0),
        ("@traceparent", TRACEPARENT, 0),
        ("forward", 2 * MS, 7 * MS),
        ("serialize", 9 * MS, 99 * MS),
        ("queue", 20 * MS, 30 * MS),
        http_status=503,
    )
    body = read_traces(Encoder({"service.name": "shop"}, lambda: None).traces([retained_trace(item)], 1000))
    root, *children = body["resourceSpans"][0]["scopeSpans"][0]["spans"]
    attributes = plain(root["attributes"])
    times = {key: value for key, value in attributes.items() if key.startswith(names.STAGE_SELF_PREFIX)}

    assert (root["name"], root["kind"], root["status"]["code"]) == ("POST /predict", 2, 2)
    assert Parent(root["traceId"], root["parentSpanId"], 1) == parse(TRACEPARENT)
    assert (root["startTimeUnixNano"], root["endTimeUnixNano"]) == ("1000", str(1000 + 10 * MS))
    assert (
        attributes.items()
        >= {
            "http.request.method": "POST",
            "http.response.status_code": 503,
            "error.type": "503",
            "inference.status": "error",
            "inference.batch.size": 4,
            "stagelens.kept.because": "error",
        }.items()
    )
    assert sum(times.values()) == 10 * MS
    assert [(child["name"], plain(child["attributes"])[names.STAGE]) for child in children] == [
        ("forward", "forward"),
        ("serialize", "serialize"),
    ]
    assert {child["parentSpanId"] for child in children} == {root["spanId"]}
    assert children[1]["endTimeUnixNano"] == root["endTimeUnixNano"]


class Hostile(str):
    __slots__ = ()

    def _fail(self, *_: object) -> Any:
        raise RuntimeError

    __str__ = __repr__ = __hash__ = __eq__ = __bool__ = __int__ = _fail


NUMBERS = (-1, 10**30, 10**400, float("nan"), float("inf"))
INVALID_VALUES = (Hostile("x"), object(), "x" * 10**6, "\ud800", b"x", *NUMBERS, [1], None)
KEYS = (
    *("@model", "@model_version", "@device", "@provider", "@method", "@batch", "@traceparent", "@force"),
    *("@first_token", "@tokens_in", "@tokens_out", "@per_token", "@gap", "@failed", "@suspect", "@unheard_of"),
)


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("second", [0, 3, *INVALID_VALUES[:1], 10**400])
def test_an_invalid_fact_does_not_drop_the_request(key: str, second: Any) -> None:
    encoder, window = Encoder({}, lambda: None), TimeWindow(0, 2**40)
    for value in INVALID_VALUES:
        deltas = aggregated(record(("forward", 0, MS), (key, value, second)))
        points, spans = PointReader(window), RetainedTraceReader(window)
        points.read(protobuf_encoding.read_metrics(gzip.decompress(encoder.metrics(ExportInterval(0, MS), deltas, {}))))
        body = gzip.decompress(encoder.traces([trace_in(deltas)], 0))
        spans.read(read_spans(SpanReader(), PROTOBUF, body, window, spans.tally).retained)

        assert only(deltas).counts.requests == 1
        assert len(spans.traces) == 1
        assert (points.tally.messages, spans.tally.messages) == ([], [])


@pytest.mark.parametrize(("level", "counted"), [(0, True), (1, True), (2, False), (3, False)])
def test_attributes_are_counted_at_the_levels_with_facts(level: int, counted: bool) -> None:
    aggregator = Aggregator(SamplingLimits(), random.Random(1))
    aggregator.level = level
    aggregator.add(record(("@attribute", ("tenant", "acme"), 0)))
    (taken,) = [[*attributes.take()] for _, attributes in aggregator.attributes()]

    assert [key for _, key, _ in taken] == (["tenant=acme"] if counted else [])


@pytest.fixture
def fold(monkeypatch: pytest.MonkeyPatch) -> Aggregator:
    """An aggregator with stalls and an event loop of its own."""
    monkeypatch.setattr(recorder, "pending", deque([record()]))
    monkeypatch.setattr("stagelens.instrumentors.agent.aggregate.loop_lag", LoopLag())
    monkeypatch.setattr("stagelens.instrumentors.agent.aggregate.stalls", Stalls())
    return Aggregator(SamplingLimits(), random.Random(1))


@pytest.mark.parametrize(
    ("requests", "closely"),
    [
        ([(0, 10)] + [(at, at + 50) for at in range(100, 1000, 100)], False),
        ([(0, 30), (20, 50)], True),
        ([(0, 100)], True),
    ],
    ids=["short ones, one after the other", "together", "long"],
)
def test_loops_are_watched_closely_where_requests_may_wait(
    fold: Aggregator, requests: list[tuple[int, int]], closely: bool
) -> None:
    for number, (start, end) in enumerate(requests):
        marks: list[Any] = [records.CLOSED, start * MS, 0, records.ARRIVAL, number, 0]
        fold.arrivals.end(number, end * MS)
        fold.add((marks, start * MS, end * MS, "/predict", "", 200, "server"))

    assert (aggregate.loop_lag.seconds() == HEARTBEAT_SECONDS) == closely


def test_loops_are_watched_closely_if_they_hold_up_more_than_a_few_requests(fold: Aggregator) -> None:
    aggregate.stalls.note("loop", 1 * MS, 7 * MS)
    for _ in range(2):
        assert aggregate.loop_lag.seconds() == IDLE_SECONDS
        fold.add(record())

    assert aggregate.loop_lag.seconds() == HEARTBEAT_SECONDS


@given(st.lists(st.dictionaries(st.sampled_from(["overhead", "forward", "queue"]), st.integers(0, 3 * MS), min_size=1)))
def test_histograms_are_those_of_single_values(requests: list[dict[str, int]]) -> None:
    counts, by_stage = RequestHistograms(), defaultdict[tuple[str, str], Histogram](Histogram)
    for own in requests:
        counts.add(own, sum(own.values()))
        by_stage[names.REQUEST_DURATION, dominant_stage(own)].count_one(sum(own.values()) / 1e9)
        for stage, spent in own.items():
            by_stage[names.STAGE_DURATION, stage].count_one(spent / 1e9)

    assert {
        (metric, key): histogram for metric, key, histogram in counts.histograms() if metric != names.STAGE_TIME
    } == by_stage
