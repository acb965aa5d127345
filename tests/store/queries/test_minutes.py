"""Requests per minute: equal to other queries, from any tier."""

from __future__ import annotations

from collections.abc import Generator
from datetime import timedelta
from random import Random

import numpy as np
import pytest
from numpy.typing import NDArray

from stagelens.store import Group, Selection
from tests.support.raw_requests import NOON, OpenSite, Request, Series, Site

START, END = NOON - 7200, NOON + 60
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


@pytest.fixture(scope="module")
def counted(open_sqlite: OpenSite, opened_sites: list[Site]) -> Generator[Site]:
    made, random = open_sqlite(), Random(3)
    opened_sites.remove(made)
    requests: list[Request] = []
    for _ in range(500):
        total, series = random.choice((0, int(random.lognormvariate(17, 1)))), random.choice(SERIES)
        part = random.randint(0, total)
        requests.append(Request({"forward": part, "queue": total - part}, NOON - random.randrange(10_800), series))
    made.write([each for each in requests if each.series.service != "wide"])
    made.write([each for each in requests if each.series.service == "wide"], scale=3)
    made.store.maintain()
    made.write([Request({"queue": 5_000_000}, NOON - 5, SERIES[0])])
    yield made
    made.close()


def of(site: Site, group: Group) -> Selection:
    part = {group.dimension: group.value} if group.dimension else {}
    return site.between(START, END, service=group.service, environment=group.environment, **part)


def as_buckets(index: NDArray[np.int64], amounts: NDArray[np.int64]) -> dict[int, int]:
    return {key: n for key, n in zip(index.tolist(), amounts.sum(axis=0).tolist(), strict=True) if n}


def test_the_counts_of_a_group_equal_a_separate_query(counted: Site) -> None:
    window = counted.between(START, END)
    found = counted.store.read.all_minutes(window.start, window.end)

    assert set(found) == GROUPS
    for group, counts in found.items():
        alone = counted.store.read.minutes(of(counted, group))
        stages = counted.store.read.stage_latency(of(counted, group))

        assert (counts.start, len(counts.total)) == (START // 60, (END - START) // 60)
        assert as_buckets(counts.index, counts.total) == counted.store.read.latency(of(counted, group)).buckets
        for stage, own in zip(counts.stages, counts.own, strict=True):
            assert as_buckets(counts.index, own) == stages[stage].buckets
        assert (alone.index.tolist(), alone.stages) == (counts.index.tolist(), counts.stages)
        assert (alone.total == counts.total).all()
        assert (alone.own == counts.own).all()


def test_every_minute_equals_a_separate_query(counted: Site) -> None:
    whole = counted.store.read.minutes(of(counted, SHOP))
    for number in range(0, 121, 20):
        start = START + 60 * number
        alone = counted.store.read.minutes(counted.between(start, start + 60, service="shop", environment="prod"))

        assert alone.total.sum() == whole.total[number].sum()


def test_request_time_is_split_by_step(counted: Site) -> None:
    spent = counted.store.read.spent(of(counted, SHOP), timedelta(minutes=10))
    latency = counted.store.read.latency(of(counted, SHOP))

    assert (spent.start, spent.step, len(spent.total)) == (START // 600 * 10, 10, 13)
    assert spent.total.sum() == latency.count - latency.zero
    assert spent.seconds.sum() == pytest.approx(latency.sum, rel=1e-3)


def test_without_requests_minutes_are_zero(counted: Site) -> None:
    nobody = counted.between(START, END, service="nobody")
    counts = counted.store.read.minutes(nobody)

    assert (counts.total.shape, counts.own.shape) == ((121, 0), (0, 121, 0))
    assert counted.store.read.spent(nobody, timedelta(minutes=10)).seconds.shape == (0, 13, 0)
    assert counted.store.read.all_minutes(nobody.start - timedelta(days=30), nobody.start - timedelta(days=29)) == {}


def test_groups_are_listed_while_they_serve(counted: Site) -> None:
    window = counted.between(START, END)
    groups = counted.store.read.groups(window.start)

    of_shop = [group for group in groups if (group.service, group.environment) == ("shop", "prod")]

    assert set(groups) == GROUPS | {Group("wide", environment="stage")}
    assert groups[SHOP] == min(groups[group] for group in of_shop)
    assert counted.store.read.groups(window.end + timedelta(days=1)) == {}


@pytest.mark.parametrize("group", sorted(GROUPS, key=repr))
def test_the_sums_equal_those_of_all_minutes(counted: Site, group: Group) -> None:
    minutes, sums = (getattr(counted.store.read, name)(of(counted, group)) for name in ("minutes", "sums"))

    assert sums.index.tolist() == minutes.index.tolist()
    assert sums.total.tolist() == [minutes.total.sum(axis=0).tolist()]
    assert sums.stages == minutes.stages
    assert sums.own.tolist() == minutes.own.sum(axis=1, keepdims=True).tolist()
