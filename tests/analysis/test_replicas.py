"""The slow replica: named soon and with its reason, and never for load, bursts, traffic or a mixed fleet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from stagelens.analysis.replicas import (
    ReplicaCounts,
    ReplicaTable,
    find_outlier,
    hardware_differences,
    latencies,
    stratified,
)
from stagelens.core.hardware import CPU_SHARE, GPU, GPU_CLOCK, GPU_HOT, HOST_CPU, MEMORY, Measure
from tests.support.replica_traffic import MINUTE, START, Traffic, pods

RUNS = 120


def names(tables: Sequence[ReplicaTable]) -> list[str | None]:
    """Return the place of the outlier of each table, None without one."""
    return [found.place if (found := find_outlier(each)) else None for each in tables]


def simulated(traffic: Traffic, runs: int = 20) -> list[ReplicaTable]:
    """Return *runs* tables of *traffic*, the same ones in each run of the tests."""
    rng = np.random.default_rng(20261127)
    return [traffic.table(rng) for _ in range(runs)]


@pytest.mark.parametrize("number", [2, 5, 12, 50])
def test_a_slow_replica_is_named_after_three_minutes(number: int) -> None:
    places = pods(number)
    traffic = Traffic(places, minutes=20, slow={places[1]: (3.1, 17)}, uneven=0.2)

    assert names(simulated(traffic)).count(places[1]) >= 19


def test_a_slow_replica_is_named_by_two_buckets_of_latency() -> None:
    index, starts = np.array([0, 6]), START + MINUTE * np.arange(4)
    counts = [np.tile(each, (4, 1)) for each in ([60, 0], [0, 60])]
    replicas = [ReplicaCounts(place, each, {}) for place, each in zip(pods(2), counts, strict=True)]

    assert names([ReplicaTable(2, index, starts, replicas)]) == [pods(2)[1]]


def test_an_outlier_has_ratio_onset_and_stage() -> None:
    places = pods(12)
    (table,) = simulated(Traffic(places, minutes=40, slow={places[3]: (3.1, 25)}, tail=0.0), 1)
    found = find_outlier(table)

    assert found is not None
    assert (found.place, found.name, found.others, found.quantile) == (places[3], "checkout-003", 11, 0.5)
    assert found.ratio == pytest.approx(2.9, abs=0.25)
    assert found.onset == START + 25 * MINUTE
    assert found.is_dated
    assert [(each.stage, round(each.share, 3)) for each in found.growth] == [("forward", 1.0)]
    assert found.growth[0].seconds == pytest.approx(0.23, abs=0.04)


def test_a_slow_tail_is_named_at_its_percentile() -> None:
    places = pods(6)
    tables = simulated(Traffic(places, minutes=30, rate=3.0, tail=0.0))
    rng = np.random.default_rng(1)
    for table in tables:
        counts = table.replicas[0].requests
        moved = rng.binomial(counts, 0.3)
        counts += np.roll(moved, 8, axis=1) - moved
    found = [find_outlier(each) for each in tables]

    assert {(each.place, each.quantile) for each in found if each} == {(places[0], 0.9)}
    assert len([each for each in found if each]) >= 19


def test_equal_replicas_are_hardly_ever_named() -> None:
    rng = np.random.default_rng(7)
    named: list[str] = []
    for _ in range(RUNS):
        number, minutes = int(rng.choice([2, 3, 4, 8, 12, 20, 50])), int(rng.choice([3, 5, 10, 30]))
        traffic = Traffic(
            pods(number),
            minutes,
            rate=float(rng.choice([0.2, 1.0, 3.0] if number < 20 else [0.2, 1.0])),
            sigma=rng.uniform(0.3, 1.0),
            tail=float(rng.choice([0.0, 0.02, 0.1])),
            bursts=minutes / 10,
            pauses=0.02,
            spread=0.05,
            uneven=float(rng.choice([0.0, 0.3, 0.8])),
        )
        found = find_outlier(traffic.table(rng))
        named += [found.place] if found else []

    assert len(named) <= 0.03 * RUNS


def test_load_of_slow_times_is_no_outlier() -> None:
    tables = simulated(Traffic(pods(4), minutes=30, slow=dict.fromkeys(pods(4), (4.0, 15))))
    for table in tables:
        table.replicas[0].requests[:15] //= 10

    assert set(names(tables)) == {None}


def test_half_of_a_fleet_on_older_machines_is_no_outlier() -> None:
    places = pods(12)
    traffic = Traffic(places, minutes=30, slow=dict.fromkeys(places[:6], (2.0, 0)))

    assert set(names(simulated(traffic, 8))) == {None}


def test_a_replica_that_recovered_is_no_outlier() -> None:
    places = pods(4)
    slow = simulated(Traffic(places, minutes=10, slow={places[0]: (4.0, 0)}))
    calm = simulated(Traffic(places, minutes=30))
    tables = [
        stratified([early, replace(late, starts=late.starts + 10 * MINUTE)])
        for early, late in zip(slow, calm, strict=True)
    ]

    assert set(names(tables)) == {None}


def test_routes_are_compared_one_by_one() -> None:
    places = pods(6)
    fast, slow = (simulated(Traffic(places, minutes=20, seconds=seconds, rate=2.0)) for seconds in (0.05, 0.5))
    rng = np.random.default_rng(2)
    for one, other in zip(fast, slow, strict=True):
        for replica in (one.replicas[0], *other.replicas[1:]):
            replica.requests[:] = rng.binomial(replica.requests, 0.1)
    whole = [
        replace(stratified(each), starts=np.sort(np.tile(each[0].starts, 2))) for each in zip(fast, slow, strict=True)
    ]
    merged = [
        replace(
            each,
            starts=each.starts[::2],
            replicas=[
                replace(one, requests=one.requests[::2] + one.requests[1::2], stages={}) for one in each.replicas
            ],
        )
        for each in whole
    ]

    assert names(merged).count(places[0]) >= 19
    assert set(names(whole)) == {None}


def test_a_slow_machine_is_named_instead_of_its_processes() -> None:
    places = [f"web-{host}:{process}" for host in range(3) for process in range(4)]
    machine = simulated(Traffic(places, minutes=20, slow=dict.fromkeys(places[:4], (3.0, 10))))
    process = simulated(Traffic(places, minutes=20, slow={places[0]: (3.0, 10)}))

    assert names(machine).count("web-0") >= 19
    assert names(process).count("web-0:0") >= 19
    found = find_outlier(machine[0])
    assert found is not None
    assert (found.name, found.others, found.growth[0].stage) == ("web-0", 2, "forward")


def test_few_requests_name_nothing() -> None:
    places = pods(3)
    few = simulated(Traffic(places, minutes=3, rate=0.05, slow={places[0]: (20.0, 0)}))
    (alone,) = simulated(Traffic(places[:1]), 1)

    assert set(names([*few, alone, replace(alone, replicas=[])])) == {None}


def frame(*rows: tuple[Measure, str, float]) -> pd.DataFrame:
    """Return hardware as `Reader.hardware` does, at one time."""
    at = pd.Timestamp(START, unit="s", tz="UTC")
    made = [(at, measure.key, place, value, value) for measure, place, value in rows]
    return pd.DataFrame(made, columns=["at", "measure", "place", "mean", "most"])


def test_hardware_that_differs_is_named() -> None:
    hosts = ("a", "b", "c")
    rows = [(GPU_CLOCK, f"{host}/gpu0", 1.0e9 if host == "a" else 1.75e9) for host in hosts]
    rows += [(GPU_HOT, f"{host}/gpu0", 0.8 if host == "a" else 0.0) for host in hosts]
    rows += [(GPU, f"{host}/gpu0", 0.9) for host in hosts] + [(HOST_CPU, host, 0.4) for host in hosts]
    rows += [(MEMORY, f"{host}:1", 2e9) for host in hosts]
    places = [f"{host}:1" for host in hosts]

    found = hardware_differences(frame(*rows), "a:1", places, START)
    assert [(each.measure, each.own, each.others) for each in found] == [
        (GPU_CLOCK, 1.0e9, 1.75e9),
        (GPU_HOT, 0.8, 0.0),
    ]
    assert hardware_differences(frame(*rows), "b:1", places, START) == ()
    assert hardware_differences(frame(*rows), "a:1", [*places, "a:2"], START) == ()
    assert hardware_differences(frame(*rows), "a:1", places, START + 1) == ()
    # The clock of an idle GPU is no reason.
    idle = [(GPU_CLOCK, "a/gpu0", 0.6e9), (GPU_CLOCK, "b/gpu0", 1.7e9), (GPU, "a/gpu0", 0.2), (GPU, "b/gpu0", 0.6)]
    assert hardware_differences(frame(*idle), "a:1", ["a:1", "b:1"], START) == ()


def test_hardware_of_a_machine_is_the_mean_of_its_processes() -> None:
    rows = [(CPU_SHARE, f"{host}:{process}", 0.9 if host == "a" else 0.3) for host in "ab" for process in (1, 2)]
    (found,) = hardware_differences(frame(*rows), "a", ["a", "b"], START)

    assert (found.measure, found.own, found.others) == (CPU_SHARE, 0.9, 0.3)


def test_latencies_are_sorted_by_their_ratio_to_the_others() -> None:
    places = pods(3)
    (table,) = simulated(Traffic(places, minutes=5, slow={places[2]: (3.0, 0)}), 1)
    found = latencies(table)

    assert found[0].place == places[2]
    assert found[0].ratio == pytest.approx(2.9, abs=0.4)
    assert [each.p99 for each in found] == [None] * 3
    assert [len(each.medians) for each in found] == [5] * 3
    assert sum(each.requests for each in found) == sum(int(each.requests.sum()) for each in table.replicas)
