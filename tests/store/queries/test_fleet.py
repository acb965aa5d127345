"""All services in one query, and requests of groups by minute: equal to a query of each service or group."""

from __future__ import annotations

from collections.abc import Generator
from datetime import timedelta
from random import Random

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from stagelens.core.histogram import Histogram
from stagelens.core.names import FAILED_CALL, HARDWARE
from stagelens.store import Batch, Group, Point, Selection
from stagelens.store.events import StoredLoad
from tests.support.raw_requests import NOON, NS, OpenSite, Request, Series, Site

PERCENTILES = (0.0, 0.5, 0.9, 0.99, 0.999)
START, END = NOON - 2 * 3600 - 50, NOON + 20
# The same in whole minutes.
FIRST, LAST = NOON - 7200, NOON + 60
SERIES = (
    Series("shop", "1", "prod", "old"),
    Series("shop", "2", "prod", "new"),
    Series("shop", "2", "prod", "new", status="error"),
    Series("shop", "2", "stage", "new", route="/buy"),
    Series("shop", "2", "stage", "new", route="/sell"),
    Series("bank", "7", "prod", route="/only"),
    Series("wide", "1", "stage"),
)
SHOP = Group("shop", environment="prod")
GROUPS = {
    SHOP,
    Group("shop", "model", "old", "prod"),
    Group("shop", "model", "new", "prod"),
    Group("shop", "version", "1", "prod"),
    Group("shop", "version", "2", "prod"),
    Group("shop", environment="stage"),
    Group("shop", "route", "/buy", "stage"),
    Group("shop", "route", "/sell", "stage"),
    Group("bank", environment="prod"),
}


def drawn(seed: int) -> list[Request]:
    random = Random(seed)
    made: list[Request] = []
    for _ in range(400):
        series = random.choice(SERIES)
        total = random.choice((0, int(random.lognormvariate(17, 1))))
        own = random.randint(0, total)
        made.append(
            Request({f"own_{series.service}": own, "queue": total - own}, NOON - random.randrange(10_800), series)
        )
    return made


@pytest.fixture(scope="module")
def fleet(open_sqlite: OpenSite, opened_sites: list[Site]) -> Generator[Site]:
    sqlite = open_sqlite()
    opened_sites.remove(sqlite)
    requests = drawn(1)
    sqlite.write([request for request in requests if request.series.service != "wide"])
    sqlite.write([request for request in requests if request.series.service == "wide"], scale=3)
    sqlite.store.maintain()
    sqlite.write([Request({"queue": 5_000_000}, NOON - 5, SERIES[0])])
    yield sqlite
    sqlite.close()


@pytest.mark.parametrize("environment", [None, "prod"])
def test_the_numbers_of_each_service_equal_a_separate_query(fleet: Site, environment: str | None) -> None:
    read, window = fleet.store.read, fleet.between(START, END)
    rows = read.fleet(window.start, window.end, PERCENTILES, environment=environment)
    names = ["bank", "shop", "wide"] if environment is None else ["bank", "shop"]

    assert rows.index.unique().tolist() == names
    for name in names:
        alone = read.breakdown(fleet.between(START, END, service=name, **_of(environment)), PERCENTILES)
        own = rows[rows.index == name].reset_index(drop=True)
        others = own.columns.difference(alone.columns)

        pd.testing.assert_frame_equal(own.reindex(columns=alone.columns), alone, check_exact=True)
        assert not own[others].to_numpy().any()


def _of(environment: str | None) -> dict[str, str]:
    return {} if environment is None else {"environment": environment}


def test_an_environment_filter_selects_its_services(fleet: Site) -> None:
    read, window = fleet.store.read, fleet.between(START, END)
    services = read.services(window.start, window.end, environment="prod").set_index("service")
    alone = read.latency(fleet.between(START, END, service="shop", environment="prod"))

    assert services.index.tolist() == ["bank", "shop"]
    assert services["requests"].to_dict()["shop"] == alone.count
    assert services["newest"].to_dict() == {"bank": "7", "shop": "2"}


@pytest.mark.parametrize("seconds", [60, 3600])
def test_the_time_series_of_all_services_equal_those_of_each(fleet: Site, seconds: int) -> None:
    read, window, step = fleet.store.read, fleet.between(START, END), timedelta(seconds=seconds)
    series = read.fleet_over_time(window.start, window.end, step)

    for name, own in series.groupby("service"):
        alone = read.quantiles_over_time(fleet.between(START, END, service=str(name)), (0.5,), step)
        assert own[["at", "n"]].to_numpy().tolist() == alone[["at", "n"]].to_numpy().tolist()
    assert int(series["n"].sum()) == read.latency(window).count
    assert series.attrs["step_seconds"] == seconds


def test_a_total_survives_deletion_of_its_series(sqlite: Site) -> None:
    old, new = Series("shop", "1", route="/old"), Series("shop", "1", route="/new")
    sqlite.write([Request({"forward": 1_000_000}, NOON - 600, old)])
    sqlite.write([Request({"forward": 1_000_000}, NOON - 600, new)])
    sqlite.clock.now += 200 * 86_400
    sqlite.write([Request({"forward": 2_000_000}, NOON + 200 * 86_400 - 7200, new)])
    sqlite.store.maintain()
    sqlite.store.maintain()
    window = sqlite.around()
    rows = sqlite.store.read.fleet(window.start, window.end, (0.5,))

    assert rows["n"].to_dict() == {"shop": 1}


def test_the_waste_of_each_service_is_exact(fleet: Site) -> None:
    window = fleet.between(START, END)
    found = fleet.store.read.fleet_waste(window.start, window.end)
    bank = fleet.store.read.fleet_waste(window.start, window.end, environment="stage")
    inside = [each for each in drawn(1) if each.at >= NOON - 7200 - 50]
    queued = {
        name: sum(each.stages_ns["queue"] for each in inside if each.series.service == name)
        for name in ("bank", "wide")
    }

    assert found.loc["bank", "queue_seconds"] == pytest.approx(queued["bank"] / 1e9, abs=1e-3)
    assert bank["queue_seconds"].to_dict() == {
        "shop": pytest.approx(bank.loc["shop", "queue_seconds"]),
        "wide": pytest.approx(queued["wide"] / 1e9, abs=1e-3),
    }
    assert (found["failed_calls"].sum(), found["failed_seconds"].sum(), found["load_seconds"].sum()) == (0, 0.0, 0.0)


def test_failed_calls_and_cold_starts_are_counted(sqlite: Site) -> None:
    calls = Histogram()
    for seconds in (0.5, 1.5):
        calls.record(seconds)
    points = [Point(SERIES[5], FAILED_CALL, kind, NOON - 60, calls) for kind in ("triton:timeout", "http:500")]
    phases = [("start", NOON - 90, 80), ("read", NOON - 60, 7), ("first_run", NOON - 50, 2), ("read", NOON - 9000, 40)]
    loads = [
        StoredLoad("bank", "7", "prod", "a", "web:1", phase, "m", "", (ended - own) * NS, ended * NS, own * NS)
        for phase, ended, own in phases
    ]
    sqlite.store.write([Batch("a", points, loads=loads)])
    window = sqlite.between(START, END)
    found = sqlite.store.read.fleet_waste(window.start, window.end).loc["bank"]

    assert (found["failed_calls"], found["failed_seconds"], found["load_seconds"]) == (4, pytest.approx(4.0), 9.0)
    assert sqlite.store.read.fleet_waste(window.start, window.end, environment="stage").empty


def test_the_hardware_of_each_service_equals_a_separate_query(sqlite: Site) -> None:
    for number, series in enumerate(SERIES):
        for measure, value in (("gpu", 0.1 * number), ("memory", 1e9)):
            histogram = Histogram()
            histogram.record(value)
            sqlite.store.write(
                [
                    Batch(
                        f"{number}{measure}",
                        [Point(series, HARDWARE, f"{measure} web/gpu{number}", NOON - 60, histogram)],
                    )
                ]
            )
    window, step = sqlite.between(START, END), timedelta(minutes=10)
    found = sqlite.store.read.fleet_hardware(window.start, window.end, step, ("gpu",))
    shop = sqlite.store.read.hardware(Selection(window.start, window.end, service="shop"), step)

    assert set(found.index) == {"bank", "shop", "wide"}
    pd.testing.assert_frame_equal(
        found[found.index == "shop"].reset_index(drop=True),
        shop[shop["measure"] == "gpu"].reset_index(drop=True),
        check_dtype=False,
    )


def of(site: Site, group: Group) -> Selection:
    part = {group.dimension: group.value} if group.dimension else {}
    return site.between(FIRST, LAST, service=group.service, environment=group.environment, **part)


def as_buckets(index: NDArray[np.int64], amounts: NDArray[np.int64]) -> dict[int, int]:
    return {key: n for key, n in zip(index.tolist(), amounts.sum(axis=0).tolist(), strict=True) if n}


def test_the_counts_of_a_group_equal_a_separate_query(fleet: Site) -> None:
    window = fleet.between(FIRST, LAST)
    all_minutes = fleet.store.read.all_minutes(window.start, window.end)

    assert set(all_minutes) == GROUPS
    for group, counts in all_minutes.items():
        alone = fleet.store.read.minutes(of(fleet, group))
        stages = fleet.store.read.stage_latency(of(fleet, group))

        assert (counts.start, len(counts.total)) == (FIRST // 60, (LAST - FIRST) // 60)
        assert as_buckets(counts.index, counts.total) == fleet.store.read.latency(of(fleet, group)).buckets
        for stage, own in zip(counts.stages, counts.own, strict=True):
            assert as_buckets(counts.index, own) == stages[stage].buckets
        assert (alone.index.tolist(), alone.stages) == (counts.index.tolist(), counts.stages)
        assert (alone.total == counts.total).all()
        assert (alone.own == counts.own).all()
        sums = fleet.store.read.sums(of(fleet, group))
        assert (sums.index.tolist(), sums.stages) == (counts.index.tolist(), counts.stages)
        assert sums.total.tolist() == [counts.total.sum(axis=0).tolist()]
        assert sums.own.tolist() == counts.own.sum(axis=1, keepdims=True).tolist()


def test_every_minute_equals_a_separate_query(fleet: Site) -> None:
    whole = fleet.store.read.minutes(of(fleet, SHOP))
    for number in range(0, 121, 20):
        start = FIRST + 60 * number
        alone = fleet.store.read.minutes(fleet.between(start, start + 60, service="shop", environment="prod"))

        assert alone.total.sum() == whole.total[number].sum()


def test_request_time_is_split_by_step(fleet: Site) -> None:
    spent = fleet.store.read.spent(of(fleet, SHOP), timedelta(minutes=10))
    latency = fleet.store.read.latency(of(fleet, SHOP))

    assert (spent.start, spent.step, len(spent.total)) == (FIRST // 600 * 10, 10, 13)
    assert spent.total.sum() == latency.count - latency.zero
    assert spent.seconds.sum() == pytest.approx(latency.sum, rel=1e-3)


def test_without_requests_minutes_are_zero(fleet: Site) -> None:
    nobody = fleet.between(FIRST, LAST, service="nobody")
    counts = fleet.store.read.minutes(nobody)

    assert (counts.total.shape, counts.own.shape) == ((121, 0), (0, 121, 0))
    assert fleet.store.read.spent(nobody, timedelta(minutes=10)).seconds.shape == (0, 13, 0)
    assert fleet.store.read.all_minutes(nobody.start - timedelta(days=30), nobody.start - timedelta(days=29)) == {}


def test_groups_are_listed_while_they_serve(fleet: Site) -> None:
    window = fleet.between(FIRST, LAST)
    groups = fleet.store.read.groups(window.start)

    of_shop = [group for group in groups if (group.service, group.environment) == ("shop", "prod")]

    assert set(groups) == GROUPS | {Group("wide", environment="stage")}
    assert groups[SHOP] == min(groups[group] for group in of_shop)
    assert fleet.store.read.groups(window.end + timedelta(days=1)) == {}
