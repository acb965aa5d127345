"""Differences between readings add up to the observations."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

import pytest
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
