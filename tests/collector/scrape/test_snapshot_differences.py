"""Differences between readings add up to the observations."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from stagelens.collector.scrape import snapshot
from stagelens.collector.scrape.snapshot import (
    MAX_GAP_SECONDS,
    MetricStream,
    Snapshot,
    StreamCounts,
    difference_between,
)

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


def test_counting_starts_at_the_first_reading() -> None:
    difference = difference_between(None, scraped(0, {STREAM: counted([0.2] * 1000)}))

    assert difference.added == {}
    assert difference.base.streams[STREAM].count == 1000


def test_new_labels_count_from_their_first_request() -> None:
    first = scraped(0, {STREAM: counted([0.2])})

    added = difference_between(first, scraped(10, {STREAM: counted([0.2]), OTHER: counted([0.3, 0.4])})).added

    assert {stream: more.count for stream, more in added.items()} == {OTHER: 2}


def test_labels_beyond_the_series_limit_count_from_their_second_reading() -> None:
    first = scraped(0, {STREAM: counted([0.2])}, beyond=1)

    difference = difference_between(first, scraped(10, {STREAM: counted([0.2]), OTHER: counted([0.3, 0.4])}, beyond=1))
    later = difference_between(difference.base, scraped(20, {STREAM: counted([0.2]), OTHER: counted([0.3, 0.4, 0.5])}))

    assert difference.added == {}
    assert {stream: more.count for stream, more in later.added.items()} == {OTHER: 1}


def test_missing_labels_continue_from_their_last_value() -> None:
    first = scraped(0, {STREAM: counted([0.2] * 5), OTHER: counted([0.2])})
    without = difference_between(first, scraped(10, {OTHER: counted([0.2])})).base

    added = difference_between(without, scraped(20, {STREAM: counted([0.2] * 6), OTHER: counted([0.2])})).added

    assert {stream: more.count for stream, more in added.items()} == {STREAM: 1}


def test_changed_rules_restart_counting() -> None:
    first = scraped(0, {STREAM: counted([0.2])})
    other = Snapshot(10, "changed rules", 0.0, {STREAM: counted([0.2]), OTHER: counted([0.2] * 9)})

    difference = difference_between(first, other)

    assert difference.added == {}
    assert "changed rules" in difference.note


def test_a_long_gap_is_dropped_and_reported() -> None:
    first = scraped(0, {STREAM: counted([0.2])})

    difference = difference_between(first, scraped(MAX_GAP_SECONDS + 1, {STREAM: counted([0.2] * 9)}))

    assert difference.added == {}
    assert difference.lost_seconds == MAX_GAP_SECONDS + 1


def test_alternating_processes_behind_one_address_are_not_counted() -> None:
    one = scraped(1000, {STREAM: counted([0.2] * 50)}, started=100)
    two = scraped(1010, {STREAM: counted([0.2] * 70)}, started=101.5)

    there = difference_between(one, two)
    back = difference_between(there.base, scraped(1020, {STREAM: counted([0.2] * 51)}, started=100))

    assert there.added == back.added == {}
    assert "each process at its own address" in there.note
