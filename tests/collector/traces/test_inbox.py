"""Requests from spans: counted once for any order of exports, with stages that add up to the latency."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagelens.analysis.critical_path import place_requests
from stagelens.collector.traces.columns import (
    ROW,
    Flag,
    Label,
    StreamMeasurements,
    decode_rows,
    decode_spans,
    encode_spans,
)
from stagelens.collector.traces.inbox import InboxLimits, InboxOutcome
from stagelens.collector.traces.requests import Intervals, split_by_stage
from stagelens.collector.traces.sampling import SamplingPolicy
from stagelens.core import names
from stagelens.core.attributes import ATTRIBUTE_SCALE
from stagelens.core.histogram import bucket_index
from stagelens.core.partition import partition
from stagelens.core.request_histograms import dominant_stage
from stagelens.store import schema
from stagelens.store.inbox import Parcel
from stagelens.store.queries.paths import traced_request
from tests.collector.traces.span_trees import NOON, NS, SHOP, STOCK, Inbox, Plain, Shown, Span, columns, counted

KINDS = ("internal", "internal", "server", "client", "producer")
STAGES = ("", "forward", "queue", "dependency", "mine")
# With two tokens, times between tokens are whole nanoseconds, so that sums do not depend on order.
STREAMS = st.builds(
    StreamMeasurements,
    first_token_ns=st.sampled_from((0, NS // 8, NS)),
    tokens_in=st.sampled_from((0, 3, 200)),
    tokens_out=st.integers(0, 2),
    gap_ns=st.sampled_from((0, 5)),
)


@st.composite
def trees(draw: st.DrawFn) -> list[Span]:
    spans: list[Span] = []
    for number in range(1, draw(st.integers(1, 14)) + 1):
        kind = draw(st.sampled_from(KINDS))
        parent = draw(st.one_of(st.just(0), st.integers(0, number - 1), st.integers(0, number - 1), st.just(99)))
        trace = spans[parent - 1].trace if 0 < parent < 99 else draw(st.integers(1, 2))
        start = draw(st.integers(1, 12))
        label = Label(
            f"{number}",
            kind,
            request=(kind == "server" or parent == 0) and draw(st.integers(0, 9)) > 0,
            stage=draw(st.sampled_from(STAGES)),
            head=draw(st.sampled_from(("", "", "queue"))),
            model=draw(st.sampled_from(("", "", "a", "b"))),
        )
        spans.append(
            Span(
                number,
                parent,
                start * NS // 4,
                draw(
                    st.sampled_from((None, *[(start + more) * NS // 4 + more % 3 for more in (0, 1, 2, 3, 5, 9, 9, 9)]))
                ),
                label,
                draw(st.sampled_from((SHOP, SHOP, STOCK))),
                trace,
                draw(st.sampled_from((0, 0, Flag.ERROR))) | Flag.EXPLICIT,
                draw(st.one_of(st.none(), st.none(), STREAMS)),
            )
        )
    return spans


def parcels(spans: list[Span], rng: random.Random) -> list[list[Span]]:
    spans = [*spans, *rng.choices(spans, k=rng.randrange(4))]
    rng.shuffle(spans)
    cuts = sorted(rng.randrange(len(spans) + 1) for _ in range(rng.randrange(4)))
    return [spans[first:last] for first, last in zip([0, *cuts], [*cuts, len(spans)], strict=True) if first < last]


@settings(max_examples=40, deadline=None)
@given(spans=trees(), rng=st.randoms(use_true_random=False))
def test_any_split_into_exports_counts_equally(spans: list[Span], rng: random.Random) -> None:
    inbox = Inbox()
    for at, export in zip(sorted(rng.randrange(10) for _ in range(9)), parcels(spans, rng), strict=False):
        inbox.take(export, at, at)
    inbox.process(30)
    plain = Plain(spans)

    assert counted(inbox.points) == counted(plain.points())
    assert len(inbox.traces) == len(plain.roots)
    for trace in inbox.traces:
        assert sum(trace.stages_ns.values()) == trace.duration_ns
    # Late repetitions are detected, and spans without a request are deleted in the end.
    inbox.take(spans, 40, 60)
    inbox.process(4000)

    assert counted(inbox.points) == counted(plain.points())
    assert inbox.waiting() == 0


@settings(max_examples=60, deadline=None)
@given(spans=trees())
def test_a_retained_trace_shows_each_span(spans: list[Span]) -> None:
    inbox = processed(spans)
    plain = Plain(spans)
    roots = {(f"{7:016x}{root.trace:016x}", f"{root.id:016x}"): root for root in plain.roots}

    assert roots.keys() == {(trace.trace_id, trace.span_id) for trace in inbox.traces}
    for trace in inbox.traces:
        shown = [
            Shown(
                span["name"], span["stage"], span["start_ns"], span["duration_ns"], names.STATUS in span["attributes"]
            )
            for span in trace.spans
        ]

        assert sorted(shown) == sorted(plain.shown(roots[trace.trace_id, trace.span_id]))


def test_the_longest_of_many_spans_are_shown() -> None:
    inbox = processed([Span(1, 0, 0, 10_000, SERVER), *(Span(n, 1, n, n + n % 1100, WORK) for n in range(2, 1102))])
    (trace,) = inbox.traces

    assert [span["start_ns"] for span in trace.spans] == list(range(100, 1100))


@settings(max_examples=25, deadline=None)
@given(spans=trees(), seed=st.integers(0, 2**32))
def test_finished_spans_replace_unfinished_ones(spans: list[Span], seed: int) -> None:
    inbox = Inbox()
    rng = random.Random(seed)
    unfinished = [replace(span, end=None) for span in spans if rng.random() < 0.5]
    for export in rng.sample([spans, unfinished], 2):
        if export:
            inbox.put(export, 0)
    inbox.process(30)

    assert counted(inbox.points) == counted(Plain(spans).points())


def processed(spans: list[Span]) -> Inbox:
    inbox = Inbox()
    inbox.take(spans, 0, 20)
    return inbox


SERVER, WORK = Label("POST", "server", request=True), Label("work", stage="forward")


def request(trace: int = 1, end: int = 10) -> list[Span]:
    return [Span(1, 0, 1, end, SERVER, trace=trace), Span(2, 1, 2, 5, WORK, trace=trace)]


def requests(inbox: Inbox) -> int:
    return sum(point.histogram.count for point in inbox.points if point.metric == names.REQUEST_DURATION)


def test_a_request_waits_for_its_remaining_spans() -> None:
    inbox = Inbox()
    root, below = request()
    inbox.put([root], 0)

    assert (inbox.process(9), inbox.rows()) == (InboxOutcome(), 1)
    inbox.put([below], 9)
    assert inbox.process(10) == InboxOutcome(requests=1, aggregated=2)
    (trace,) = inbox.traces
    assert trace.stages_ns == {"forward": 3, "overhead": 6}
    assert inbox.waiting() == 0


def test_late_or_repeated_spans_change_nothing() -> None:
    inbox = Inbox()
    root, below = request()
    inbox.take([root], 0, 10)
    late = inbox.take([below, Span(3, 77, 3, 4, WORK)], 20, 30)
    again = inbox.take([root, below], 40, 50)

    assert (late.late, late.requests, again.late, again.repeated, again.requests) == (2, 0, 1, 1, 0)
    assert losses(inbox) == {(SHOP.service, "late_spans"): 3}
    assert requests(inbox) == 1
    assert inbox.waiting() == 0


def test_a_second_request_of_the_trace_is_not_late() -> None:
    inbox = processed(request())
    inbox.take([Span(4, 3, 52, 55, WORK)], 12, 25)
    outcome = inbox.take([Span(3, 0, 51, 60, SERVER)], 26, 40)

    assert (outcome.requests, outcome.late) == (1, 0)
    assert [trace.stages_ns.get("forward") for trace in inbox.traces] == [3, 3]


def losses(inbox: Inbox) -> dict[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = {}
    for point in inbox.points:
        if point.metric == names.COLLECTOR_LOST:
            key = point.series.service, point.stage
            found[key] = found.get(key, 0) + point.histogram.zero
    return found


def test_a_root_that_ends_long_after_its_children_is_counted_with_their_stages() -> None:
    inbox = processed([Span(2, 1, 2, 5, WORK), Span(12, 11, 2, 5, WORK, trace=2)])
    inbox.take([Span(1, 0, 1, 9, SERVER)], 16 * 60, 17 * 60)

    assert [trace.stages_ns["forward"] for trace in inbox.traces] == [3]
    assert losses(inbox) == {}
    inbox.process(3601)
    inbox.take([Span(11, 0, 1, 9, SERVER, trace=2)], 3700, 3720)

    assert requests(inbox) == 2
    assert losses(inbox) == {(SHOP.service, "orphaned_spans"): 1}


@pytest.mark.parametrize(
    ("root", "expected"),
    [
        (Span(1, 0, 1, 1, Label("log", request=True), flags=Flag.RECORD), 0),
        (Span(1, 0, 1, 1, Label("event", request=True)), 0),
        (Span(1, 9, 1, 1, Label("event of a called process"), source=STOCK), 0),
        (Span(1, 0, 1, 1, Label("RunWorkflow", "server", request=True), flags=Flag.RECORD), 0),
        (Span(1, 0, 1, 1, Label("a fast server", "server", request=True)), 1),
        (Span(1, 0, 1, 1, Label("a cached answer", "client", request=True, stage="decode")), 1),
        (Span(1, 0, 1, 1, Label("by a rule of the user", request=True), flags=Flag.EXPLICIT), 1),
        (Span(1, 0, 1, 2, Label("a job", request=True), flags=Flag.RECORD), 1),
    ],
    ids=lambda value: value.label.name if isinstance(value, Span) else "",
)
def test_an_event_without_a_duration_is_no_request(root: Span, expected: int) -> None:
    inbox = processed([root, Span(9, 0, 0, 5, Label("caller", "client"))])

    assert requests(inbox) == expected
    assert losses(inbox) == {}


def test_a_health_probe_is_counted_apart() -> None:
    probe = Label("GET /healthz", "server", request=True, route="/healthz")
    inbox = processed([Span(1, 0, 1, 3, probe, flags=Flag.PROBE), Span(2, 1, 1, 2, WORK), *request(50)])
    found = {point.metric: point for point in inbox.points if point.series.route == "/healthz"}

    assert found.keys() == {names.PROBE_DURATION}
    assert found[names.PROBE_DURATION].histogram.sum == 2 / NS
    assert found[names.PROBE_DURATION].histogram.count == 1
    assert requests(inbox) == len(inbox.traces) == 1


def test_spans_without_a_root_are_dropped() -> None:
    inbox = Inbox()
    inbox.put([Span(2, 1, 2, 5, WORK), Span(3, 0, 1, None, SERVER, trace=2), Span(4, 3, 2, 5, WORK, trace=2)], 0)
    inbox.put([Span(6, 7, 2, 5, WORK), Span(7, 6, 2, 5, WORK), Span(8, 8, 2, 5, WORK)], 0)
    round_and_round, rows = inbox.process(20), inbox.rows()
    before = inbox.process(3600)
    after = inbox.process(3601)

    assert (round_and_round.orphaned, rows, before.orphaned, after.orphaned) == (3, 3, 0, 3)
    assert counted(inbox.points) == {}
    assert losses(inbox) == {(SHOP.service, "orphaned_spans"): 6}
    assert inbox.waiting() == 0


def test_the_oldest_rootless_spans_are_dropped_over_the_limit() -> None:
    inbox = Inbox(InboxLimits(carry_bytes=2 * ROW.itemsize))
    for number in range(2, 6):
        inbox.put([Span(number, 1, 2, 5, WORK)], 60 * number)
    outcome, rows = inbox.process(320), inbox.rows()
    inbox.take([Span(1, 0, 1, 10, SERVER)], 321, 331)

    assert (outcome.orphaned, rows) == (2, 2)
    assert len(inbox.traces[0].spans) == 2


def test_spans_above_a_request_are_excluded() -> None:
    inbox = processed([Span(7, 99, 1, 10, Label("loop", head="queue")), Span(8, 7, 1, 10, SERVER)])
    (trace,) = inbox.traces

    assert trace.stages_ns == {"overhead": 9}
    assert [span["name"] for span in trace.spans] == ["loop"]
    # Without a request above or below them, spans are not counted.
    inbox.put([Span(1, 0, 1, 10, Label("loop"), trace=2), Span(2, 1, 2, 5, WORK, trace=2)], 30)
    assert inbox.process(50).outside == 2
    assert inbox.waiting() == 0


def test_a_request_counted_by_an_agent_is_not_counted_again() -> None:
    inbox = Inbox()
    outcome = inbox.take([*request(), replace(request()[1], id=3, flags=Flag.COUNTED)], 0, 20)

    assert (outcome.known, outcome.requests, outcome.aggregated) == (1, 0, 3)
    assert inbox.points == []
    assert inbox.traces == []


@pytest.mark.parametrize("skew", [0, 50 * NS, -50 * NS])
def test_a_call_is_split_by_durations_for_any_clocks(skew: int) -> None:
    inbox = Inbox()
    client = Span(2, 1, 100, 1100, Label("GET", "client", stage="dependency"))
    server = Span(3, 2, 300 + skew, 900 + skew, SERVER, replace(STOCK, environment="staging"))
    inbox.take([server], 0, 9)
    inbox.put([Span(1, 0, 50, 1200, SERVER), client], 9)
    # The other request is counted before the calling one is complete.
    first, second = inbox.process(10), inbox.process(20)
    own, other = sorted(inbox.traces, key=lambda trace: trace.series.service)
    (shown,) = [span for span in own.spans if span["attributes"].get("service.name") == "stock"]

    assert (first.requests, second.requests) == (1, 1)
    assert own.stages_ns == {"dependency": 600, "network": 400, "overhead": 150}
    assert other.stages_ns == {"overhead": 600}
    assert (shown["start_ns"], shown["duration_ns"], shown["stage"]) == (250, 600, "dependency")
    assert shown["attributes"].get("stagelens.clock.shifted") == (-skew or None)
    assert shown["attributes"]["deployment.environment.name"] == "staging"


@pytest.mark.parametrize("skew", [0, 50 * NS])
def test_the_called_request_is_placed_in_its_call(skew: int) -> None:
    label = Label("GET", "client", stage="dependency")
    calls = [Span(number, 1, number * 1000, number * 1000 + 900, label) for number in (2, 3, 4)]
    server = Span(5, 3, 3100 + skew, 3500 + skew, SERVER, STOCK)
    inbox = processed([Span(1, 0, 50, 6000, SERVER), *calls, server])
    [root] = place_requests(map(traced_request, inbox.traces))

    assert [[each.service for each in call.called] for call in root.calls] == [[], ["stock"], []]
    assert root.called[0].moved == (3250 - 3100 - skew if skew else 0)

    long = processed(
        [Span(1, 0, 50, 1200, SERVER), replace(calls[0], start=100, end=1100), Span(3, 2, 0, 5000, SERVER, STOCK)]
    )
    own = next(trace for trace in long.traces if trace.series.service == "shop")
    assert own.stages_ns == {"dependency": 1000, "network": 0, "overhead": 150}


def test_a_streamed_response_has_token_metrics() -> None:
    llm = Label("generate", stage="decode", definition="first_chunk")
    stream = StreamMeasurements(first_token_ns=30 * NS, tokens_in=100, tokens_out=11, gap_ns=5 * NS)
    inbox = processed([Span(1, 0, 1 * NS, 100 * NS, SERVER), Span(2, 1, 11 * NS, 91 * NS, llm, stream=stream)])
    sums = {(point.metric, point.stage): point.histogram.sum for point in inbox.points}
    spent = {point.stage: point.histogram.count for point in inbox.points if point.metric == names.FIRST_TOKEN_TIME}

    assert sums[names.FIRST_TOKEN, "first_chunk"] == 40
    assert sums[names.FIRST_TOKEN_BY_INPUT, "64-127"] == 40
    assert sums[names.OUTPUT_TOKEN, "first_chunk"] == sums[names.OUTPUT_TOKEN_BY_OUTPUT, "8-15"] == 5
    assert sums[names.STREAM_GAP, "first_chunk"] == 5
    assert (sums[names.TOKENS, "input"], sums[names.TOKENS, "output"]) == (100, 11)
    assert spent == {"decode": 30_000_000, "overhead": 10_000_000}


def test_each_process_is_a_replica() -> None:
    inbox = Inbox()
    forward, server = Label("run", stage="forward"), Label("GET /", "server", request=True)
    one, other = (replace(SHOP, instance=str(number), place="pod-2") for number in range(2))
    for number, source in enumerate((SHOP, SHOP, one, other, STOCK), 1):
        root = Span(2 * number, 0, 0, NS // 2, server, source, number)
        inbox.put([root, Span(2 * number + 1, 2 * number, 0, NS // 4, forward, source, number)], 0)
    inbox.process(20)
    found = {(point.metric, point.stage): point for point in inbox.points if point.metric in schema.WITHOUT_TOTALS}
    bucket = bucket_index(0.5, ATTRIBUTE_SCALE)

    assert {key[1]: point.histogram.buckets[bucket] for key, point in found.items()} == {
        "replica=pod-1": 2,
        "replica=pod-2": 2,
        "forward;pod-1": 500_000,
        "forward;pod-2": 500_000,
        "overhead;pod-1": 500_000,
        "overhead;pod-2": 500_000,
    }
    assert {(point.histogram.scale, point.at) for point in found.values()} == {(ATTRIBUTE_SCALE, NOON)}


def test_a_backlog_is_processed_in_batches() -> None:
    inbox = Inbox(InboxLimits(due_bytes=3000, carry_bytes=100))
    for trace in range(1, 201):
        inbox.put(request(trace), trace // 100)
    outcomes = [inbox.process(30, 20_000)]
    while outcomes[-1].more:
        outcomes.append(inbox.process(30, 20_000))

    assert len(outcomes) > 10
    assert requests(inbox) == sum(outcome.requests for outcome in outcomes) == 200
    assert inbox.waiting() == 0


def test_remembered_state_is_bounded() -> None:
    inbox = Inbox(InboxLimits(remember_bytes=100_000))
    for minute in range(40):
        inbox.take(
            [span for trace in range(200) for span in request(1000 * minute + trace + 1)], 60 * minute, 60 * minute + 10
        )
    remembered = [parcel for parcel in inbox.parcels.values() if parcel.counted]

    assert sum(len(parcel.spans) for parcel in remembered) <= 100_000 + 200 * ROW.itemsize + 2000
    outcome = inbox.take(request(39_001), 2400, 2410)
    assert (outcome.late, outcome.repeated) == (1, 1)
    inbox.take([Span(1, 99, 1, 2, WORK)], 5000, 5000)
    inbox.process(8700)
    assert inbox.parcels == {}


def test_a_trace_of_a_hundred_thousand_spans() -> None:
    deep = [Span(number, number - 1, number, 10**6 - number, WORK) for number in range(2, 30_000)]
    wide = [Span(30_000 + number, 1, number, number + 50, WORK) for number in range(70_000)]
    (trace,) = processed([Span(1, 0, 1, 10**6, SERVER), *deep, *wide]).traces

    assert sum(trace.stages_ns.values()) == trace.duration_ns
    assert trace.stages_ns["overhead"] == 2
    assert len(trace.spans) == 1000


def test_an_unreadable_inbox_row_is_skipped() -> None:
    inbox = Inbox()
    for spans in (
        b"",
        b"\x09later",
        encode_spans(columns(request()))[:-3],
        encode_spans(replace(columns(request()), labels=[])),
    ):
        inbox.put_parcel(Parcel(NOON, counted=False, spans=spans))
    inbox.take(request(), 0, 20)
    before = inbox.waiting()
    inbox.process(3601)

    assert requests(inbox) == 1
    assert (before, inbox.waiting()) == (4, 0)


def test_the_tail_and_a_random_share_are_retained() -> None:
    inbox = Inbox(keep=SamplingPolicy(errors=3, slow=2, uniform=1))
    failed = [replace(span, flags=Flag.ERROR) for trace in range(1, 20) for span in request(trace, 10 + trace)]
    inbox.take([*failed, *(span for trace in range(20, 300) for span in request(trace, 10 + trace))], 0, 20)
    retained = [(trace.series.status, trace.because) for trace in inbox.traces]

    assert retained.count(("error", "error")) == 3
    assert 2 <= retained.count(("ok", "slow")) + retained.count(("ok", "uniform")) <= 3
    assert max(trace.duration_ns for trace in inbox.traces) == 10 + 299 - 1


def test_spans_of_pending_traces_are_not_parsed(caplog: pytest.LogCaptureFixture) -> None:
    inbox = Inbox()
    inbox.put(request(1), 0)
    rows = columns(request(2)).rows.tobytes()
    inbox.put_parcel(Parcel(NOON + 8, counted=False, spans=b"\x02\x03\x00\x00\x00\x00\x00\x00\x00bad" + rows))
    assert inbox.process(12).requests == 1
    assert not caplog.records
    inbox.process(20)
    assert "batch 2 of the waiting spans cannot be read" in caplog.text


LABELS = [
    Label("POST /", "server", request=True, route="/", attributes=(("http.request.method", "GET"), ("status", 200))),
    Label("1", attributes=(("flag", True),)),
    Label("1", attributes=(("flag", 1),)),
    Label("推論\n\u2028", stage="forward", head="queue", model="m", definition="chunk"),
]
SPANS = columns([
    Span(number, 1, number, number + 5, label, STOCK if number % 2 else SHOP, stream=stream)
    for number, (label, stream) in enumerate(zip(LABELS, (None, StreamMeasurements(1, 2, 3, 4), None, StreamMeasurements(gap_ns=2**40)), strict=True))
])  # fmt: skip


def test_written_columns_are_read_unchanged() -> None:
    blob = encode_spans(SPANS)
    found = decode_spans(blob)

    assert found.rows.tolist() == decode_rows(blob).tolist() == SPANS.rows.tolist()
    assert (found.labels, found.sources) == (SPANS.labels, SPANS.sources)
    assert [label.attributes for label in found.labels] == [label.attributes for label in LABELS]
    # Labels that are equal in Python stay distinct.
    assert len({*LABELS[1:3]}) == 2
    assert found.streams.tolist() == SPANS.streams.tolist()


SPLIT_STAGES = ["forward", "queue", "mine", "overhead"]
# Request, parent among the previous rows, stage, start, length: small numbers, so that bounds coincide.
interval = st.tuples(st.integers(0, 2), st.integers(0, 20), st.integers(0, 2), st.integers(-2, 12), st.integers(0, 8))


@settings(max_examples=100, deadline=None)
@given(
    found=st.lists(interval, max_size=14),
    own=st.lists(st.sampled_from((0, 3)), min_size=3, max_size=3),
    far=st.sampled_from((1, 2**41)),
)
def test_each_request_is_split_as_partition_does(found: list[tuple[int, ...]], own: list[int], far: int) -> None:
    t0, t1 = 5 * far, 15 * far
    rows = [(request, t0, t1, stage, request) for request, stage in enumerate(own)]
    for request, parent, stage, start, length in found:
        within = [place for place, row in enumerate(rows) if row[0] == request]
        rows.append((request, start * far, (start + length) * far, stage, within[parent % len(within)]))
    request, start, end, stage, within = np.array(rows, np.int64).T
    result = split_by_stage(Intervals(request, start, end, stage, within), SPLIT_STAGES, 3)
    for number in range(3):
        expected = partition(
            [
                (SPLIT_STAGES[row[3]], row[1], row[2])
                for row in rows
                if row[0] == number and SPLIT_STAGES[row[3]] != "overhead"
            ],
            t0,
            t1,
        )

        assert {
            SPLIT_STAGES[at]: int(result.own[number, at]) for at in np.flatnonzero(result.present[number])
        } == expected
        assert SPLIT_STAGES[result.main[number]] == dominant_stage(expected)
        assert sum(expected.values()) == t1 - t0
