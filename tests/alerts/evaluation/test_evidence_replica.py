"""The slow replica of a service in the store: also in long windows, and not because of the routes that it serves."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np

from stagelens.alerts.evaluation.alert_rules import describe_burn
from stagelens.alerts.evaluation.evidence import hardware_sentence, outlier_sentence, slow_replica
from stagelens.alerts.evaluation.slo_status import measure_slo
from stagelens.alerts.formatting import TIMES
from stagelens.alerts.objectives.slo import Slo
from stagelens.analysis.comparison import StageGrowth
from stagelens.analysis.policies import default_burn_rate_policy
from stagelens.analysis.replicas import HardwareDifference, ReplicaOutlier, ReplicaTable
from stagelens.core.hardware import MEMORY, THROTTLED
from stagelens.store import Batch, Selection, Series, Store
from tests.dashboard.slow_replica import MINUTES, NOW, PLACES, SERVICE, SLOW, points_of, store_of, traffic
from tests.support.replica_traffic import Traffic


def window(length: timedelta) -> Selection:
    return Selection(NOW - length, NOW, service=SERVICE)


@contextmanager
def stored(folder: Path, **routes: ReplicaTable) -> Generator[Store]:
    store = Store.open(f"sqlite:///{folder / 'routes.db'}", clock=NOW.timestamp)
    points = [
        point for name, table in routes.items() for point in points_of(table, Series(SERVICE, "1", route=f"/{name}"))
    ]
    store.write([Batch("all", points)])
    store.maintain()
    yield store
    store.close()


def test_a_new_outlier_is_named_in_a_long_window(tmp_path: Path) -> None:
    made = replace(traffic(), slow={SLOW: (3.3, MINUTES - 3)})
    store = store_of(tmp_path, made, hardware=False)
    found = [slow_replica(store.read, window(timedelta(hours=hours))) for hours in (1, 12)]
    store.close()

    assert [each.place if each else None for each in found] == [SLOW, SLOW]
    assert [each.is_dated for each in found if each] == [True, True]


def test_a_replica_that_serves_more_of_a_slow_route_is_not_named(tmp_path: Path) -> None:
    places = PLACES[:5]
    rng = np.random.default_rng(1)
    fast, slow = (Traffic(places, MINUTES, 2.0, seconds).table(rng) for seconds in (0.02, 0.4))
    for each in (fast.replicas[0], *slow.replicas[1:]):
        each.requests[:] = rng.binomial(each.requests, 0.12)
    with stored(tmp_path, fast=fast, slow=slow) as store:
        found = slow_replica(store.read, window(timedelta(hours=1)))

    assert found is None


def test_a_replica_that_is_slow_on_each_route_is_named(tmp_path: Path) -> None:
    places = PLACES[:5]
    rng = np.random.default_rng(1)
    slow = {places[2]: (3.0, 20)}
    tables = [Traffic(places, MINUTES, 2.0, seconds, slow=slow).table(rng) for seconds in (0.02, 0.04)]
    with stored(tmp_path, one=tables[0], two=tables[1]) as store:
        found = slow_replica(store.read, window(timedelta(hours=1)))

    assert found is not None
    assert found.place == places[2]


def test_a_firing_objective_names_the_slow_replica(tmp_path: Path) -> None:
    store = store_of(tmp_path, traffic(slow=20.0))
    slo = Slo("shop-latency", SERVICE, 0.999, timedelta(days=30), timedelta(milliseconds=250))
    measured = measure_slo(store.read, slo, default_burn_rate_policy(), NOW)
    found = describe_burn(store.read, measured, NOW, before=None, dashboard_url="")
    store.close()

    assert found is not None
    assert found.replica.startswith("checkout-7f6b9 is ")
    assert "slower than the other 11 since 22:44 UTC on 14 November" in found.replica


def test_sentences_name_percentile_time_stage_and_machine() -> None:
    grown = (StageGrowth("forward", 0.038, 0.92),)
    slow = ReplicaOutlier(
        *("a:1", "a", 1, 0.9, 0.2, 0.1, 500, 0),
        is_dated=False,
        growth=grown,
        hardware=(HardwareDifference(THROTTLED, 0.4, 0.01),),
    )

    assert outlier_sentence(slow, "14:02") == (
        f"a is 2{TIMES} slower than the other replica at p90 since 14:02 or earlier: Forward +38 ms. "
        "It is throttled by its CPU limit in 40 % of the scheduler periods; the others in 1 %."
    )
    assert outlier_sentence(replace(slow, growth=(StageGrowth("queue", 0.1, 0.3),), hardware=()), "9:00").endswith(
        "earlier."
    )
    assert hardware_sentence(HardwareDifference(MEMORY, 9 * 2**30, 3 * 2**30)) == (
        "It uses 9 GiB of memory, the others 3 GiB."
    )
