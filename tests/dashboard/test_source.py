"""The query cache: results stay valid until their service writes, and each query runs once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier, Event

import pandas as pd
import pytest

from stagelens.store import Selection, Series, Store
from stagelens.store.query_cache import QueryCache
from tests.dashboard.rendering import source_of, write_requests
from tests.dashboard.served_versions import NOW

CAPACITY = 1_000_000


@pytest.fixture
def store(store: Store) -> Store:
    for service in ("shop", "desk"):
        send(store, service, "first")
    return store


def send(store: Store, service: str, name: str) -> None:
    write_requests(store, Series(service), ago=300 if name == "first" else 290)


def of(service: str | None) -> Selection:
    return Selection(NOW - timedelta(hours=1), NOW, service=service)


def test_cached_results_survive_writes_of_other_services(store: Store) -> None:
    source = source_of(store)
    asked: list[Selection] = []

    def count(selection: Selection) -> int:
        asked.append(selection)
        return store.read.latency(selection).count

    before = [source.cached(count, of(each)) for each in ("shop", None)]
    send(store, "desk", "second")
    after = [source.cached(count, of(each)) for each in ("shop", None)]
    send(store, "shop", "second")
    own = source.cached(count, of("shop"))

    assert (before, after, own) == ([1, 2], [1, 3], 2)
    assert [each.service for each in asked] == ["shop", None, None, "shop"]


def test_cached_results_of_two_services_expire_when_either_writes(store: Store) -> None:
    source = source_of(store)

    def both(a: Selection, b: Selection) -> int:
        return store.read.latency(a).count + store.read.latency(b).count

    first = source.cached(both, of("shop"), b=of("desk"))
    send(store, "desk", "second")

    assert (first, source.cached(both, of("shop"), b=of("desk"))) == (2, 3)


def test_concurrent_equal_queries_run_once() -> None:
    cache, started, goes_on = QueryCache(CAPACITY), Event(), Event()
    made: list[int] = []

    def slow() -> int:
        started.set()
        goes_on.wait(60)
        made.append(1)
        return len(made)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(cache.get, "question", 1, slow)
        started.wait(60)
        second = pool.submit(cache.get, "question", 1, slow)
        goes_on.set()

        assert (first.result(60), second.result(60), made) == (1, 1, [1])


def test_different_queries_do_not_wait_for_each_other() -> None:
    cache, meet = QueryCache(CAPACITY), Barrier(2)

    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(cache.get, name, 1, lambda: meet.wait(60)) for name in ("a", "b")]

        assert sorted(each.result(60) for each in both) == [0, 1]


def test_an_error_reaches_the_caller_and_is_not_cached() -> None:
    cache = QueryCache(CAPACITY)

    def fails() -> int:
        msg = "no"
        raise ValueError(msg)

    with pytest.raises(ValueError, match="no"):
        cache.get("question", 1, fails)

    assert cache.get("question", 1, lambda: 5) == 5


@pytest.mark.parametrize("whole", [pd.DataFrame({"n": range(5_000)}), bytes(40_000)])
def test_the_cache_is_bounded_and_evicts_the_least_recently_used(whole: object) -> None:
    cache = QueryCache(130_000)
    large = (whole, dict.fromkeys(range(5)))
    made: list[str] = []

    def make(name: str) -> object:
        made.append(name)
        return large[name == "b"]

    for name in ("a", "b", "a", "c", "a", "b"):
        cache.get(name, 1, lambda name=name: make(name))

    assert made == ["a", "b", "c", "b"]
