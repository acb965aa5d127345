"""Readings of targets: errors have their line, and differences add up to the observations."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelens.collector.scrape import exposition, snapshot
from stagelens.collector.scrape.config import Engine, SourceMetric
from stagelens.collector.scrape.exposition import ExpositionError
from stagelens.collector.scrape.snapshot import (
    MAX_GAP_SECONDS,
    MetricStream,
    Snapshot,
    StreamCounts,
    difference_between,
)
from stagelens.collector.scrape.triton_statistics import StatisticsError, read_triton_statistics

EDGES = (0.0, 0.1, 0.5, 1.0, math.inf)
BUCKETS = tuple(pairwise(EDGES))
STREAM = MetricStream("request", "engine", (("model", "m"),))
OTHER = MetricStream("request", "engine", (("model", "other"),))


def bucket_of(value: float) -> tuple[float, float]:
    return next((low, high) for low, high in BUCKETS if low < value <= high)


def counted(values: list[float], created: float = 0.0) -> StreamCounts:
    return StreamCounts(dict(Counter(map(bucket_of, values))), math.fsum(values), created)


def scraped(at: float, streams: dict[MetricStream, StreamCounts], started: float = 0.0, beyond: int = 0) -> Snapshot:
    return Snapshot(at, "rules", started, streams, beyond)


VALUES = st.lists(st.floats(0.001, 20), max_size=5)
# Events between readings: observations by label, a failed reading, a restart before or after.
ACTIONS = st.lists(
    st.tuples(st.dictionaries(st.sampled_from(["m", "n", "o"]), VALUES, max_size=3), st.booleans(), st.booleans()),
    max_size=12,
)


@given(ACTIONS, st.sampled_from(["process", "created"]))
def test_differences_add_up_to_the_observations(
    actions: list[tuple[dict[str, list[float]], bool, bool]], reported: str
) -> None:
    now, started = 1000.0, 900.0
    seen: dict[str, list[float]] = {}
    unread: dict[str, list[float]] = {}
    expected: Counter[tuple[str, tuple[float, float]]] = Counter()
    expected_sum = 0.0

    def read() -> Snapshot:
        created = started if reported == "created" else 0.0
        streams = {
            MetricStream("request", "engine", (("model", model),)): counted(values, created)
            for model, values in seen.items()
        }
        return scraped(now, streams, started if reported == "process" else 0.0)

    base = difference_between(None, read()).base
    got: Counter[tuple[str, tuple[float, float]]] = Counter()
    got_sum = 0.0
    for observations, fails, restarts in actions:
        now += 10
        if restarts:
            seen, unread, started = {}, {}, now - 1
        for model, values in observations.items():
            seen.setdefault(model, []).extend(values)
            unread.setdefault(model, []).extend(values)
        if fails:
            continue
        for model, values in unread.items():
            expected.update((model, bucket_of(value)) for value in values)
            expected_sum += math.fsum(values)
        unread = {}
        difference = difference_between(base, read())
        # A reading from the database equals the stored one.
        restored = snapshot.load_snapshot(snapshot.dump_snapshot(difference.base))
        assert restored == difference.base
        base = restored
        for stream, more in difference.added.items():
            assert more.sum >= 0
            got.update({(stream.labels[0][1], edges): count for edges, count in more.buckets.items()})
            got_sum += more.sum

    assert got == expected
    assert math.isclose(got_sum, expected_sum, rel_tol=1e-9, abs_tol=1e-9)


@given(VALUES, VALUES)
def test_an_undetected_restart_never_counts_too_much(before: list[float], after: list[float]) -> None:
    difference = difference_between(scraped(0, {STREAM: counted(before)}), scraped(10, {STREAM: counted(after)}))
    count = sum(more.count for more in difference.added.values())

    assert 0 <= count <= len(after)


ONE = {STREAM: counted([0.2])}
MORE = {STREAM: counted([0.2]), OTHER: counted([0.3, 0.4])}


@pytest.mark.parametrize(
    ("scrapes", "added", "note"),
    [
        ([scraped(0, {STREAM: counted([0.2] * 1000)})], {}, "first scrape"),
        ([scraped(0, ONE), scraped(10, MORE)], {OTHER: 2}, ""),
        ([scraped(0, ONE, beyond=1), scraped(10, MORE, beyond=1)], {}, ""),
        (
            [scraped(0, ONE, beyond=1), scraped(10, MORE, beyond=1), scraped(20, {OTHER: counted([0.3, 0.4, 0.5])})],
            {OTHER: 1},
            "",
        ),
        ([scraped(0, MORE), scraped(10, ONE), scraped(20, {OTHER: counted([0.3, 0.4, 0.5])})], {OTHER: 1}, ""),
        ([scraped(0, ONE), Snapshot(10, "changed rules", 0.0, MORE)], {}, "changed rules"),
        ([scraped(0, ONE), scraped(MAX_GAP_SECONDS + 1, MORE)], {}, "not read for 601 s"),
        (
            [scraped(1000, ONE, started=100), scraped(1010, MORE, started=101.5)],
            {},
            "each process at its own address",
        ),
        (
            [
                scraped(1000, ONE, started=100),
                scraped(1010, MORE, started=101.5),
                scraped(1020, {STREAM: counted([0.2] * 51)}, started=100),
            ],
            {},
            "each process at its own address",
        ),
    ],
    ids=[
        "the first scrape",
        "new labels",
        "new labels beyond the limit of series",
        "labels beyond the limit, at their second scrape",
        "labels that were missing",
        "changed rules",
        "a long gap",
        "alternating processes",
        "and back",
    ],
)
def test_a_difference_has_what_was_certainly_added(
    scrapes: list[Snapshot], added: dict[MetricStream, int], note: str
) -> None:
    difference = difference_between(None, scrapes[0])
    for before, after in pairwise(scrapes):
        difference = difference_between(difference.base, after)
        assert difference.lost_seconds == (after.at - before.at if difference.note.startswith(("not", "ano")) else 0)

    assert {stream: more.count for stream, more in difference.added.items()} == added
    assert note in difference.note
    assert bool(note) == bool(difference.note)


ENGINE = Engine(name="mine", request=SourceMetric(names=("a_seconds",)))


def parse(text: str, media_type: str = "text/plain; version=0.0.4", limit: int = 100) -> exposition.Samples:
    return exposition.parse_exposition(text, media_type, ENGINE.wanted(), limit)


def read_text(text: str, media_type: str = "text/plain") -> snapshot.Snapshot:
    return snapshot.read_snapshot(parse(text, media_type), ENGINE, 0.0, "")


def test_an_invalid_line_of_an_unused_metric_is_ignored() -> None:
    found = parse("b_seconds_count{b=} 7\n<html>\na_seconds_count 2\na_seconds_sum 3\n")

    assert set(found) == {"a_seconds_count", "a_seconds_sum"}


def test_samples_over_the_limit_are_refused() -> None:
    lines = "".join(f'a_seconds_sum{{b="{number}"}} 1\n' for number in range(101))

    with pytest.raises(ExpositionError, match="more than 100 samples"):
        parse(lines)


@pytest.mark.parametrize(
    "lines",
    [
        'a_seconds_bucket{le="1"} 5\na_seconds_bucket{le="+Inf"} 4\na_seconds_sum 1\n',  # not cumulative
        'a_seconds_bucket{le="1"} 5\na_seconds_sum 1\n',  # no last bucket
        'a_seconds_bucket{le="1"} 5\na_seconds_bucket{le="+Inf"} NaN\na_seconds_sum 1\n',
        'a_seconds_bucket{le="x"} 5\na_seconds_bucket{le="+Inf"} 6\na_seconds_sum 1\n',
        'a_seconds_bucket{le="1"} 5\na_seconds_bucket{le="+Inf"} 6\na_seconds_sum -1\n',
        'a_seconds_bucket{le="1"} 5\na_seconds_bucket{le="+Inf"} 1e30\na_seconds_sum 1\n',
        'a_seconds_bucket{le="+Inf"} 6\n',  # no sum
        "a_seconds_sum 6\n",
        "a_seconds_count -2\na_seconds_sum 6\n",
    ],
)
def test_inconsistent_histograms_are_refused_alone(lines: str) -> None:
    good = 'a_seconds_bucket{m="x",le="+Inf"} 3\na_seconds_sum{m="x"} 2\n'

    found = read_text(lines + good)

    assert [counted.count for counted in found.streams.values()] == [3]
    assert found.beyond == 1


def test_openmetrics_is_supported() -> None:
    text = (
        "# TYPE a_seconds histogram\n"
        'a_seconds_bucket{le="1.0"} 2\na_seconds_bucket{le="+Inf"} 3\na_seconds_count 3\na_seconds_sum 4.5\n'
        "a_seconds_created 1.79e9\n# EOF\n"
    )

    (counted,) = read_text(text, "application/openmetrics-text; version=1.0.0").streams.values()

    assert (dict(counted.buckets), counted.sum, counted.created) == (
        {(0.0, 1.0): 2, (1.0, float("inf")): 1},
        4.5,
        1.79e9,
    )


def test_native_histograms_preserve_their_bucket_bounds() -> None:
    text = (
        "# TYPE a_seconds histogram\n"
        "a_seconds {count:6,sum:9.5,schema:0,zero_threshold:0.001,zero_count:1,"
        "positive_spans:[0:2,1:1],positive_deltas:[1,1,0]}\n# EOF\n"
    )

    (counted,) = read_text(text, "application/openmetrics-text").streams.values()

    assert dict(counted.buckets) == {(0.0, 0.001): 1, (0.5, 1.0): 1, (1.0, 2.0): 2, (4.0, 8.0): 2}
    assert counted.sum == 9.5


@pytest.mark.parametrize("number", ["Infinity", "-Infinity", "NaN", "1e400", "-1", '"x"', "null", "[]"])
def test_invalid_statistics_of_triton_are_refused(number: str) -> None:
    run = f'{{"batch_size": 1, "compute_infer": {{"count": 1, "ns": {number}}}}}'
    with pytest.raises(StatisticsError):
        read_triton_statistics(f'{{"model_stats": [{{"name": "m", "batch_stats": [{run}]}}]}}')
