"""Attributes of requests to real servers: sizes, the caller, and the headers that the user lists, and no others.

Those of Django are in `test_django.py`, because it has one configuration a process.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stagelens.core import names
from stagelens.instrumentors import named_attributes, records
from stagelens.instrumentors.libraries.aiohttp_server import AioHttpServerInstrumentor
from stagelens.instrumentors.libraries.flask import FlaskInstrumentor
from stagelens.instrumentors.libraries.starlette import StarletteInstrumentor
from tests.instrumentors.libraries.drivers import SERVERS, instrumenting

if TYPE_CHECKING:
    from conftest import Finished, Service, Sink

SERVICES = Path(__file__).parent / "servers"
HEADERS = {
    "X-Tenant": "acme",
    "Baggage": "user=secret, plan=gold%20plus;ttl=3",
    "X-Other": "secret",
    "Tracestate": "vendor=1,stagelens=checkout",
}
LISTED = "tenant=header:X-Tenant,plan=baggage:plan,region=header:x-region"
Ask = Callable[[], str]


@pytest.fixture(autouse=True)
def instrumented() -> Generator[None]:
    with instrumenting(StarletteInstrumentor(), FlaskInstrumentor(), AioHttpServerInstrumentor()):
        yield


@pytest.fixture(params=["fastapi", "flask", "aiohttp"])
def send_request(request: pytest.FixtureRequest) -> Generator[Ask]:
    with SERVERS[request.param].make() as send:
        yield lambda: send("/items/7", "x" * 1234, HEADERS)[1]


def named(finished: Finished) -> list[tuple[str, str]]:
    return [value for key, value, _ in finished.marks() if key == records.ATTRIBUTE]


def test_only_the_sizes_of_bodies_and_the_caller_are_recorded_without_a_list(
    finished: Finished, send_request: Ask
) -> None:
    response = send_request()

    found = {key: value for key, value, _ in finished.marks()}
    # With the quotes of JSON.
    assert found["@request_size"] == "1236"
    assert int(found["@response_size"]) == len(response) >= 1236
    assert found["@caller"] == HEADERS["Tracestate"]
    assert named(finished) == []
    assert "acme" not in repr(finished)


def test_only_listed_headers_are_read(finished: Finished, send_request: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named_attributes, "sources", named_attributes.parse(LISTED))
    send_request()

    assert named(finished) == [("tenant", "acme"), ("plan", "gold plus")]
    assert "secret" not in repr(finished)


@pytest.mark.stacks
def test_a_header_that_is_not_listed_never_leaves_the_process(
    sink: Sink, serve: Callable[..., Service], until: Callable[..., None]
) -> None:
    service = serve("fastapi_service:app", cwd=SERVICES, STAGELENS_ATTRIBUTES=LISTED)
    for headers in (HEADERS, {**HEADERS, "X-Tenant": "globex"}, {}):
        service.send_request("/", headers=headers)
    service.stop()
    until(lambda: sink.requests() == 3, "all requests")

    points = [point for name, _, point in sink.points() if name == names.REQUEST_BY_ATTRIBUTE]
    counts: dict[str, int] = {}
    for point in points:
        key = point["attributes"][names.ATTRIBUTE]
        counts[key] = counts.get(key, 0) + int(point["count"])
    assert counts.items() >= {"tenant=acme": 1, "tenant=globex": 1, "tenant=": 1, "plan=gold plus": 2}.items()
    assert counts.items() >= {"caller=checkout": 2, "caller=": 1, "replica=": 3}.items()
    assert "secret" not in json.dumps([post.decoded for post in sink.posts])
