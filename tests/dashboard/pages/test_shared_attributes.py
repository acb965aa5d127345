"""What slow requests share: the card of the service page and of the comparison, and the query of the API."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from flask.testing import FlaskClient

from stagelens.cli.mcp_text import shared_text
from stagelens.core.attributes import ATTRIBUTE_SCALE, attribute_key
from stagelens.core.histogram import Histogram
from stagelens.core.names import AGENT_COST, REQUEST_BY_ATTRIBUTE, REQUEST_DURATION
from stagelens.dashboard.config import DashboardConfig
from stagelens.dashboard.web.app import Dashboard
from stagelens.store import Batch, Point, Series, Store
from tests.dashboard.served_versions import NOW

MINUTES, REQUESTS = 40, 100
# Requests of a minute by size and tenant: one in twenty has 4 MB and is slow, whatever its tenant.
SIZES = {"4194304": 5, "4096": 95}
TENANTS = {"acme": 40, "globex": 60}


def points(series: Series, at: int) -> Iterator[Point]:
    slow, fast = Histogram(buckets={}), Histogram()
    slow.record(0.6, SIZES["4194304"])
    fast.record(0.1, SIZES["4096"])
    whole = Histogram()
    whole.merge(slow)
    whole.merge(fast)
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
def client(store: Store) -> FlaskClient:
    """A browser of a store with one service that sends attributes, in two versions, and one that does not."""
    end = int(NOW.timestamp()) // 60 * 60
    written: list[Point] = []
    for minute in range(MINUTES):
        at = end - 60 * (MINUTES - minute)
        written += points(Series("checkout", version="1" if minute < MINUTES / 2 else "2"), at)
        written.append(Point(Series("old"), REQUEST_DURATION, "forward", at, Histogram(buckets={-100: REQUESTS})))
    written += reduced(end - 60)
    store.write([Batch("one", written)])
    return Dashboard(DashboardConfig(), store, None, clock=NOW.timestamp).server.test_client()


def text_of(client: FlaskClient, path: str) -> str:
    return re.sub(r"<[^>]+>", " ", client.get(path).text)


def test_the_size_of_slow_requests_is_named_and_the_tenant_is_not(client: FlaskClient) -> None:
    page = text_of(client, "/s/checkout?p=95")

    assert "Requests with a request size of 4-16 MB are 5 % of all and 100 % of the slow ones" in page
    assert "tenant" in page[page.index("No difference in") :][:60]


def test_a_part_of_the_requests_is_called_a_part(client: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "a part of all" not in text_of(client, "/s/checkout?p=95")
    monkeypatch.setattr("stagelens.store.queries.attributes.MAX_ROWS", 40)

    assert "from a sample of 4.00k requests" in text_of(client, "/s/checkout?p=90&from=now-24h").replace("\u202f", "")


def test_a_selection_is_compared_with_all_other_requests(client: FlaskClient) -> None:
    end = int(NOW.timestamp())
    selected = text_of(client, f"/s/checkout?sel=0.3:2:{end - 1200}:{end}")

    assert "of the selected ones" in selected
    assert "What slow requests share" in text_of(client, "/s/checkout?sel=0.3:nan:x")


def test_requests_of_agents_over_their_budget_are_called_uncounted(client: FlaskClient) -> None:
    assert "overhead budget" not in text_of(client, "/s/checkout?p=95")
    for service in ("reduced", "bare"):
        page = text_of(client, f"/s/{service}?p=95").replace("\u202f", "")
        card = page[page.index("What slow requests share") :]

        assert "For 500 of 1.00k requests, sizes, tokens, concurrency, caller and your attributes are unknown" in card


def test_a_service_without_attributes_has_no_card(client: FlaskClient) -> None:
    assert "What slow requests share" not in text_of(client, "/s/old")


def test_the_comparison_has_the_card_of_the_newer_side(client: FlaskClient) -> None:
    page = text_of(client, "/compare?svc=checkout&p=95")

    assert "What slow requests of B share" in page
    assert "4-16 MB" in page


def test_the_query_returns_the_numbers_of_the_card(client: FlaskClient) -> None:
    found = client.get("/api/v1/query/shared?service=checkout&p=95").get_json()
    names = [each["name"] for each in found["columns"]]
    first = dict(zip(names, found["rows"][0], strict=True))

    assert first["attribute"] == "request_size"
    assert first["requests"] == MINUTES * SIZES["4194304"]
    assert first["share_slow"] == 1
    assert found["no_difference_in"] == ["tenant", "version"]


def test_the_card_shows_the_percentile_that_its_button_names(client: FlaskClient) -> None:
    html = client.get("/s/checkout").text
    card = html[html.index("What slow requests share") :]
    page = text_of(client, "/s/checkout").replace("\u202f", " ")

    assert re.findall(r'aria-current="(?:true|page)"[^>]*>(p[0-9.]+)<', card)[0] == "p95"
    assert ">p99<" not in card[: card.index("</table>")]
    assert "the slowest 5.0 %: 200 of 4.00k" in page
    assert "p99 needs 5,000 requests" in page


def test_the_query_says_which_percentile_it_used_and_why(client: FlaskClient) -> None:
    replaced = client.get("/api/v1/query/shared?service=checkout&p=99").get_json()
    asked = client.get("/api/v1/query/shared?service=checkout&p=95").get_json()

    assert (replaced["asked_percentile"], replaced["percentile"]) == (0.99, 0.95)
    assert replaced["reason"] == "p99 needs 5,000 requests"
    assert (asked["asked_percentile"], asked["percentile"], asked["reason"]) == (0.95, 0.95, "")
    assert (
        "the slowest 200 of 4000 requests, about p95 and slower; p99 needs 5,000 requests" in shared_text(replaced)[0]
    )


@pytest.mark.parametrize("query", ["shared", "profile", "critical_path", "compare"])
def test_a_query_of_one_percentile_refuses_several(client: FlaskClient, query: str) -> None:
    refused = client.get(f"/api/v1/query/{query}?service=checkout&p=50,99")

    assert (refused.status_code, refused.get_json()["key"]) == (400, "p")


def test_an_invalid_selection_is_refused_with_its_form(client: FlaskClient) -> None:
    refused = client.get("/api/v1/query/shared?service=checkout&sel=fast")

    assert refused.status_code == 400
    assert "low:high:start:end" in refused.text
