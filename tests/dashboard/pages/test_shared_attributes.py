"""What slow requests share: the card of the service page and of the comparison, and the query of the API."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stagelens.cli.mcp_text import shared_text
from stagelens.core.attributes import ATTRIBUTE_SCALE, attribute_key
from stagelens.core.histogram import Histogram
from stagelens.core.names import AGENT_COST, REQUEST_BY_ATTRIBUTE, REQUEST_DURATION
from stagelens.store import Batch, Point, Series, Store
from tests.dashboard.rendering import check_views, client_of, observed, plain, shown, source_of
from tests.dashboard.served_versions import NOW

MINUTES, REQUESTS = 40, 100
# Requests of a minute by size and tenant: one in twenty has 4 MB and is slow, whatever its tenant.
SIZES = {"4194304": 5, "4096": 95}
TENANTS = {"acme": 40, "globex": 60}
END = int(NOW.timestamp())
CARD = "What slow requests"


def points(series: Series, at: int) -> Iterator[Point]:
    whole = observed(0.6, SIZES["4194304"])
    whole.merge(observed(0.1, SIZES["4096"]))
    yield Point(series, REQUEST_DURATION, "forward", at, whole)
    for value, seconds in (("4194304", {0.6: 5}), ("4096", {0.1: 95})):
        yield by_attribute(series, at, "request_size", value, seconds)
    for value, number in TENANTS.items():
        of_slow = number // 20
        yield by_attribute(series, at, "tenant", value, {0.6: of_slow, 0.1: number - of_slow})


def reduced(at: int) -> Iterator[Point]:
    yield from points(Series("reduced"), at)
    yield Point(Series("bare"), REQUEST_DURATION, "forward", at, Histogram(buckets={-100: REQUESTS}))
    for service in ("reduced", "bare"):
        for level in ("all", "no_facts"):
            yield Point(Series(service), AGENT_COST, level, at, Histogram(buckets={-500: 500}))
        # Not the cost of a request: a process reports in this way that it records nothing.
        yield Point(Series(service), AGENT_COST, "nothing", at, Histogram(zero=500))


def by_attribute(series: Series, at: int, name: str, value: str, seconds: dict[float, int]) -> Point:
    counted = Histogram(ATTRIBUTE_SCALE)
    for length, number in seconds.items():
        counted.record(length, number)
    return Point(series, REQUEST_BY_ATTRIBUTE, attribute_key(name, value), at, counted)


@pytest.fixture
def store(store: Store) -> Store:
    """A store with one service that sends attributes, in two versions, and one that does not."""
    end = END // 60 * 60
    written: list[Point] = []
    for minute in range(MINUTES):
        at = end - 60 * (MINUTES - minute)
        written += points(Series("checkout", version="1" if minute < MINUTES / 2 else "2"), at)
        written.append(Point(Series("old"), REQUEST_DURATION, "forward", at, Histogram(buckets={-100: REQUESTS})))
    written += reduced(end - 60)
    store.write([Batch("one", written)])
    return store


def test_the_size_of_slow_requests_is_named_and_the_tenant_is_not(store: Store) -> None:
    check_views("shared_attributes", source_of(store))


def test_a_part_of_the_requests_is_called_a_part(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stagelens.store.queries.attributes.MAX_ROWS", 40)

    assert "from a sample of 4.00k requests" in plain(shown(source_of(store), "/s/checkout?p=90&from=now-24h"))


def test_the_query_returns_the_numbers_of_the_card_and_its_percentile(store: Store) -> None:
    asked, replaced = (
        client_of(store).get(f"/api/v1/query/shared?service=checkout&p={p}").get_json() for p in (95, 99)
    )
    first = dict(zip([column["name"] for column in asked["columns"]], asked["rows"][0], strict=True))

    assert first["attribute"] == "request_size"
    assert first["requests"] == MINUTES * SIZES["4194304"]
    assert first["share_slow"] == 1
    assert asked["no_difference_in"] == ["tenant", "version"]
    assert (asked["asked_percentile"], asked["percentile"], asked["reason"]) == (0.95, 0.95, "")
    assert (replaced["asked_percentile"], replaced["percentile"]) == (0.99, 0.95)
    assert replaced["reason"] == "p99 needs 5,000 requests"
    said = "the slowest 200 of 4000 requests, about p95 and slower; p99 needs 5,000 requests"
    assert said in shared_text(replaced)[0]


@pytest.mark.parametrize(
    ("query", "given", "key"),
    [
        *((query, "p=50,99", "p") for query in ("shared", "profile", "critical_path", "compare")),
        ("shared", "sel=fast", "sel"),
    ],
)
def test_a_query_of_one_percentile_refuses_several(store: Store, query: str, given: str, key: str) -> None:
    refused = client_of(store).get(f"/api/v1/query/{query}?service=checkout&{given}")

    assert (refused.status_code, refused.get_json()["key"]) == (400, key)
    assert key == "p" or "low:high:start:end" in refused.text
